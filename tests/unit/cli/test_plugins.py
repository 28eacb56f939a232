"""The command line checks the plug-ins of a recipe: before a process is started, and without importing them."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gymfleet_cli.console import CliError
from gymfleet_cli.plugin_checks import check_plugins
from gymfleet_cli.plugins import description
from gymfleet_cli.recipes import load_checked
from gymfleet_contracts.recipe import Recipe, RecipeError

from tests.fixtures.paths import ROOT
from tests.fixtures.scored import make_recipe
from tests.unit.trainer.test_algorithm_plugins import MINE

STRATEGY = """
from gymfleet_rollout.strategy import Strategy, StrategyOptions


class Options(StrategyOptions):
    width: int = 2


class Mine(Strategy[Options]):
    Options = Options

    async def play(self, ctx):
        ctx.export(await ctx.open())
"""


STAGE = """
from gymfleet_contracts.stages import StageFacts
from gymfleet_trainer.stage import Stage, StageOptions
from pydantic import ConfigDict, JsonValue


class Options(StageOptions):
    model_config = ConfigDict(extra="allow")

    weight: float = 1.0
    group_size: int = 4
    learner: str = "rloo"
    by: str | dict[str, JsonValue] | None = None


class Weigh(Stage[Options]):
    Options = Options
    facts = StageFacts(plugins={"learner": "algorithm", "by": "strategy"}, passes_on="learner")

    async def run(self, run):
        pass
"""


@pytest.fixture(scope="module")
def cache(known_plugins: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(known_plugins, tmp_path_factory.mktemp("own") / "cache")


@pytest.fixture(autouse=True)
def _cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture
def no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not cached cannot be known."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a service was asked")

    monkeypatch.setattr(subprocess, "run", refuse)


@pytest.mark.parametrize(
    ("rl", "reason"),
    [
        (
            {"gruop_size": 4},
            r"^gruop_size: unknown; grpo knows: aggregation, .*dynamic_sampling.*; reinforce knows: steps, .*_size",
        ),
        (
            {"kl": {"weight": 1.0}},
            r"^kl\.weight: unknown; grpo knows: coefficient, estimator, placement, .*every$",
        ),
        ({"clip_low": 0}, r"^clip_low: 0 is less than or equal to the minimum of 0$"),
        (
            {"aggregation": "mean", "clip_low": "x"},
            r"^aggregation: 'mean' is not .*; stages\.reinforce\.clip_low: 'x' is not",
        ),
        ({"kl": {"coefficient": 0.1, "estimator": "k1"}}, r'^kl: estimator = "k1" has no gradient in expectation'),
        ({"algorithm": "grop"}, "^algorithm: there is no algorithm 'grop'; known: .*grpo.*; or give"),
        ({"algorithm": "./nothing.py"}, "^algorithm: there is no file nothing.py"),
        ({"algorithm": 3}, "^algorithm: 3 is not of type 'string'$"),
        ({"group_size": 1}, r"^group_size must be at least 2 for grpo"),
        ({"steps": "many"}, r"^steps: 'many' is not of type 'integer'$"),
        ({"updates_per_step": 40}, r"^: updates_per_step <= groups_per_step does not hold: 40, 32$"),
        (
            {"measure": {"every_steps": 3, "tasks": 2}},
            r"^measure\.tasks: unknown; reinforce knows: num_tasks, .*every_steps$",
        ),
        ({"measure": 3}, r"^measure: 3 is not valid under any"),
    ],
)
def test_what_is_wrong_is_one_line(rl: dict[str, Any], reason: str) -> None:
    with pytest.raises(RecipeError) as caught:
        check_plugins(make_recipe(rl={"group_size": 4, **rl}))

    told = str(caught.value)
    assert "\n" not in told
    assert re.search(reason, told.removeprefix("stages.reinforce").removeprefix("."))
    assert told.startswith("stages.reinforce")


@pytest.mark.parametrize(
    "rl",
    [
        {},
        {"kl": {"coefficient": 0.1, "estimator": "k1", "placement": "reward"}},
        {"kl": {"estimator": "k1"}},
        {"algorithm": "ppo", "critic": {"gamma": 0.9, "optimizer": {"betas": [0.5, 0.9]}}, "dual_clip": 2},
    ],
)
def test_what_is_sound_is_taken(rl: dict[str, Any]) -> None:
    check_plugins(make_recipe(rl={"group_size": 4, **rl}))


@pytest.mark.parametrize(
    ("reward", "reason"),
    [
        (
            {"goal": {"sucess": 1.0}},
            r"^reward\.goal\.sucess: unknown; goal knows: enabled, weight, on_error, success, ",
        ),
        ({"goal": {"success": "1"}}, r"^reward\.goal\.success: '1' is not of type 'number'$"),
        ({"short": {"use": "length", "shape": "x"}}, r"^reward\.short\.shape: 'x' is not one of"),
        ({"length": {"max_tokens": 10}}, r"^reward\.length: min_tokens <= max_tokens does not hold: 20, 10$"),
        (
            {"brevty": {}},
            r"^reward\.brevty: there is no component 'brevty'; known: accuracy, action_path, action_use, bleu,",
        ),
        ({"brevity": {"use": "./nothing.py"}}, r"^reward\.brevity: there is no file nothing.py"),
    ],
)
def test_what_is_wrong_with_a_component_is_one_line(reward: dict[str, Any], reason: str) -> None:
    with pytest.raises(RecipeError, match=reason) as caught:
        check_plugins(make_recipe(rl=None, reward=reward))
    own = {"kind": "collect", "reward": reward}
    place = reason.replace("^", r"^stages\.turns\.stages\.collect\.", 1)
    with pytest.raises(RecipeError, match=place):
        check_plugins(make_recipe(stages=[{"repeat": 2, "name": "turns", "stages": [own]}]))

    assert "\n" not in str(caught.value)


_MONTE_CARLO: dict[str, Any] = {"algorithm": "monte_carlo", "group_size": 1}
_FORKS: dict[str, Any] = {"strategy": {"use": "forks"}, "evaluator": {"goal": {}}}


def test_what_was_rejected_is_asked_of_strategies_that_search() -> None:
    def collecting(strategy: str) -> Recipe:
        stages = [{"kind": "collect", "strategy": strategy, "rejected": True}]
        return make_recipe(stages=stages, rollout={"evaluator": {"goal": {}}})

    check_plugins(collecting("mcts"))
    with pytest.raises(
        RecipeError, match=r"^stages\.collect\.rejected: ranked plays each episode by itself and rejects"
    ):
        check_plugins(collecting("ranked"))


def test_what_asks_no_policy_measures_none() -> None:
    def playing(kind: str) -> Recipe:
        stages = [{"kind": kind, "name": "it", "strategy": "go_explore", "num_tasks": 4}]
        return make_recipe(rl=None, stages=stages, rollout={"evaluator": {"goal": {}}})

    check_plugins(playing("collect"))
    with pytest.raises(RecipeError, match=r"^stages\.it\.strategy: go_explore writes .* is of the policy: "):
        check_plugins(playing("measure"))


def test_trees_are_compared_with_some_weight() -> None:
    rl = {"algorithm": "tree_grpo", "group_size": 2, "intra_weight": 0.0}

    check_plugins(make_recipe(rl=rl))
    with pytest.raises(
        RecipeError, match=r"^stages\.reinforce: intra_weight and inter_weight are both 0, which leaves"
    ):
        check_plugins(make_recipe(rl={**rl, "inter_weight": 0.0}))


@pytest.mark.parametrize(
    ("rl", "rollout", "reason"),
    [
        (
            _MONTE_CARLO, {},
            r"^stages\.reinforce\.algorithm: monte_carlo learns from values of states, and independent says none: ",
        ),
        (_MONTE_CARLO, {"strategy": {"use": "forks"}}, r"^rollout\.strategy: forks has nodes valued by the reward"),
        (
            {**_MONTE_CARLO, "kl": {"coefficient": 0.1, "placement": "reward"}}, _FORKS,
            r"^stages\.reinforce: kl: values of states hold no KL estimate: give placement",
        ),
        (
            {**_MONTE_CARLO, "exploration": {"novelty": {"weight": 0.1}}}, _FORKS,
            r"^stages\.reinforce\.exploration\.novelty: monte_carlo compares rewards with values of states, which",
        ),
        (
            _MONTE_CARLO, {**_FORKS, "strategy": {"use": "forks", "train_continuations": True, "skip": 1}},
            r"^rollout\.strategy: train_continuations needs the value of the first state: give skip = 0",
        ),
    ],
)  # fmt: skip
def test_values_of_states_come_from_a_strategy_that_says_them(
    rl: dict[str, Any], rollout: dict[str, Any], reason: str
) -> None:
    check_plugins(make_recipe(rl=_MONTE_CARLO, rollout=_FORKS))

    with pytest.raises(RecipeError, match=reason):
        check_plugins(make_recipe(rl=rl, rollout=rollout))


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (
            {"use": "nothing"},
            r"^rollout\.strategy: there is no strategy 'nothing'; known: beam, best_of_n, dfsdt, expert, forks",
        ),
        ({"widht": 1}, r"^rollout\.strategy\.widht: unknown; independent knows: no options$"),
        ({"use": "expert"}, r"^rollout\.strategy: expert writes the replies or has the expert write them, and"),
        ({"use": "./nothing.py"}, "there is no file nothing.py"),
    ],
)
def test_a_strategy_that_cannot_be_used_is_one_line(strategy: dict[str, Any], reason: str) -> None:
    with pytest.raises(RecipeError, match=reason) as caught:
        check_plugins(make_recipe(rollout={"strategy": strategy}))

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"use": "tags", "actoin_tag": "a"},
            r"^rollout\.format\.actoin_tag: unknown; tags knows: thought_tag, act",
        ),
        ({"use": "tags", "action_tag": "a b"}, r"^rollout\.format\.action_tag: 'a b' does not match "),
        ({"sign": "$"}, r"^rollout\.format\.sign: unknown; react knows: no options$"),
        (
            {"use": "morse"},
            r"^rollout\.format: there is no format 'morse'; known: agentbench_kg, agentbench_os, agentgym, dbbench, ",
        ),
        ({"use": "./nothing.py"}, "there is no file nothing.py"),
    ],
)
def test_what_is_wrong_with_a_reply_format_is_one_line(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(RecipeError, match=reason) as caught:
        check_plugins(make_recipe(rl=None, rollout={"format": given}))

    assert "\n" not in str(caught.value)


BACKEND = """
from gymfleet_rollout.backend import BackendOptions, InferenceBackend


class Options(BackendOptions):
    width: int = 2


class Mine(InferenceBackend[Options]):
    Options = Options

    def engine(self, replica, config):
        raise AssertionError("no engine is made by a check")
"""


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"backend": "sever"},
            r"^inference\.backend: there is no backend 'sever'; known: embedded, server; or give package",
        ),
        ({"backend": "./nothing.py"}, r"^inference\.backend: there is no file nothing\.py$"),
        (
            {"dtyp": "float32"},
            r"^inference\.dtyp: unknown; embedded knows: no options; \[inference\] knows: dtype, .*, backend$",
        ),
        ({"urls": ["http://a:1"]}, r"^inference\.urls: unknown; embedded knows: no options; "),
        ({"backend": "server"}, r"^inference: give urls, or discover, as a list of the vLLM servers that there are$"),
        ({"backend": "server", "urls": []}, r"^inference: give urls, or discover"),
        (
            {"backend": "server", "url": "http://a:1"},
            r"^inference\.url: unknown; server knows: urls, discover, start_timeout_s; .*; inference: give urls, ",
        ),
        ({"backend": "server", "urls": "http://a:1"}, r"inference\.urls: 'http://a:1' is not of type 'array'$"),
    ],
)
def test_what_is_wrong_with_a_backend_is_one_line(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(RecipeError, match=reason) as caught:
        check_plugins(make_recipe(rl=None, inference=given))

    assert "\n" not in str(caught.value)


def test_a_backends_own_options_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(BACKEND)

    check_plugins(make_recipe(rl=None, inference={"backend": "server", "urls": ["http://a:1"], "start_timeout_s": 3}))
    check_plugins(make_recipe(rl=None, inference={"backend": str(path), "width": 3, "max_num_seqs": 4}))
    with pytest.raises(RecipeError, match=r"^inference\.width: 'x' is not of type 'integer'$"):
        check_plugins(make_recipe(rl=None, inference={"backend": str(path), "width": "x"}))
    path.write_text("raise RuntimeError('no\\nway')")
    with pytest.raises(
        RecipeError, match=r"^inference\.backend: \S+mine\.py cannot be imported: RuntimeError: no way$"
    ):
        check_plugins(make_recipe(rl=None, inference={"backend": str(path)}))


def test_components_of_somebodys_own_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "reward.py"
    path.write_text("def compute_score(solution_str, ground_truth):\n    return 1.0\n")
    check_plugins(make_recipe(rl=None, reward={"own": {"use": str(path), "ground_truth_from": "info.answer"}}))

    with pytest.raises(RecipeError, match=r"^reward\.own: 'ground_truth_from' is a required property$"):
        check_plugins(make_recipe(rl=None, reward={"own": {"use": str(path)}}))


def test_what_is_measured_alone_is_checked_too(
    no_service: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    with pytest.raises(AssertionError, match="a service was asked"):
        check_plugins(make_recipe(rl=None))


def test_what_a_strategy_says_of_itself_must_fit_the_recipe(tmp_path: Path) -> None:
    path = tmp_path / "searches.py"
    path.write_text(
        "from gymfleet_rollout.strategy import Strategy, StrategyFacts, StrategyOptions\n\n\n"
        "class Searches(Strategy[StrategyOptions]):\n"
        "    facts = StrategyFacts(evaluates=True, roles=('planner',))\n\n"
        "    async def play(self, ctx): ...\n"
    )
    own: dict[str, Any] = {"strategy": {"use": str(path)}}
    valued: dict[str, Any] = {**own, "evaluator": {"goal": {"success": 2.0}}}

    with pytest.raises(
        RecipeError, match=r"^rollout\.strategy: .*searches\.py has nodes valued .*\[rollout\.evaluator\]"
    ):
        check_plugins(make_recipe(rollout=own))
    with pytest.raises(RecipeError, match=r"^stages\.collect\.strategy: .*searches\.py has nodes valued"):
        check_plugins(make_recipe(stages=[{"kind": "collect", "strategy": str(path)}]))
    with pytest.raises(RecipeError, match=r"^rollout\.evaluator\.jury: there is no component 'jury'"):
        check_plugins(make_recipe(rollout={**own, "evaluator": {"jury": {}}}))
    with pytest.raises(RecipeError, match=r"^stages\.reinforce\.roles: planer: unknown; .* as agent, planner$"):
        check_plugins(make_recipe(rollout=valued, rl={"group_size": 4, "roles": ["planer"]}))
    check_plugins(make_recipe(rollout=valued, rl={"group_size": 4, "roles": ["planner"]}))


def test_a_strategys_own_options_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(STRATEGY)
    rollout = {"strategy": {"use": str(path), "width": 3}}

    check_plugins(make_recipe(rollout=rollout))
    with pytest.raises(RecipeError, match=r"rollout\.strategy\.width: 'x' is not of type 'integer'"):
        check_plugins(make_recipe(rollout={"strategy": {**rollout["strategy"], "width": "x"}}))


def test_expert_episodes_are_no_fault_without_reinforcement_learning() -> None:
    check_plugins(make_recipe(rollout={"strategy": {"use": "expert"}}, rl=None))


def test_a_reply_format_with_options_is_taken() -> None:
    check_plugins(make_recipe(rl=None, rollout={"format": {"use": "tags", "action_tag": "act"}}))


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({"format": "morse"}, r"^environments\.easy\.format: there is no format 'morse'"),
        (
            {"format": {"use": "react", "sign": 1}},
            r"^environments\.easy\.format\.sign: unknown; react knows: no options$",
        ),
        ({"reward": {"goal": {"sucess": 1.0}}}, r"^environments\.easy\.reward\.goal\.sucess: unknown; goal knows: "),
        (
            {"reward": {"allocation": "discounted"}},
            r'^environments\.easy\.reward\.allocation = "discounted" gives each turn a reward of its own',
        ),
    ],
)
def test_what_an_environment_has_of_its_own_is_checked(env: dict[str, Any], reason: str) -> None:
    environments = [{"name": "babyai"}, {"name": "maze", "label": "easy", **env}]

    with pytest.raises(RecipeError, match=reason):
        check_plugins(make_recipe(environments=environments))


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        (
            [{"kind": "mesure"}],
            r"^stages\.mesure\.kind: there is no stage 'mesure'; known: augment, .*, measure",
        ),
        ([{"kind": "./my.py"}], r"^stages\.my\.kind: there is no file my\.py$"),
        (
            [{"kind": "measure", "num_taks": 3}],
            r"^stages\.measure\.num_taks: unknown; measure knows: num_tasks, .*level, reward, .*allocation$",
        ),
        (
            [{"kind": "measure", "name": "before", "num_tasks": 0}],
            r"^stages\.before\.num_tasks: 0 is less than or equal to the minimum of 0$",
        ),
        ([{"kind": "sft"}], r"^stages\.sft: 'data' is a required property$"),
        (
            [{"kind": "measure"}, {"kind": "sft", "data": "measure"}],
            r"^stages\.sft: data = 'measure': that stage leaves no episodes$",
        ),
        (
            [{"kind": "collect"}, {"kind": "sft", "data": "collected"}],
            r"^stages\.sft: data = 'collected': there is no such stage before it \(collect\)",
        ),
        (
            [{"kind": "collect", "strategy": "exprt"}],
            r"^stages\.collect\.strategy: there is no strategy 'exprt'; k",
        ),
        (
            [{"kind": "collect", "strategy": {"use": "expert", "depth": 2}}],
            r"^stages\.collect\.strategy\.depth: unknown; expert knows: no options$",
        ),
        (
            [{"kind": "collect", "strategy": {"use": 3}}],
            r"^stages\.collect\.strategy: 3 is no name of a plug-in of kind 'strategy'$",
        ),
        (
            [{"kind": "sft", "data": "x.jsonl", "converter": {"use": "sharegpt", "kee": "x"}}],
            r"^stages\.sft\.converter\.kee: unknown; sharegpt knows: id, success, reward, tools_key, system, key$",
        ),
        (
            [{"kind": "filter", "data": "x.jsonl", "converter": "sharegbt"}],
            r"^stages\.filter\.converter: there is no converter 'sharegbt'; known: agent_flan, agent_instruct, ",
        ),
        (
            [{"kind": "filter", "data": "x.jsonl", "filters": ["duplicates", {"use": "length", "max": 3}]}],
            r"^stages\.filter\.filters\.1\.max: unknown; length knows: min_replies, max_replies, max_chars$",
        ),
        (
            [{"kind": "filter", "data": "x.jsonl", "filters": ["lenght"]}],
            r"^stages\.filter\.filters\.0: there is no filter 'lenght'; known: duplicates, format, hallucinated_tools,",
        ),
        (
            [{"kind": "filter", "data": "x.jsonl", "filters": "length"}],
            r"^stages\.filter\.filters: 'length' is not of type 'array'$",
        ),
        (
            [{"kind": "filter", "data": "x.jsonl", "filters": [{"max_chars": 3}]}],
            r"^stages\.filter\.filters\.0: None is no name of a plug-in of kind 'filter'$",
        ),
        (
            [{"kind": "augment", "data": "x.jsonl", "augmenter": {"use": "shortened", "by": 3}}],
            r"^stages\.augment\.augmenter\.by: unknown; shortened knows: loops, copies$",
        ),
        (
            [{"kind": "augment", "data": "x.jsonl", "max_replays": 0}],
            r"^stages\.augment\.max_replays: 0 is less than the minimum of 1$",
        ),
        (
            [{"kind": "augment", "data": "x.jsonl", "augmenter": "shorter"}],
            r"^stages\.augment\.augmenter: there is no augmenter 'shorter'; known: distractor, paraphrase,",
        ),
        (
            [{"kind": "sft", "data": "x.jsonl", "converter": {"key": "x"}}],
            r"^stages\.sft\.converter: None is no name of a plug-in of kind 'converter'$",
        ),
        (
            [{"repeat": 500, "stages": [{"kind": "reinforce", "name": "rl", "group_size": 1}]}],
            r"^stages\.repeat\.stages\.rl\.group_size must be at least 2 for grpo",
        ),
        (
            [{"repeat": 2, "stages": [{"kind": "measure", "tasks": 1}]}],
            r"^stages\.repeat\.stages\.measure\.tasks: unknown; measure knows: num_tasks, .*reward, .*allocation$",
        ),
    ],
)
def test_what_is_wrong_with_a_stage_is_one_line(stages: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(RecipeError, match=reason) as caught:
        check_plugins(make_recipe(stages=stages))

    assert "\n" not in str(caught.value)


def test_what_each_stage_needs_is_checked_where_it_stands() -> None:
    collect = {"kind": "collect", "strategy": "expert"}
    kept = {"kind": "filter", "data": "collect", "best_of_task": 1}
    sft = {"kind": "sft", "data": ["filter", "more.jsonl"], "optimizer": {"learning_rate": 0.01}}
    ppo = {"kind": "reinforce", "name": "alone", "algorithm": "ppo", "group_size": 1, "critic": {"gamma": 0.9}}
    rounds = {"repeat": 2, "stages": [collect, kept, sft, ppo]}

    check_plugins(make_recipe(stages=[rounds, {"kind": "reinforce", "measure": {"every_steps": 2}}]))


def test_a_stage_of_somebodys_own_says_which_plugins_it_names(tmp_path: Path) -> None:
    path, strategy = tmp_path / "weigh.py", tmp_path / "mine.py"
    path.write_text(STAGE)
    strategy.write_text(STRATEGY)

    def check(**options: Any) -> None:
        check_plugins(make_recipe(stages=[{"kind": str(path), **options}]))

    check(by={"use": str(strategy), "width": 3}, clip_low=0.1)
    with pytest.raises(RecipeError, match=r"^stages\.weigh\.by\.width: 'x' is not of type 'integer'$"):
        check(by={"use": str(strategy), "width": "x"})
    with pytest.raises(RecipeError, match=r"^stages\.weigh\.clip_lw: unknown; rloo knows: .*; \S+weigh\.py knows: wei"):
        check(clip_lw=0.1)
    with pytest.raises(RecipeError, match=r"^stages\.weigh\.group_size must be at least 2 for rloo: a group of 1 has"):
        check(group_size=1)
    with pytest.raises(RecipeError, match=r"^stages\.weigh\.weight: 'x' is not of type 'number'$"):
        check(weight="x", clip_lw=0.1)


def test_what_is_known_is_not_asked_for_again(request: pytest.FixtureRequest) -> None:
    check_plugins(make_recipe())
    request.getfixturevalue("no_service")

    check_plugins(make_recipe())


def test_a_plugin_that_changed_is_asked_for_again(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    assert "margin" in str(description("algorithm", str(path)).options)

    path.write_text(MINE.replace("margin", "distance"))

    assert "distance" in str(description("algorithm", str(path)).options)
    path.write_text("1 / 0")
    with pytest.raises(RecipeError, match=r"mine\.py cannot be imported: ZeroDivisionError: division by zero"):
        description("algorithm", str(path))


def test_a_cache_that_cannot_be_written_or_read_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    check_plugins(make_recipe())


def test_a_service_that_cannot_answer_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = subprocess.CompletedProcess([], 1, "", "Traceback\nerror: No module named 'torch'\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: broken)

    with pytest.raises(CliError, match="gymfleet-rollout cannot say what the format react is: No module named 'tor"):
        check_plugins(make_recipe())


def test_checking_what_is_known_is_quick_and_imports_no_torch() -> None:
    load_checked(ROOT / "recipes/quickstart.toml", ())
    code = (
        "import sys, time; from pathlib import Path; from gymfleet_cli.recipes import load_checked; "
        "began = time.process_time(); load_checked(Path('recipes/quickstart.toml'), ()); "
        "assert time.process_time() - began < 0.5; assert 'torch' not in sys.modules"
    )

    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
