"""Overrides on the command line, and the recipe that is written from them."""

import json
from pathlib import Path

import pytest
from gymfleet_cli.console import UsageProblem
from gymfleet_cli.main import run
from gymfleet_cli.recipes import load_checked, load_with_overrides, to_toml
from gymfleet_contracts.recipe import RecipeError, load_recipe

from tests.fixtures.paths import ROOT

pytestmark = pytest.mark.usefixtures("plugins_are_known")

MINIMAL = """\
name = "walk"
[[environments]]
name = "maze"
[[stages]]
kind = "reinforce"
steps = 3
[model.scratch]
[rollout.limits]
max_context_tokens = 512
"""
EVERYTHING = """\
name = "walk"
seed = 3

[model.scratch]

[reward]
allocation = "uniform_positive"

[reward.own-one]
use = "./own.py"
words = []

[[environments]]
name = "maze"
label = "easy"
weight = 2.5
limits = { max_turns = 3 }
format = "tags"
options = { "two words" = [1, { deep = [{ x = true }, {}] }], table = {} }

[environments.reward.goal]
success = 2.0

[[environments.schedule]]
step = 3
level = "medium"

[[environments.schedule]]
step = 9
max_turns = 12

[[environments]]
name = "babyai"

[[stages]]
kind = "collect"
name = "demonstrations"
strategy = { use = "expert" }

[[stages]]
name = "round"
repeat = 2

[[stages.stages]]
kind = "sft"
data = ["demonstrations"]
max_wall_s = inf

[stages.stages.optimizer]
eps = 1e-9

[[stages.stages]]
repeat = 3

[[stages.stages.stages]]
kind = "./weigh_up.py"
pairs = [{ left = 1, right = "a" }, { left = 2, nested = [{ deep = 1 }] }]
mixed = [1, { two = 2 }, [{ three = 3 }]]

[stages.stages.stages.thresholds]
low = 0.5

[[stages]]
kind = "reinforce"
kl = {}

[stages.measure]
every_steps = 5

[stages.measure.sampling]
temperature = 0.0
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "walk.toml"
    path.write_text(MINIMAL)
    return path


@pytest.fixture
def everything(tmp_path: Path) -> Path:
    path = tmp_path / "everything.toml"
    path.write_text(EVERYTHING)
    return path


def test_overrides_are_typed_and_make_tables(recipe: Path) -> None:
    changed = load_with_overrides(
        recipe,
        ["stages.reinforce.steps=20", "environments.maze.level=tiny", "inference.dtype=bfloat16",
         "stages.reinforce.optimizer.learning_rate=3e-4", "stages.reinforce.optimizer.betas=[0.5, 0.6]"],
    )  # fmt: skip

    assert changed.plan()[0].options == {"steps": 20, "optimizer": {"learning_rate": 3e-4, "betas": [0.5, 0.6]}}
    assert changed.environments[0].level == "tiny"
    assert changed.inference.dtype == "bfloat16"


def test_stages_and_environments_are_addressed_by_name(everything: Path) -> None:
    changed = load_with_overrides(
        everything,
        ["stages.round.repeat=1", "stages.round.stages.sft.optimizer.eps=0.5", "environments.easy.level=tiny",
         "stages.round.stages.repeat.stages.weigh_up.thresholds.low=0.25", "environments.babyai.options.stages.x=1",
         "stages.reinforce.name=rl", "stages.rl.steps=7", "stages.rl.data=[{a = 1}]"],
    )  # fmt: skip

    plan = {stage.name: stage for stage in changed.plan()}
    assert list(plan) == [
        "demonstrations", "round1.sft", *(f"round1.repeat{number}.weigh_up" for number in (1, 2, 3)), "rl",
    ]  # fmt: skip
    assert plan["round1.sft"].options["optimizer"] == {"eps": 0.5}
    assert plan["round1.repeat2.weigh_up"].options["thresholds"] == {"low": 0.25}
    assert plan["rl"].options["steps"] == 7
    assert plan["rl"].options["data"] == [{"a": 1}]
    easy, babyai = changed.environments
    assert (easy.level, babyai.level) == ("tiny", None)
    assert babyai.options == {"stages": {"x": 1}}, "an option that is called stages is a table like any other"


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("inference.dtype=20", r"inference\.dtype"),
        ("seed=many", "seed"),
        ("environments.maze.weight=-1", r"environments\.0\.weight"),
        ("environments.mase.level=easy", "environments has no mase; it has: maze$"),
        ("environments.maze=easy", r"maze is a table; set a key of it: environments\.maze\.KEY=value"),
        ("stages.reinforc.steps=3", "stages has no reinforc; it has: reinforce$"),
        ("stages.reinforce=3", r"reinforce is a table; set a key of it: stages\.reinforce\.KEY=value"),
        ("stages.reinforc=3", "stages has no reinforc; it has: reinforce$"),
        ("stages.reinforce.stages.sft.epochs=3", r"stages\.reinforce\.stages has no sft; it has: none$"),
        ("stages.reinforce.steps.x=3", "steps holds a value, not a table"),
        ("stages.reinforce.name=The first", r"stages\.0\.name"),
        ("rl.steps=20", "rl: "),
        ("rl.steps", "write key=value"),
        ("=3", "write key=value"),
        ("name.first=x", "name holds a value"),
        ('name=1\nseed="x"', "name"),
    ],
)
def test_wrong_override_names_its_key(override: str, named: str, recipe: Path) -> None:
    with pytest.raises(UsageProblem, match=named):
        load_with_overrides(recipe, [override])


@pytest.mark.parametrize("first", ["stages=5", "stages=[5]"])
def test_an_override_of_what_another_spoilt_is_refused(first: str, recipe: Path) -> None:
    with pytest.raises(UsageProblem, match="stages holds a value, not a table"):
        load_with_overrides(recipe, [first, "stages.reinforce.steps=3"])


def test_name_that_leaves_the_runs_directory_is_refused(recipe: Path) -> None:
    recipe.write_text(MINIMAL.replace("walk", ".."))

    with pytest.raises(RecipeError, match="cannot name a run directory"):
        load_with_overrides(recipe, [])


def test_written_recipe_loads_to_an_equal_one(recipe: Path, tmp_path: Path) -> None:
    awkward = 'quotes " and \\ and\nnew lines, é, \x7f and 1e-9'
    changed = load_with_overrides(recipe, ["stages.reinforce.optimizer.eps=1e-9", "stages.reinforce.max_wall_s=inf"])
    changed = changed.model_copy(update={"description": awkward})
    written = tmp_path / "written.toml"
    written.write_text(to_toml(changed), encoding="utf-8")

    assert load_recipe(written) == changed
    assert load_recipe(written).plan()[0].options["max_wall_s"] == float("inf")


def test_every_form_of_table_survives_being_written(everything: Path, tmp_path: Path) -> None:
    written = tmp_path / "written.toml"
    written.write_text(to_toml(load_recipe(everything)), encoding="utf-8")

    assert load_recipe(written) == load_recipe(everything)
    assert load_recipe(written).plan() == load_recipe(everything).plan()
    assert written.read_text().count("\n[[stages.stages.stages]]\n") == 1


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_recipe_survives_being_written(path: Path, tmp_path: Path) -> None:
    written = tmp_path / "written.toml"
    written.write_text(to_toml(load_recipe(path)), encoding="utf-8")

    assert load_recipe(written) == load_recipe(path)


def test_a_recipe_says_how_many_of_what(recipe: Path, everything: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe.write_text(MINIMAL + "[scale]\nrollouts = 2\nenv_servers = 3\n")

    assert run(["scale", str(recipe)]) == 0
    assert capsys.readouterr().out == "--scale env-maze=3 --scale env_gateway=1 --scale rollout=2 --scale reward=1\n"
    assert run(["scale", str(everything), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "env-maze": 1, "env-babyai": 1, "env_gateway": 1, "rollout": 1, "reward": 1,
    }  # fmt: skip


@pytest.mark.parametrize("override", ["stepz=20", "group_size=1", 'algorithm="grop"'])
def test_what_plugins_do_not_take_is_found_before_anything_starts(override: str, recipe: Path) -> None:
    told = r"walk\.toml: stages\.reinforce\.(stepz: unknown|group_size must be|algorithm: there is no algorithm 'grop')"
    with pytest.raises(RecipeError, match=told):
        load_checked(recipe, [f"stages.reinforce.{override}"])
    load_checked(recipe, [])
