"""Guards by data set: they first read answers that would fool the package's scorers, and refuse or compare them.

A guard returns whether the answer is right, or None to let the package's own scorer decide.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

from gymfleet_envs.reasoning_gym.expressions import ExpressionFault, arithmetic, derivative_at

Guard = Callable[[str, Mapping[str, Any]], bool | None]
_NO_NUMBER: Final = re.compile(r"nan|inf", re.IGNORECASE)
_LARGE_EXPONENT: Final = re.compile(r"e[+-]?[\d_]{3}", re.IGNORECASE)
_LONG_NUMBER: Final = re.compile(r"\d{3}")
_POINTS: Final = (
    0.31 + 0.17j, 1.13 - 0.29j, 0.73 + 0.41j, 2.2 + 0.13j, 1.7 - 0.6j, 0.47 - 0.83j, -0.6 + 0.37j, -1.9 - 0.21j,
)  # fmt: skip
_FEWEST_POINTS: Final = 4
_TOLERANCE: Final = 1e-7
_PROBABILITY_TOLERANCE: Final = 1e-4
_MAX_MOVES: Final = 1_000


def _exactly(answer: str, entry: Mapping[str, Any]) -> bool:
    """Compare exactly: the package evaluates other answers as Python, for at most half the credit."""
    return bool(answer == entry["answer"].strip())


def _one_of_the_boards(answer: str, entry: Mapping[str, Any]) -> bool:
    return answer in entry["metadata"]["valid_answers"]


def _same_word(answer: str, entry: Mapping[str, Any]) -> bool:
    """Compare the words: the package compares `bool(answer)`, which is true of every text."""
    return bool(answer.lower() == entry["answer"].lower())


def _finite(answer: str, entry: Mapping[str, Any]) -> bool | None:  # noqa: ARG001 - a guard
    """Refuse NaN and infinity: every comparison with NaN fails, even one that would find it wrong."""
    return False if _NO_NUMBER.search(answer) else None


def _same_probability(answer: str, entry: Mapping[str, Any]) -> bool:
    """Compare to within the package's tolerance, and refuse large exponents.

    The package also gives full credit to the first characters of the right answer, so to `0` for any probability below
    1; and `Fraction` computes the power of ten, whatever it takes.
    """
    if _LARGE_EXPONENT.search(answer):
        return False
    try:
        given, right = (float(Fraction(text.replace(",", ""))) for text in (answer, entry["answer"]))
    except (ValueError, ArithmeticError):
        return False
    return abs(given - right) <= _PROBABILITY_TOLERANCE


def _few_moves(answer: str, entry: Mapping[str, Any]) -> bool | None:  # noqa: ARG001 - a guard
    """Refuse too many moves: `R999999999` is one move made that often."""
    return False if _LONG_NUMBER.search(answer) or len(answer.split()) > _MAX_MOVES else None


def _short(answer: str, entry: Mapping[str, Any]) -> bool | None:  # noqa: ARG001 - a guard
    return False if len(answer) > _MAX_MOVES else None


def _reaches(answer: str, entry: Mapping[str, Any]) -> bool:
    """Return whether arithmetic with exactly the given numbers gives the target.

    The package evaluates the text with sympy, and for `puzzle24` checks only the range of the numbers.
    """
    try:
        value, numbers = arithmetic(answer)
    except (ExpressionFault, ZeroDivisionError, OverflowError, RecursionError):
        return False
    told = entry["metadata"]
    return value == told.get("target", 24) and sorted(numbers) == sorted(told["numbers"])


def _integrates(answer: str, entry: Mapping[str, Any]) -> bool:
    """Return whether the derivative equals the integrand, at eight points of the complex plane.

    The package evaluates the text with sympy, which accepts `Integral(...)`, the question itself, as an answer.
    """
    told = entry["metadata"]
    try:
        given, wanted = (derivative_at(text, told["variable"]) for text in (answer, told["integrand"]))
        compared = [_same_slope(given, wanted, point) for point in _POINTS]
    except (ExpressionFault, RecursionError):
        return False
    known = [same for same in compared if same is not None]
    return len(known) >= _FEWEST_POINTS and all(known)


def _same_slope(given: Callable[[complex], Any], wanted: Callable[[complex], Any], point: complex) -> bool | None:
    try:
        target = wanted(point).value
    except (ArithmeticError, ValueError):
        return None
    try:
        slope = given(point).slope
        return bool(abs(slope - target) <= _TOLERANCE * abs(target))
    except (ArithmeticError, ValueError):  # no value where the integrand has one
        return False


GUARDS: Final[Mapping[str, Guard]] = {
    "binary_matrix": _exactly,
    "coin_flip": _same_probability,
    "complex_arithmetic": _finite,
    "countdown": _reaches,
    "game_of_life_halting": _same_word,
    "intermediate_integration": _integrates,
    "n_queens": _one_of_the_boards,
    "number_sorting": _finite,
    "puzzle24": _reaches,
    "rubiks_cube": _few_moves,
    "rush_hour": _few_moves,
    "simple_integration": _integrates,
    "sokoban": _short,
    "spiral_matrix": _exactly,
    "string_insertion": _exactly,
}
