"""From a recipe to its stages: what does not go together is told before anything is started, in one line."""

import re
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

import pytest
from gymfleet_contracts.recipe import RecipeError
from gymfleet_contracts.rollout import Budget, Sampling, StrategySpec
from gymfleet_contracts.session import Capabilities, EnvironmentSpec
from gymfleet_kit.plugins import PluginError
from gymfleet_trainer.run.group_planner import PlannedGroup
from gymfleet_trainer.run.plan import STAGES, own_sources, require_held_out, stages_of
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.stage import Plays
from gymfleet_trainer.stages.collect import Collect
from gymfleet_trainer.stages.filter import Filter
from gymfleet_trainer.stages.measure import Measure, measurement_of
from gymfleet_trainer.stages.reinforce import Reinforce
from gymfleet_trainer.stages.sft import Supervised

from tests.fixtures.paths import ROOT
from tests.fixtures.scored import SMALL, make_recipe
from tests.fixtures.trainer_plans import make_planner, stage_of

MAZE: Final = EnvironmentSpec(
    name="maze", version="1", summary="A maze", instructions="Walk.", max_turns=8, levels=("small", "large"),
    default_level="small", splits={"train": 9, "validation": 9, "test": 40},
    capabilities=Capabilities(deterministic=True),
)  # fmt: skip
COLLECT: Final = {"kind": "collect", "name": "shown", "strategy": "expert"}
SFT: Final = {"kind": "sft", "data": "shown"}
OWN: Final = """
from gymfleet_contracts.stages import StageFacts
from gymfleet_trainer.stage import Stage, StageOptions


class Options(StageOptions):
    data: str
    judge: str = "strict"


class Judged(Stage[Options]):
    \"\"\"Keeps what a judge likes.\"\"\"

    Options = Options
    facts = StageFacts(reads=True, leaves=("episodes",), plugins={"judge": "component"})

    async def run(self, run):
        run.leave(run.episodes())
"""


def test_those_that_come_with_gymfleet() -> None:
    assert STAGES.included() == [
        "augment", "bradley_terry", "collect", "filter", "generative_judge", "measure", "preference", "process_reward",
        "reinforce", "sft",
    ]  # fmt: skip


def test_no_more_tasks_are_measured_than_are_held_out() -> None:
    def measured(num_tasks: int, on_the_way: int, **options: str) -> None:
        on = {"num_tasks": on_the_way, "every_steps": 2, **options}
        reinforce = {"kind": "reinforce", "name": "learn", "steps": 5, "measure": on}
        recipe = make_recipe(stages=[reinforce, {"kind": "measure", "name": "after", "num_tasks": num_tasks}])
        require_held_out(recipe, [MAZE], stages_of(recipe))

    measured(40, 40)
    measured(40, 41, level="large")  # of which nobody says how many there are
    for given, table in (((41, 40), "stages.after"), ((40, 41), "stages.learn")):
        told = f"{table} measures 41 tasks, and maze has 40 in its test split: give num_tasks of at most 40"
        with pytest.raises(RecipeError, match=re.escape(told)):
            measured(*given)


def test_the_stages_of_a_recipe_in_their_order_with_their_options() -> None:
    improve = {"repeat": 2, "name": "round", "stages": [
        {"kind": "collect", "num_tasks": 7, "samples_per_task": 4}, {"kind": "filter", "data": "collect"},
        {"kind": "sft", "data": ["shown", "filter"], "epochs": 2},
    ]}  # fmt: skip
    reinforce = {"kind": "reinforce", "name": "learn", "steps": 5, "clip_low": 0.1}

    stages = stages_of(make_recipe(stages=[COLLECT, improve, reinforce, {"kind": "measure"}]))

    assert [(stage.name, type(stage)) for stage in stages] == [
        ("shown", Collect),
        ("round1.collect", Collect), ("round1.filter", Filter), ("round1.sft", Supervised),
        ("round2.collect", Collect), ("round2.filter", Filter), ("round2.sft", Supervised),
        ("learn", Reinforce), ("measure", Measure),
    ]  # fmt: skip
    assert [stage.data for stage in stages] == [
        (), (), ("round1.collect",), ("shown", "round1.filter"), (), ("round2.collect",), ("shown", "round2.filter"),
        (), (),
    ]  # fmt: skip
    assert (stages[4].options.num_tasks, stages[6].options.epochs, stages[7].options.steps) == (7, 2, 5)
    assert stages[7].algorithm.options.clip_low == 0.1  # type: ignore[attr-defined]
    assert (stages[6].table, stages[6].kind) == ("stages.round.stages.sft", "sft")


@pytest.mark.parametrize(
    ("stages", "error", "reason"),
    [
        pytest.param(
            [{"kind": "reinforse"}], PluginError,
            r"there is no stage 'reinforse'; known: augment, bradley_terry, collect, filter, generative_judge, m",
            id="no such kind",
        ),
        pytest.param(
            [COLLECT, {**SFT, "epoch": 3}], PluginError,
            r"^stages\.sft\.epoch: Extra inputs are not permitted \(the options of sft: epochs, ", id="misspelt option",
        ),
        pytest.param(
            [COLLECT, {**SFT, "name": "imitate", "epochs": 0}], PluginError, r"^stages\.imitate\.epochs: .*than 0$",
            id="an option out of bounds",
        ),
        pytest.param(
            [COLLECT, {"kind": "sft"}], RecipeError, r"^stages\.sft: data is missing: give the name of a stage before",
            id="nothing to imitate",
        ),
        pytest.param(
            [{"kind": "measure"}, {**SFT, "data": "measure"}], RecipeError,
            r"^stages\.sft: data = 'measure': that stage leaves no episodes$", id="data of a stage without any",
        ),
        pytest.param(
            [{"kind": "reinforce", "clip_hihg": 0.1}], PluginError,
            r"^stages\.reinforce\.clip_hihg: Extra inputs .*\(the options of grpo: ", id="misspelt algorithm's option",
        ),
        pytest.param(
            [{"kind": "reinforce", "name": "late", "algorithm": "grop"}], PluginError,
            "there is no algorithm 'grop'; known: .*grpo.*; or give", id="no such algorithm",
        ),
        pytest.param(
            [{"kind": "reinforce", "group_size": 1}], RecipeError,
            r"^stages\.reinforce\.group_size must be at least 2 for grpo: a group of 1 has no baseline$",
            id="groups of one",
        ),
        pytest.param(
            [{"kind": "reinforce", "algorithm": "dpo", "group_size": 1}], RecipeError,
            r"^stages\.reinforce\.group_size must be at least 2 for dpo", id="groups of one have no pairs",
        ),
        pytest.param(
            [COLLECT, {"kind": "preference", "data": "shown", "algorithm": "grpo"}], RecipeError,
            r"^stages\.preference\.algorithm: grpo does not learn from preferences; dpo", id="preferences by grpo",
        ),
        pytest.param(
            [{"kind": "reinforce", "name": "late", "algorithm": "rloo", "group_size": 1}], RecipeError,
            r"^stages\.late\.group_size must be at least 2 for rloo", id="groups of one in a stage with a name",
        ),
        pytest.param(
            [{"kind": "reinforce", "algorithm": "vapo", "steps": 50}], RecipeError,
            r"^stages\.reinforce\.critic\.warmup_steps: all 50 steps would train the critic alone; give fewer$",
            id="a policy that is never trained",
        ),
        pytest.param(
            [{"kind": "reinforce", "algorithm": "ppo", "group_size": 1, "keep_share": 0.5}], RecipeError,
            r"^stages\.reinforce\.keep_share keeps the groups whose rewards differ", id="the spread of groups of one",
        ),
        pytest.param(
            [{"kind": "reinforce", "groups_per_step": 8, "keep_share": 0.25, "updates_per_step": 4}], RecipeError,
            r"^stages\.reinforce\.updates_per_step = 4: keep_share = 0\.25 leaves 2 of the batch's 8 groups, and",
            id="updates of groups that are left out",
        ),
        pytest.param(
            [{"kind": "reinforce", "measure": {"every_step": 3}}], PluginError,
            r"stages\.reinforce\.measure\.every_step", id="misspelt measurement on the way",
        ),
        pytest.param(
            [{"kind": "reinforce", "updates_per_step": 99}], PluginError,
            r"^stages\.reinforce: .*updates_per_step must not exceed groups_per_step$", id="updates of no group",
        ),
        pytest.param(
            [{"kind": "reinforce", "groups_per_step": 1000, "group_size": 9}], RecipeError,
            r"^stages\.reinforce: 9000 episodes would be open at once; at most 8000 can be$", id="9,000 in training",
        ),
        pytest.param(
            [{"kind": "reinforce", "groups_per_step": 500, "group_size": 9, "max_staleness": 1}], RecipeError,
            r"^stages\.reinforce: 9000 episodes would be", id="9,000 in training, half of them in advance",
        ),
        pytest.param(
            [{"kind": "measure", "name": "before", "num_tasks": 900, "samples_per_task": 10}], RecipeError,
            r"^stages\.before: 9000 episodes would be", id="9,000 in a measurement",
        ),
        pytest.param(
            [{"kind": "reinforce", "measure": {"every_steps": 9, "num_tasks": 9000}}], RecipeError,
            r"^stages\.reinforce: 9000 episodes would be", id="9,000 on the way",
        ),
        pytest.param(
            [{"kind": "collect", "strategy": {"use": ""}}], RecipeError,
            r"^stages\.collect\.strategy\.use: String should have at least 1 character$", id="a strategy without name",
        ),
        pytest.param(
            [{"kind": "./nowhere.py", "name": "own"}], PluginError, r"^there is no file nowhere\.py$", id="no file",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_told_in_one_line(
    stages: list[dict[str, Any]], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason) as caught:
        stages_of(make_recipe(stages=stages))

    assert "\n" not in str(caught.value)


def test_a_spread_may_not_lower_a_schedule_s_temperature_too_far() -> None:
    low = {"exploration": {"temperature": {"start": 1.0, "end": 0.015, "steps": 3}}}
    stages_of(make_recipe(rl=low))
    stages_of(make_recipe(rl=low, rollout={"sampling": {"spread": 0.3}}))

    with pytest.raises(
        RecipeError, match=r"^stages\.reinforce\.exploration\.temperature: with .* down to 0\.0075, and"
    ):
        stages_of(make_recipe(rl=low, rollout={"sampling": {"spread": 0.5}}))


def test_as_many_episodes_as_may_be_open_are_allowed() -> None:
    stages_of(make_recipe(rl={"groups_per_step": 1000, "group_size": 8}))
    on_the_way = {"every_steps": 3, "num_tasks": 9000}

    stages_of(make_recipe(rl={"steps": 3, "measure": on_the_way}))  # nothing is measured before it ends


def test_episodes_are_open_until_the_next_checkpoint() -> None:
    rl = {"groups_per_step": 500, "group_size": 6}
    stages_of(make_recipe(rl=rl, checkpoint={"every_steps": 2}))

    with pytest.raises(RecipeError, match=r"^stages\.reinforce: 9000 episodes would be open at once"):
        stages_of(make_recipe(rl=rl, checkpoint={"every_steps": 3}))
    with pytest.raises(RecipeError, match=r"^stages\.reinforce: 9000 episodes would be open at once"):
        stages_of(make_recipe(rl=rl | {"max_staleness": 1}, checkpoint={"every_steps": 2}))


def test_a_measurement_of_several_environments_holds_the_episodes_of_all() -> None:
    stages = [{"kind": "measure", "num_tasks": 3000}]
    environments = [{"name": name} for name in ("maze", "babyai", "wordle")]
    stages_of(make_recipe(stages=stages, environments=environments[:2]))

    with pytest.raises(RecipeError, match=r"stages\.measure: 9000 episodes"):
        stages_of(make_recipe(stages=stages, environments=environments))


@pytest.mark.parametrize(
    ("temperature", "reason"), [(0, "= 0 cannot be trained on: greedy"), (0.001, "below 0.01 the engine samples")]
)
def test_greedy_replies_cannot_be_trained_on_but_played(temperature: float, reason: str) -> None:
    rollout = {"sampling": {"temperature": temperature}}

    with pytest.raises(RecipeError, match=reason) as caught:
        stages_of(make_recipe(rollout=rollout))
    assert "\n" not in str(caught.value)
    stages_of(make_recipe(rollout=rollout, rl=None))
    stages_of(make_recipe(rl=None, stages=[{"kind": "measure", "sampling": {"temperature": 0}}]))


def test_an_algorithm_and_the_rewards_of_all_environments_agree() -> None:
    own = [{"name": "maze"}, {"name": "babyai", "reward": {"allocation": "discounted"}}]

    with pytest.raises(RecipeError, match=r'^reward\.allocation = "discounted" .*give "discounted_normalised"'):
        stages_of(make_recipe(reward={"allocation": "discounted"}))
    with pytest.raises(RecipeError, match=r"^environments\.babyai\.reward\.allocation = .* for grpo"):
        stages_of(make_recipe(environments=own))
    critic = {"algorithm": "ppo", "group_size": 1, "critic": {"gamma": 0.5}}
    recipe = make_recipe(rl=critic, reward={"allocation": "discounted"})
    assert stage_of(recipe, Reinforce).algorithm.gamma == 0.5


def test_a_reply_format_that_does_not_exist_is_told_with_its_table() -> None:
    with pytest.raises(PluginError, match="there is no format 'morse'"):
        stages_of(make_recipe(environments=[{"name": "maze", "format": "morse"}]))


def test_a_stage_of_somebodys_own_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "judged.py"
    path.write_text(OWN)

    _, own, sft = stages_of(
        make_recipe(stages=[COLLECT, {"kind": str(path), "data": "shown"}, {**SFT, "data": "judged"}])
    )

    assert (own.name, own.data, sft.data) == ("judged", ("shown",), ("judged",))
    with pytest.raises(PluginError, match=r"stages\.judged\.jugde: .*\(the options of .*judged\.py: data, judge\)$"):
        stages_of(make_recipe(stages=[COLLECT, {"kind": str(path), "data": "shown", "jugde": "mild"}]))


def test_what_is_collected_is_the_experts_or_the_policys() -> None:
    shown = {**COLLECT, "num_tasks": 5}
    tried = {"kind": "collect", "strategy": {"use": "./best.py", "width": 3}, "samples_per_task": 4}

    first, second = stages_of(make_recipe(stages=[shown, tried]))

    assert first.plays() == {"": Plays(5, 1, "demonstration", StrategySpec(use="expert"), Sampling(temperature=1.0))}
    assert second.plays() == {
        "": Plays(40, 4, "collect", StrategySpec(use="./best.py", options={"width": 3}), Sampling(temperature=1.0))
    }
    assert first.plays()[""].by_expert
    assert not second.plays()[""].by_expert


def test_each_round_of_a_repeat_may_play_other_tasks() -> None:
    collect = {"kind": "collect", "num_tasks": 5, "budget": {"env_steps": 64}}
    repeat = {"repeat": 3, "stages": [{**collect, "new_tasks": True}, {**collect, "name": "same"}]}

    planned = [stage.plays()[""] for stage in stages_of(make_recipe(stages=[repeat]))]

    assert [one.first_task for one in planned] == [0, 0, 5, 0, 10, 0]
    assert {one.budget for one in planned} == {Budget(env_steps=64)}


JUDGED: dict[str, Any] = {"reward": {"judge": {"use": "./judge.py"}}}


def test_a_stage_that_plays_may_have_a_reward_of_its_own() -> None:
    on_the_way = {"every_steps": 1, "num_tasks": 3}
    kinds: tuple[dict[str, Any], ...] = (
        {"kind": "collect"}, {"kind": "measure"}, {"kind": "reinforce", **SMALL, "measure": on_the_way},
    )  # fmt: skip
    for own in ({}, JUDGED):
        recipe = make_recipe(stages=[{**kind, **own} for kind in kinds])
        planner, stages = make_planner(recipe), stages_of(recipe)
        played = [
            planner.play(stage.prefix(label), plays, 0, 0, 1)
            for stage in stages
            for label, plays in stage.plays().items()
        ]
        state = RunState(run_id="run", recipe_hash="")
        trained = planner.train(cast("Reinforce", stages[2]).plan(state), PlannedGroup(0))

        used = {"goal": "goal", **({"judge": "./judge.py"} if own else {})}
        assert len(played) == 4, "a collection, a measurement, two on the way"
        assert [request.reward.used for request in (*played, trained)] == [used] * 5


def test_a_checkpoint_is_measured_as_the_last_measurement_says() -> None:
    before, after = {"kind": "measure", "name": "before"}, {"kind": "measure", "num_tasks": 7, "samples_per_task": 3}
    recipe = make_recipe(stages=[before, after])

    assert measurement_of(recipe).plays() == Plays(7, 3)
    assert measurement_of(recipe, 5).plays() == Plays(5, 1)
    assert measurement_of(make_recipe()).plays() == Plays(200, 1)
    judged = measurement_of(make_recipe(stages=[{**after, **JUDGED}])).plays().reward
    assert judged is not None
    assert judged.used == {"goal": "goal", "judge": "./judge.py"}


# --- the files that a run is bound to


def own_strategy(path: Path | str) -> dict[str, Any]:
    return {"strategy": {"use": str(path)}}


def test_what_comes_with_gymfleet_is_not_pinned() -> None:
    assert own_sources(make_recipe()) == {}
    assert own_sources(make_recipe(sft={}, reward={"format": {}}, rollout={"format": "dbbench"})) == {}


def test_the_files_of_plugins_are_pinned(tmp_path: Path) -> None:
    algorithm, component, absent = (tmp_path / name for name in ("mine.py", "brevity.py", "absent.py"))
    algorithm.write_text("1 / 0  # own_sources has no need to import it")
    component.write_text("1 / 0  # which the trainer does not import")
    reward = {
        "goal": {},
        "brevity": {"use": str(component)},
        "class": {"use": "tests.fixtures.scored:Component"},
        "elsewhere": {"use": str(absent)},
        "off": {"use": "./off.py", "enabled": False},
        "nowhere": {"use": "no.module:Component"},
    }

    pinned = own_sources(make_recipe(rl={"algorithm": str(algorithm)}, reward=reward))

    scored = ROOT / "tests/fixtures/scored.py"
    assert pinned.keys() == {str(algorithm), str(component), str(absent), str(scored)}
    assert pinned[str(component)] == sha256(component.read_bytes()).hexdigest()
    assert pinned[str(absent)] == "", "it is the reward services' alone"


def test_every_place_that_names_a_plugin_is_looked_at(tmp_path: Path) -> None:
    names = ("mine", "best", "widest", "format", "theirs", "component", "judged", "staged")
    files = {name: tmp_path / f"{name}.py" for name in names}
    for path in files.values():
        path.write_text("1 / 0  # never imported here")
    files["judged"].write_text(OWN)
    env = {"name": "babyai", "format": str(files["theirs"]), "reward": {"own": {"use": str(files["component"])}}}
    stages: list[dict[str, Any]] = [
        {"kind": "collect", "strategy": str(files["widest"]), "reward": {"own": {"use": str(files["staged"])}}},
        {"kind": str(files["judged"]), "data": "collect", "judge": "tests.models:Judge"},
        {"repeat": 2, "stages": [{"kind": "reinforce", "algorithm": str(files["mine"])}]},
    ]
    rollout = {**own_strategy(files["best"]), "format": {"use": str(files["format"])}}

    pinned = own_sources(make_recipe(environments=[{"name": "maze"}, env], stages=stages, rollout=rollout))

    assert pinned.keys() == {*map(str, files.values()), str(ROOT / "tests/models.py")}
    assert all(pinned[str(path)] == sha256(path.read_bytes()).hexdigest() for path in files.values())


def test_a_plugin_that_is_a_table_is_pinned_too(tmp_path: Path) -> None:
    strategy = tmp_path / "best.py"
    strategy.write_text("")

    pinned = own_sources(make_recipe(stages=[{"kind": "collect", "strategy": {"use": str(strategy), "width": 3}}]))

    assert pinned.keys() == {str(strategy)}


def test_a_module_is_pinned_by_its_file_where_it_is_found() -> None:
    assert own_sources(make_recipe(rl=None, rollout=own_strategy("tests.models:Mine"))).keys() == {
        str(ROOT / "tests/models.py")
    }
    assert own_sources(make_recipe(rollout=own_strategy("nowhere_at_all:Mine"))) == {}


def test_what_was_changed_has_another_hash(tmp_path: Path) -> None:
    algorithm, reply_format = tmp_path / "mine.py", tmp_path / "format.py"
    algorithm.write_text("")
    reply_format.write_text("")
    recipe = make_recipe(rl={"algorithm": str(algorithm)}, rollout={"format": {"use": str(reply_format)}})
    before = own_sources(recipe)

    assert own_sources(recipe) == before
    reply_format.write_text("# changed\n")
    after = own_sources(recipe)

    assert {path for path in before if before[path] != after[path]} == {str(reply_format)}


@pytest.mark.parametrize(
    ("options", "table"),
    [
        ({"optimizer": {"master_dtype": "bfloat16"}}, "stages.reinforce.optimizer"),
        (
            {"algorithm": "ppo", "critic": {"optimizer": {"master_dtype": "bfloat16"}}},
            "stages.reinforce.critic.optimizer",
        ),
    ],
)
def test_weights_are_not_held_in_less_than_they_are_computed_with(options: dict[str, Any], table: str) -> None:
    with pytest.raises(RecipeError, match=f'^{table}.master_dtype = "bfloat16" and trainer_dtype = "float32": [^\n]*$'):
        stages_of(make_recipe(rl={**SMALL, **options}))

    assert stages_of(make_recipe(rl={**SMALL, **options}, trainer_dtype="bfloat16"))
