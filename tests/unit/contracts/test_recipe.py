"""Recipes: a wrong key is named, with the file."""

from pathlib import Path

import pytest
from gymfleet_contracts.recipe import Recipe, RecipeError, load_recipe
from gymfleet_contracts.recipe_sections import AlgorithmFacts, EnvironmentSection, ScheduledChange, StrategyFacts
from gymfleet_contracts.reply_format import FormatSection
from gymfleet_contracts.reward import EvaluatorSpec, RewardSpec

from tests.fixtures.paths import ROOT

MINIMAL = """
name = "maze-grpo"
[model]
path = "some/model"
[rollout.limits]
max_context_tokens = 1024
"""
MAZE = '[[environments]]\nname = "maze"\n'
MEASURE = '[[stages]]\nkind = "measure"\n'


def load(tmp_path: Path, text: str, environments: str = MAZE, stages: str = MEASURE) -> Recipe:
    """The recipe; `environments` and `stages` come last, because a table goes on until the next one."""
    path = tmp_path / "recipe.toml"
    path.write_text(f"{text}\n{environments}\n{stages}\n", encoding="utf-8")
    return load_recipe(path)


def test_a_minimal_recipe_has_defaults_for_the_rest(tmp_path: Path) -> None:
    recipe = load(tmp_path, MINIMAL)

    (env,) = recipe.environments
    assert (env.name, env.title, env.weight, env.level) == ("maze", "maze", 1.0, None)
    assert (env.train_split, env.eval_split) == ("train", "test")
    assert [stage.name for stage in recipe.plan()] == ["measure"]


@pytest.mark.parametrize(
    ("addition", "use", "options"),
    [
        pytest.param("", "react", {}, id="none"),
        pytest.param('[rollout]\nformat = "dbbench"', "dbbench", {}, id="by its name"),
        pytest.param('[rollout.format]\nuse = "dbbench"', "dbbench", {}, id="a table"),
        pytest.param('[rollout.format]\nuse = "a.py"\nn = [1, 2]', "a.py", {"n": [1, 2]}, id="with options"),
    ],
)
def test_the_reply_format(tmp_path: Path, addition: str, use: str, options: dict[str, object]) -> None:
    recipe = load(tmp_path, MINIMAL.replace("[rollout.limits]\nmax_context_tokens = 1024\n", addition))

    assert (recipe.rollout.format.use, recipe.rollout.format.options) == (use, options)
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


@pytest.mark.parametrize(
    ("use", "name"),
    [("react", "react"), ("./my/own.py", "own"), ("own.py", "own"), ("a.own:Own", "a.own:Own")],
)
def test_the_name_of_a_reply_format_tells_nobody_where_its_file_is(use: str, name: str) -> None:
    assert FormatSection(use=use).name == name


@pytest.mark.parametrize(
    ("addition", "message"),
    [
        pytest.param("[rollout]\nstratgy = 4", "rollout.stratgy: Extra inputs are not permitted", id="misspelt key"),
        pytest.param("[rollout.sampling]\ntemp = 2.0", "rollout.sampling.temp: Extra inputs", id="misspelt nested key"),
        pytest.param("[reward]\ngama = 0.5", "gama: unknown; known: allocation, gamma, and tables", id="no component"),
        pytest.param('[reward."a b"]', "'a b' is no label", id="a label that is no name"),
        pytest.param("[reward.goal]\nenabled = 1", "reward.goal.enabled: Input should be a valid bool", id="no switch"),
        pytest.param('[scale]\nrewards = "many"', "scale.rewards: Input should be a valid integer", id="wrong type"),
        pytest.param("[rl]\nsteps = 3", "rl: Extra inputs are not permitted", id="no table of a recipe"),
        pytest.param("[inference]\nmax_model_len = 512", "must not exceed inference.max_model_len", id="does not fit"),
        pytest.param("[trainer\n", "is not readable TOML", id="not TOML"),
    ],
)
def test_a_mistake_is_named_with_its_key_and_file(tmp_path: Path, addition: str, message: str) -> None:
    with pytest.raises(RecipeError) as error:
        load(tmp_path, MINIMAL + addition)

    assert message in str(error.value)
    assert "recipe.toml" in str(error.value)


@pytest.mark.parametrize(
    ("environments", "message"),
    [
        pytest.param("", "environments: Field required", id="none"),
        pytest.param(
            MAZE + MAZE, 'environments: two are called maze: give each a label, as label = "..."', id="one twice"
        ),
        pytest.param(
            f'{MAZE}[[environments]]\nname = "babyai"\nlabel = "maze"', "two are called maze", id="a label like a name"
        ),
        pytest.param(
            f'{MAZE}options = {{ size = 5 }}\n{MAZE}label = "big"\noptions = {{ size = 9 }}',
            "environments: the tables of maze must have the same tasks and options", id="other options",
        ),
        pytest.param(
            f'{MAZE}{MAZE}label = "known"\ntasks = "benchmark"',
            "environments: the tables of maze must have the same tasks and options", id="other tasks",
        ),
        pytest.param(f'{MAZE}eval_split = "train"', "eval_split must differ from train_split", id="not held out"),
        pytest.param(f"{MAZE}weight = 0", "environments.0.weight: Input should be greater than 0", id="no weight"),
        pytest.param(f'{MAZE}label = "A maze"', "environments.0.label: ", id="a label that is no name"),
        pytest.param(f"{MAZE}[environments.limits]\nturns = 4", "environments.0.limits.turns: Extra", id="no limit"),
        pytest.param(
            f"{MAZE}[environments.limits]\nmax_context_tokens = 5000",
            "environments.maze.limits.max_context_tokens (5000) must not exceed inference.max_model_len (4096)",
            id="its own limit does not fit",
        ),
        pytest.param(
            f'{MAZE}schedule = [{{ step = 9, level = "hard" }}, {{ step = 5, level = "easy" }}]',
            "the steps of schedule must ascend: 9, 5", id="a schedule that goes back",
        ),
        pytest.param(
            f"{MAZE}schedule = [{{ step = 5, max_turns = 3 }}, {{ step = 5, max_turns = 4 }}]",
            "the steps of schedule must ascend: 5, 5", id="a schedule with one step twice",
        ),
        pytest.param(
            f"{MAZE}schedule = [{{ step = 5 }}]", "a change in schedule says level or max_turns", id="no change"
        ),
        pytest.param(
            f"{MAZE}schedule = [{{ step = 1, max_turns = 4 }}]", "schedule.0.step: Input should be greater",
            id="a change before anything",
        ),
        pytest.param(f"{MAZE}[environments.reward]\ngama = 1", "gama: unknown; known:", id="its own reward misspelt"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_environments_is_named(tmp_path: Path, environments: str, message: str) -> None:
    with pytest.raises(RecipeError) as error:
        load(tmp_path, MINIMAL, environments)

    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        pytest.param("", "stages: Field required", id="none"),
        pytest.param(MEASURE + MEASURE, "two are called measure: give one of them another name", id="one name twice"),
        pytest.param(
            '[[stages]]\nname = "a"', "stages.0: Value error, give exactly one of kind and repeat", id="no kind"
        ),
        pytest.param(
            f"{MEASURE}[[stages]]\nrepeat = 3",
            "stages.1: Value error, repeat needs [[stages.stages]]",
            id="empty repeat",
        ),
        pytest.param('[[stages]]\nkind = "a.b:C"', "stages: a.b:C needs a name", id="a class without a name"),
    ],
)
def test_a_mistake_in_the_stages_is_named(tmp_path: Path, stages: str, message: str) -> None:
    with pytest.raises(RecipeError) as error:
        load(tmp_path, MINIMAL, stages=stages)

    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("addition", "gamma"),
    [
        pytest.param("", 0.5, id="as the algorithm does"),
        pytest.param("[reward]\ngamma = 0.9", 0.9, id="as given"),
        pytest.param("[reward]\ngamma = 0", 0.0, id="a given 0 is given"),
    ],
)
def test_the_reward_is_discounted_as_the_algorithm_does(tmp_path: Path, addition: str, gamma: float) -> None:
    recipe = load(tmp_path, MINIMAL + addition)

    assert recipe.reward_spec(recipe.environments[0], 0.5).gamma == gamma


@pytest.mark.parametrize(
    ("addition", "group_size", "reason"),
    [
        pytest.param("", 1, r"^stages\.learn\.group_size must be at least 2 for mine: a group of 1", id="group of 1"),
        pytest.param(
            '[reward]\nallocation = "discounted"', 2, r"^reward\.allocation = .*for mine: .*\"discounted_normalised\"",
            id="growing returns",
        ),
        pytest.param(
            "[rollout.sampling]\ntemperature = 0", 2, r"^rollout\.sampling\.temperature = 0 cannot be trained",
            id="greedy training",
        ),
        pytest.param(
            "[rollout.sampling]\ntemperature = 0.001", 2, "below 0.01 the engine samples", id="all but greedy"
        ),
    ],
)  # fmt: skip
def test_an_algorithm_that_compares_returns_asks_for_some(
    tmp_path: Path, addition: str, group_size: int, reason: str
) -> None:
    recipe = load(tmp_path, MINIMAL + addition, stages='[[stages]]\nkind = "reinforce"\nname = "learn"')
    (stage,) = recipe.plan()

    with pytest.raises(RecipeError, match=reason):
        recipe.suits(stage, "mine", group_size, AlgorithmFacts(min_group_size=2, sums_rewards=True))
    if "temperature" not in addition:
        recipe.suits(stage, "mine", group_size, AlgorithmFacts())
    load(tmp_path, MINIMAL).suits(stage, "mine", 2, AlgorithmFacts(min_group_size=2, sums_rewards=True))


def test_an_algorithm_asks_it_of_every_environments_rewards(tmp_path: Path) -> None:
    own = f'{MAZE}[[environments]]\nname = "babyai"\nlabel = "balls"\nreward.allocation = "discounted"'
    recipe = load(tmp_path, MINIMAL, own)

    with pytest.raises(RecipeError, match=r'^environments\.balls\.reward\.allocation = "discounted"'):
        recipe.suits(recipe.plan()[0], "mine", 2, AlgorithmFacts(sums_rewards=True))


def test_nothing_is_reinforced_in_what_the_expert_writes(tmp_path: Path) -> None:
    recipe = load(tmp_path, MINIMAL + '[rollout.strategy]\nuse = "expert"')

    with pytest.raises(
        RecipeError, match=r'^rollout\.strategy: expert writes the replies .* by a stage of kind "collect"$'
    ):
        recipe.plays_by(StrategyFacts(expert=True), recipe.plan()[-1])
    recipe.plays_by(StrategyFacts(), recipe.plan()[-1])


def test_roles_to_train_on_are_those_that_the_strategy_names(tmp_path: Path) -> None:
    stages = '[[stages]]\nkind = "reinforce"\nroles = ["agent", "planer"]'
    recipe = load(tmp_path, MINIMAL, stages=stages)

    with pytest.raises(
        RecipeError,
        match=r"^stages\.reinforce\.roles: planer: unknown; independent asks the policy as agent, planner$",
    ):
        recipe.plays_by(StrategyFacts(roles=("planner",)), recipe.plan()[0])
    recipe.plays_by(StrategyFacts(roles=("planer",)), recipe.plan()[0])


def test_a_strategy_that_evaluates_needs_an_evaluator(tmp_path: Path) -> None:
    facts = StrategyFacts(evaluates=True)
    without = load(tmp_path, MINIMAL)
    table = '[rollout.evaluator]\nallocation = "discounted"\n[rollout.evaluator.judge]\nuse = "./judge.py"'
    recipe = load(tmp_path, MINIMAL + table)

    with pytest.raises(RecipeError, match=r"^rollout\.strategy: independent has nodes .* in \[rollout\.evaluator\]"):
        without.plays_by(facts, without.plan()[0])
    with pytest.raises(RecipeError, match=r"^stages\.collect\.strategy: \./mine\.py has nodes valued"):
        without.evaluates_for(facts, "stages.collect.strategy", "./mine.py")
    assert without.evaluator_spec is None

    recipe.plays_by(facts, recipe.plan()[0])
    assert recipe.evaluator_spec is not None
    assert recipe.evaluator_spec.used == recipe.evaluator_spec.reward().used == {"judge": "./judge.py"}
    assert list(recipe.rewards()) == ["reward", "rollout.evaluator"], "its components are checked as those of [reward]"
    recipe.suits(recipe.plan()[0], "mine", 2, AlgorithmFacts(sums_rewards=True))


@pytest.mark.parametrize(
    ("table", "used"),
    [
        pytest.param("judge = {}", {"judge": "judge"}, id="a model alone does not see the score"),
        pytest.param("goal = {}", {"goal": "goal"}, id="the score is asked for by its name"),
        pytest.param("goal = {}\njudge = {}", {"goal": "goal", "judge": "judge"}, id="both"),
        pytest.param('truth = { use = "goal" }', {"truth": "goal"}, id="under another label it is told by its name"),
    ],
)
def test_nodes_are_valued_by_what_is_named(tmp_path: Path, table: str, used: dict[str, str]) -> None:
    recipe = load(tmp_path, f"{MINIMAL}[rollout.evaluator]\ngamma = 0.5\n{table}")

    spec = recipe.evaluator_spec
    assert spec is not None
    assert (spec.used, spec.gamma) == (used, 0.5)
    on_the_wire = EvaluatorSpec.model_validate_json(spec.model_dump_json())
    assert RewardSpec.model_validate_json(on_the_wire.reward().model_dump_json()).used == used
    assert on_the_wire.reward().gamma == 0.5
    (env,) = recipe.environments
    assert recipe.reward_spec(env, 1.0, recipe.rollout.evaluator).used == used, "where an episode is worth its value"
    assert recipe.reward_spec(env, 1.0).used == {"goal": "goal"}, "[reward] has the goal without a table"


@pytest.mark.parametrize("table", ["", "judge = { enabled = false }", "goal = { enabled = false }", "gamma = 0.5"])
def test_an_evaluator_by_which_nothing_is_valued_is_refused(tmp_path: Path, table: str) -> None:
    with pytest.raises(RecipeError, match=r"rollout\.evaluator: .*no component values the nodes") as caught:
        load(tmp_path, f"{MINIMAL}[rollout.evaluator]\n{table}")
    assert "\n" not in str(caught.value)


def test_the_options_of_a_stage_stay_as_they_were_written(tmp_path: Path) -> None:
    stages = '[[stages]]\nkind = "reinforce"\nsteps = 3\nclip_low = 0.1\n[stages.kl]\ncoefficient = 0.5'
    recipe = load(tmp_path, MINIMAL, stages=stages)

    assert recipe.plan()[0].options == {"steps": 3, "clip_low": 0.1, "kl": {"coefficient": 0.5}}
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


TWO = """
[[environments]]
name = "maze"
level = "easy"
format = "dbbench"
[environments.limits]
max_turns = 4
step_timeout_s = 9.0
[[environments.schedule]]
step = 3
level = "hard"
[[environments.schedule]]
step = 5
max_turns = 8
[[environments]]
name = "maze"
label = "plain"
weight = 2.5
[environments.reward]
gamma = 0.25
[environments.reward.goal]
success = 7.0
[[environments.schedule]]
step = 4
max_turns = 6
"""


def test_one_environment_may_have_two_tables(tmp_path: Path) -> None:
    recipe = load(tmp_path, MINIMAL, TWO)

    assert [(env.name, env.title, env.weight) for env in recipe.environments] == [
        ("maze", "maze", 1.0), ("maze", "plain", 2.5)
    ]  # fmt: skip
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


def test_an_environment_has_what_the_recipe_has_and_what_it_says_itself(tmp_path: Path) -> None:
    text = MINIMAL + "max_turns = 30\nmax_response_tokens = 77\n[reward]\ngamma = 0.5"
    recipe = load(tmp_path, text, TWO)
    maze, plain = recipe.environments

    own = recipe.limits_of(maze, 1)
    assert (own.max_turns, own.max_response_tokens, own.max_context_tokens, own.step_timeout_s) == (4, 77, 1024, 9.0)
    assert recipe.limits_of(plain, 1) == recipe.rollout.limits
    assert (recipe.format_of(maze).use, recipe.format_of(plain).use) == ("dbbench", "react")
    assert (recipe.reward_spec(maze, 1.0).gamma, recipe.reward_spec(plain, 1.0).gamma) == (0.5, 0.25)
    assert recipe.reward_spec(plain, 1.0).components["goal"].options["success"] == 7.0
    assert {place: section.use for place, section in recipe.formats().items()} == {
        "rollout.format": "react", "environments.maze.format": "dbbench",
    }  # fmt: skip
    assert list(recipe.rewards()) == ["reward", "environments.plain.reward"]


@pytest.mark.parametrize(
    ("step", "levels", "turns"),
    [
        pytest.param(1, ("easy", None), (4, 30), id="as they are given"),
        pytest.param(2, ("easy", None), (4, 30), id="before the first change"),
        pytest.param(3, ("hard", None), (4, 30), id="from the step of a change on"),
        pytest.param(4, ("hard", None), (4, 6), id="each has its own"),
        pytest.param(5, ("hard", None), (8, 6), id="what a later change leaves out stays"),
        pytest.param(99, ("hard", None), (8, 6), id="after the last"),
        pytest.param(None, ("hard", None), (8, 6), id="at the end, which is what is measured"),
    ],
)
def test_a_schedule_changes_what_it_names_from_its_steps_on(
    tmp_path: Path, step: int | None, levels: tuple[str | None, ...], turns: tuple[int, ...]
) -> None:
    recipe = load(tmp_path, MINIMAL + "max_turns = 30", TWO)

    assert tuple(env.changed(step).level for env in recipe.environments) == levels
    assert tuple(recipe.limits_of(env, step).max_turns for env in recipe.environments) == turns


def test_a_level_is_not_taken_back_by_a_change_of_turns() -> None:
    changes = (ScheduledChange(step=2, level="hard"), ScheduledChange(step=4, max_turns=3))
    env = EnvironmentSection(name="maze", schedule=changes)

    assert [(env.changed(step).level, env.changed(step).max_turns) for step in (1, 2, 4)] == [
        (None, None), ("hard", None), ("hard", 3)
    ]  # fmt: skip


def test_the_strategies_of_a_run_are_those_of_its_stages_too(tmp_path: Path) -> None:
    stages = """
    [[stages]]
    kind = "collect"
    strategy = "expert"
    [[stages]]
    repeat = 2
    [[stages.stages]]
    kind = "collect"
    name = "widest"
    strategy = { use = "./widest.py", width = 3 }
    """
    found = load(tmp_path, MINIMAL, stages=stages).strategies()

    assert {place: (section.use, section.options) for place, section in found.items()} == {
        "rollout.strategy": ("independent", {}),
        "stages.collect.strategy": ("expert", {}),
        "stages.repeat.stages.widest.strategy": ("./widest.py", {"width": 3}),
    }


@pytest.mark.parametrize("strategy", ["3", "{ use = 3 }", '""'])
def test_a_strategy_without_a_name_is_told_with_its_stage(tmp_path: Path, strategy: str) -> None:
    recipe = load(tmp_path, MINIMAL, stages=f'[[stages]]\nkind = "collect"\nname = "tried"\nstrategy = {strategy}')

    with pytest.raises(RecipeError, match=r"^stages\.tried\.strategy") as caught:
        recipe.strategies()
    assert "\n" not in str(caught.value)


OWN_REWARDS = """
[[stages]]
kind = "collect"
name = "judged"
[stages.reward.judge]
use = "./judge.py"
[[stages]]
repeat = 2
[[stages.stages]]
kind = "reinforce"
reward = { allocation = "discounted", gamma = 0.5, goal = { enabled = false }, reward_model = { model = "rm" } }
[[stages.stages]]
kind = "reinforce"
name = "plain"
"""


def test_stages_have_rewards_of_their_own_in_repeats_too(tmp_path: Path) -> None:
    recipe = load(tmp_path, MINIMAL + "[rollout.evaluator.goal]", stages=OWN_REWARDS)

    assert {place: reward.used for place, reward in recipe.rewards().items()} == {
        "reward": {"goal": "goal"},
        "rollout.evaluator": {"goal": "goal"},
        "stages.judged.reward": {"goal": "goal", "judge": "./judge.py"},
        "stages.repeat.stages.reinforce.reward": {"reward_model": "reward_model"},
    }


def test_the_reward_of_a_stage_takes_the_place_of_all_others(tmp_path: Path) -> None:
    recipe = load(tmp_path, MINIMAL, TWO, stages=OWN_REWARDS)
    own = recipe.rewards()["stages.repeat.stages.reinforce.reward"]

    for env in recipe.environments:
        spec = recipe.reward_spec(env, 1.0, own)
        assert (spec.used, spec.allocation, spec.gamma) == ({"reward_model": "reward_model"}, "discounted", 0.5)


def test_an_algorithm_is_asked_about_the_reward_that_its_stage_has(tmp_path: Path) -> None:
    recipe = load(tmp_path, MINIMAL, stages=OWN_REWARDS)
    _, own, plain, *_ = recipe.plan()
    facts = AlgorithmFacts(sums_rewards=True)

    recipe.suits(plain, "mine", 2, facts)
    with pytest.raises(RecipeError, match=r'^stages\.repeat\.stages\.reinforce\.reward\.allocation = "discounted"'):
        recipe.suits(own, "mine", 2, facts)
    normalised = OWN_REWARDS.replace('"discounted"', '"discounted_normalised"')
    other = load(tmp_path, MINIMAL + '[reward]\nallocation = "discounted"', stages=normalised)
    other.suits(other.plan()[1], "mine", 2, facts)


@pytest.mark.parametrize("reward", ["3", "{ alocation = 1 }", "{ goal = { use = 3 } }", '{ gamma = "much" }'])
def test_what_is_wrong_with_the_reward_of_a_stage_is_told_with_its_place(tmp_path: Path, reward: str) -> None:
    recipe = load(tmp_path, MINIMAL, stages=f'[[stages]]\nkind = "collect"\nname = "tried"\nreward = {reward}')

    with pytest.raises(RecipeError, match=r"^stages\.tried\.reward") as caught:
        recipe.rewards()
    assert "\n" not in str(caught.value)


def test_every_component_goes_onto_the_wire(tmp_path: Path) -> None:
    terms = """
    allocation = "uniform_positive"
    gamma = 0.25
    environment = {weight = 1.5, on_error = "zero", credit = "per_turn"}
    goal = {enabled = false, success = 3.0}
    brevity = {use = "./brevity.py", limits = {low = 1, high = [2, 3]}}
    """
    recipe = load(tmp_path, f"{MINIMAL}[reward]\n{terms}")
    spec = recipe.reward_spec(recipe.environments[0], 1.0)

    assert spec.model_dump() == recipe.reward.model_dump()
    assert RewardSpec.model_validate_json(spec.model_dump_json()) == spec
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe
    assert spec.used == {"environment": "environment", "brevity": "./brevity.py"}
    assert spec.components["brevity"].options == {"enabled": True, "limits": {"low": 1, "high": [2, 3]}}


def test_the_goal_counts_unless_it_is_switched_off(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL).reward.used == {"goal": "goal"}
    assert load(tmp_path, MINIMAL + "[reward.format]").reward.used == {"goal": "goal", "format": "format"}
    assert load(tmp_path, MINIMAL + "[reward.goal]\nenabled = false").reward.used == {}


def test_adapters(tmp_path: Path) -> None:
    table = '[model.lora]\nrank = 8\nalpha = 4\ntarget_modules = ["q_proj", "mlp.up_proj"]\n'

    given = load(tmp_path, MINIMAL + table).model.lora
    assert given is not None
    assert (given.rank, given.alpha, given.target_modules) == (8, 4.0, ("q_proj", "mlp.up_proj"))
    usual = load(tmp_path, MINIMAL + "[model.lora]\n").model.lora
    assert usual is not None
    assert (usual.rank, usual.alpha, usual.dropout, usual.target_modules) == (16, 32.0, 0.0, "all-linear")
    assert (usual.dtype, usual.max_loras) == ("float32", 2)


def test_the_adapters_of_the_page_about_them(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "lora.md").read_text(encoding="utf-8")
    table = page.split("```toml\n")[1].split("```")[0]

    lora = load(tmp_path, 'name = "r"\n' + table).model.lora

    assert lora is not None
    assert (lora.rank, lora.alpha, len(lora.target_modules)) == (32, 64.0, 4)


def test_a_recipe_without_adapters_is_written_as_it_always_was(tmp_path: Path) -> None:
    """Its hash binds a run's directory."""
    recipe = load(tmp_path, MINIMAL)

    assert recipe.model.lora is None
    assert set(recipe.model.model_dump(mode="json")) == {"path", "scratch"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ranks = 8", "model.lora.ranks"),
        ("rank = 0", "model.lora.rank"),
        ("rank = 513", "model.lora.rank"),
        ("dropout = 1.0", "model.lora.dropout"),
        ("alpha = 0", "model.lora.alpha"),
        ("target_modules = []", "model.lora.target_modules"),
        ('target_modules = "q_proj"', "model.lora.target_modules"),
        ('target_modules = [".*"]', "model.lora.target_modules"),
        ("max_loras = 1", "model.lora.max_loras"),
    ],
)
def test_a_mistake_in_the_adapters_is_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load(tmp_path, f"{MINIMAL}[model.lora]\n{line}\n")


def test_several_mistakes_are_all_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as error:
        load(tmp_path, MINIMAL + '[scale]\nrewards = 0\ngateways = "x"\n[publish]\ntypo = 1')

    assert all(key in str(error.value) for key in ("scale.rewards", "scale.gateways", "publish.typo"))


def test_a_recipe_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"no recipe at .*absent\.toml"):
        load_recipe(tmp_path / "absent.toml")


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(RecipeError, match=r"recipe\.toml is not readable TOML"):
        load_recipe(path)
