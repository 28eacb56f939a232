"""BFCL's published tasks, beside `bfcl-eval`'s own checkers: where its package is importable, or lies beside us.

`pip install --no-deps --target DIRECTORY bfcl-eval==2026.3.23`, and DIRECTORY on the path.
"""

import importlib
import importlib.util
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final, cast

import pytest
from gymfleet_envs.function_calling.benchmark import DIALOGUES, SINGLE
from gymfleet_envs.function_calling.calls import Call, Value, read_calls
from gymfleet_envs.function_calling.checker import Kind, is_right
from gymfleet_envs.function_calling.environment import FunctionCalling
from gymfleet_envs.function_calling.gold import gold_calls
from gymfleet_envs.function_calling.task import Dialogue, FunctionCallingTask, Questions
from gymfleet_envs.tasks import Task, TaskSource

from tests.fixtures.paths import SHARED_DATA

UNSOLVABLE: Final = {
    "live_simple_106-63-0",  # an argument is to be a list of texts, and is one of no text
    "live_simple_112-68-0",  # required arguments have no value that is right
    "live_multiple_862-181-3",  # an argument that is right is not described
    "live_multiple_964-207-0",  # an argument that is required is not described as right
}
"""Rows of which no call is right, by BFCL's own checker."""
MUTATIONS: Final = 2_000


def package() -> Path | None:
    spec = importlib.util.find_spec("bfcl_eval")
    places = [Path(spec.submodule_search_locations[0])] if spec and spec.submodule_search_locations else []
    return next((place for place in [*places, SHARED_DATA / "bfcl_eval"] if (place / "data").is_dir()), None)


PACKAGE: Final = package()
pytestmark = [
    pytest.mark.skipif(PACKAGE is None, reason="needs bfcl-eval's package"),
    pytest.mark.timeout(600),
]
Checker = Callable[[list[Any], list[Any], list[Any], Kind], bool]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> TaskSource[FunctionCallingTask]:
    target = tmp_path_factory.mktemp("bfcl")
    assert PACKAGE is not None
    FunctionCalling.import_data(PACKAGE, target)
    return FunctionCalling.task_source(target)


@pytest.fixture(scope="module")
def upstream() -> Iterator[Checker]:
    """`bfcl-eval`'s AST checker. It asks the configuration of a model whether its names have no dots: ours have."""
    assert PACKAGE is not None
    before = set(sys.modules)
    sys.path.insert(0, str(PACKAGE.parent))
    models = ModuleType("bfcl_eval.constants.model_config")
    models.MODEL_CONFIG_MAPPING = {"ours": SimpleNamespace(underscore_to_dot=False)}  # type: ignore[attr-defined]
    sys.modules[models.__name__] = models
    module = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")
    language = importlib.import_module("bfcl_eval.constants.enums").Language.PYTHON

    def check(functions: list[Any], output: list[Any], answers: list[Any], kind: Kind) -> bool:
        try:
            return bool(module.ast_checker(functions, output, answers, language, kind, "ours")["valid"])
        except (TypeError, KeyError, AttributeError, IndexError, OverflowError):
            return False  # it has stopped

    yield check
    sys.path.remove(str(PACKAGE.parent))
    for name in set(sys.modules) - before:
        if name.startswith("bfcl_eval"):
            del sys.modules[name]


def tasks(source: TaskSource[FunctionCallingTask], level: str) -> list[Task[FunctionCallingTask]]:
    return [source.by_index("test", level, index) for index in range(source.count("test", level))]


def score(task: Task[FunctionCallingTask]) -> float:
    environment = FunctionCalling()
    environment.reset(task.data, 0)
    while (move := environment.expert()) is not None:
        outcome = environment.step(move.action)
        if outcome.terminated:
            return outcome.score
    return 0.0


def question(task: Task[FunctionCallingTask]) -> tuple[Kind, list[Any], list[Any]]:
    data = cast(Questions, task.data)
    only = data.questions[0]
    return only.kind, json.loads(data.functions), json.loads(only.answers)


def test_every_category_is_there(source: TaskSource[FunctionCallingTask]) -> None:
    counts = {level: source.count("test", level) for level in source.levels}

    assert counts == {
        "simple_python": 400, "multiple": 200, "parallel": 200, "parallel_multiple": 200, "irrelevance": 240,
        "live_simple": 258, "live_multiple": 1053, "live_parallel": 16, "live_parallel_multiple": 24,
        "live_irrelevance": 884, "live_relevance": 16, **dict.fromkeys(DIALOGUES, 200),
    }  # fmt: skip
    assert source.by_id("live_simple_0-0-0").level == "live_simple"


@pytest.mark.parametrize("level", [*SINGLE, *DIALOGUES])
def test_gold_scores_1(source: TaskSource[FunctionCallingTask], level: str) -> None:
    unsolved = {task.task_id for task in tasks(source, level) if score(task) != 1}

    assert unsolved == {task_id for task_id in UNSOLVABLE if task_id.rsplit("_", 1)[0] == level}


@pytest.mark.parametrize("level", [level for level, kind in SINGLE.items() if kind not in ("irrelevance", "relevance")])
def test_gold_is_right_by_bfcls_checker_and_another_rows_is_not(
    source: TaskSource[FunctionCallingTask], upstream: Checker, level: str
) -> None:
    rows = [question(task) for task in tasks(source, level)]
    golds = [gold_calls(functions, answers) for _, functions, answers in rows]
    ids = [task.task_id for task in tasks(source, level)]
    alike = 0
    for number, (kind, functions, answers) in enumerate(rows):
        output = [{call.name: dict(call.arguments)} for call in golds[number]]
        assert upstream(functions, output, answers, kind) == (ids[number] not in UNSOLVABLE), ids[number]
        other = golds[(number + len(golds) // 2) % len(golds)]  # not a neighbour: those of live rows are alike
        right = is_right(kind, functions, other, answers)
        assert right == upstream(functions, [{call.name: dict(call.arguments)} for call in other], answers, kind)
        alike += right
    assert alike <= (2 if level.startswith("live") else 0), "rows of live categories ask for the same here and there"


@pytest.mark.parametrize("level", ["irrelevance", "live_irrelevance"])
def test_who_calls_nothing_is_right_on_all_of_irrelevance(source: TaskSource[FunctionCallingTask], level: str) -> None:
    for task in tasks(source, level):
        kind, functions, answers = question(task)
        assert is_right(kind, functions, read_calls("I cannot help with that."), answers)
        assert not is_right(kind, functions, read_calls("[anything(a=1)]"), answers)


def other_value(rng: random.Random, value: Value) -> Value:
    """A value near to another one, of its type or not."""
    texts = ["", "x", str(value), f" {value}.", str(value).upper(), f"{value}s"]
    numbers = [0, 1, -1, True, 2.5, None]
    if isinstance(value, str):
        return rng.choice([*texts, *numbers, [value], value.replace(" ", "_"), value.title()])
    if isinstance(value, list):
        return rng.choice([[], value[::-1], value[:-1], [*value, *value], tuple(value), [str(one) for one in value],
                           [*value, None], "x", {}, [*value, {}]])  # fmt: skip
    if isinstance(value, dict):
        key = rng.choice(list(value)) if value else "x"
        return rng.choice([{}, {**value, "strange": 1}, {k: v for k, v in value.items() if k != key},
                           {**value, key: other_value(rng, value.get(key))}, [value], str(value)])  # fmt: skip
    if isinstance(value, bool):
        return rng.choice([not value, int(value), str(value), None])
    if isinstance(value, int | float):
        return rng.choice([value + 1, float(value), int(value), -value, str(value), bool(value), [value]])
    return rng.choice([*texts, *numbers])


def mutated(rng: random.Random, calls: list[Call], functions: list[Any], answers: list[Any]) -> list[Call]:
    """Calls with one or two changes, some of which change nothing that counts."""
    calls = list(calls)
    for _ in range(rng.randint(1, 2)):
        if not calls:
            break
        number = rng.randrange(len(calls))
        call = calls[number]
        arguments = dict(call.arguments)
        change = rng.randrange(9)
        possible: dict[str, list[Value]] = next(
            (next(iter(answer.values())) for answer in answers if call.name in answer), {}
        )
        name = rng.choice([*possible, *arguments, "strange"])
        if change == 0:
            calls = rng.sample(calls, len(calls))
        elif change == 1:
            calls[number] = Call(rng.choice([one["name"] for one in functions] + [call.name.upper()]), arguments)
        elif change == 2:
            calls = [*calls, call] if rng.random() < 0.5 else calls[:number] + calls[number + 1 :]
        elif change == 3:
            arguments.pop(name, None)
            calls[number] = Call(call.name, arguments)
        elif change in (4, 5) and possible.get(name):
            calls[number] = Call(call.name, {**arguments, name: rng.choice(possible[name])})
        else:
            calls[number] = Call(call.name, {**arguments, name: other_value(rng, arguments.get(name))})
    return calls


def test_mutated_answers_are_judged_alike(source: TaskSource[FunctionCallingTask], upstream: Checker) -> None:
    rng = random.Random(17)
    levels = [level for level, kind in SINGLE.items() if kind not in ("irrelevance", "relevance")]
    rows = [(task.task_id, *question(task)) for level in levels for task in tasks(source, level)]
    right = 0
    for number in range(MUTATIONS):
        task_id, kind, functions, answers = rng.choice(rows)
        calls = mutated(rng, gold_calls(functions, answers), functions, answers)
        output = [{call.name: dict(call.arguments)} for call in calls]
        theirs = upstream(functions, output, answers, kind)
        assert is_right(kind, functions, calls, answers) == theirs, (number, task_id, calls, answers)
        right += theirs
    assert 0.15 * MUTATIONS < right < 0.85 * MUTATIONS, "both verdicts are compared"


def test_a_dialogue_with_one_turn_left_out_does_not_score(source: TaskSource[FunctionCallingTask]) -> None:
    for task in tasks(source, "multi_turn_base")[::5]:
        environment = FunctionCalling()
        environment.reset(task.data, 0)
        turns = cast(Dialogue, task.data).turns
        skipped = max(number for number, turn in enumerate(turns) if turn.steps)
        for number in range(len(turns)):
            while number != skipped and (move := environment.expert()) is not None and move.action.startswith("["):
                environment.step(move.action)
            outcome = environment.step("Done.")
        assert outcome.terminated
        assert outcome.score == 0


def test_sessions_do_not_share_instances(source: TaskSource[FunctionCallingTask]) -> None:
    task = source.by_id("multi_turn_base_0")
    first, second = FunctionCalling(), FunctionCalling()
    first.reset(task.data, 0)
    second.reset(task.data, 0)
    before = second.state_key()

    assert "temp" in first.step("[mkdir(dir_name='temp'), ls()]").observation
    twin = first.snapshot()
    twin.step("[rmdir(dir_name='temp')]")

    assert second.state_key() == before
    assert "temp" not in second.step("[ls()]").observation
    assert "temp" in first.step("[ls()]").observation


def test_results_are_in_bfcls_words(source: TaskSource[FunctionCallingTask]) -> None:
    environment = FunctionCalling()
    environment.reset(source.by_id("multi_turn_base_0").data, 0)

    assert environment.step("[cd(folder='document'), cd(directory='x'), nothing(a=1)]").observation == repr([
        {"role": "tool", "name": "cd(folder='document')", "content": '{"current_working_directory": "document"}'},
        {"role": "tool", "name": "cd(directory='x')",
         "content": "Error during execution: GorillaFileSystem.cd() got an unexpected keyword argument 'directory'"},
        {"role": "tool", "name": "nothing(a=1)", "content": "Error during execution: name 'nothing' is not defined"},
    ])  # fmt: skip


@pytest.mark.parametrize(
    "call",
    [
        "_load_scenario(scenario={})", "__init__()", "__class__()", "cd(folder=__import__('os'))", "root()",
        "power(base=10, exponent=1000000000)", "logarithm(value=2.0, base=3.0, precision=1000000000)",
        "round_number(number=5, decimal_places=-1000000000)", "power(base=-9, exponent=99999999999)",
        "square_root(number=2.0, precision=999999999999)", "mean(numbers=[1, 'a'])", "power(7, 3)",
        "logarithm(value=2.0, base=3.0, precision=2000.0)", "logarithm(value=2.0, base=3.0, precision='2000')",
    ],
)  # fmt: skip
def test_hostile_calls_are_answered(source: TaskSource[FunctionCallingTask], call: str) -> None:
    task = next(task for level in DIALOGUES for task in tasks(source, level)
                if {"MathAPI", "GorillaFileSystem"} <= set(cast(Dialogue, task.data).classes))  # fmt: skip
    environment = FunctionCalling()
    environment.reset(task.data, 0)

    outcome = environment.step(f"[{call}]")

    assert not outcome.terminated
    assert "rror" in outcome.observation


def test_a_tree_that_doubles_ends_the_task(source: TaskSource[FunctionCallingTask]) -> None:
    """Copies share what is in them, so n copies make a tree of 2 ** n places."""
    environment = FunctionCalling()
    environment.reset(source.by_id("multi_turn_base_0").data, 0)
    doubling = ["mkdir(dir_name='d0')"]
    for level in range(30):
        doubling += [f"mkdir(dir_name='d{level + 1}')", f"cp(source='d{level}', destination='d{level + 1}')",
                     f"mv(source='d{level}', destination='e')", f"cp(source='e', destination='d{level + 1}')",
                     "rm(file_name='e')"]  # fmt: skip

    outcome = environment.step(f"[{', '.join(doubling[:100])}]")

    assert outcome.terminated
    assert outcome.score == 0
    assert environment.snapshot().state_key()
