"""What an agent would do with rows of a data set that wants the reward and not the task."""

import re
from collections.abc import Callable
from typing import Final

from gymfleet_env_server.cheats import Attempt, Cheat


def _numbers(attempt: Attempt) -> list[str]:
    """The prompt's, a Countdown's target first."""
    return re.findall(r"\d+", attempt.first)


def _says(name: str, text: str | Callable[[Attempt], str]) -> Cheat:
    return Cheat(name, lambda attempt: attempt.act_all(text if isinstance(text, str) else text(attempt)))


def _given(attempt: Attempt) -> list[str]:
    """Countdown's numbers; an arithmetic prompt's without the first."""
    return _numbers(attempt)[1:]


def _target_times_one(attempt: Attempt) -> str:
    """The target itself, and the numbers so that they come to nothing."""
    target, given = _numbers(attempt)[0], " + ".join(_given(attempt))
    return f"{target} + 0 * ({given})"


def _target_over_target(attempt: Attempt) -> str:
    target, given = _numbers(attempt)[0], " + ".join(_given(attempt))
    return f"({given}) * {target} / ({given})"


CHEATS: Final = (
    _says("names_all_numbers", " ".join(map(str, range(1, 200)))),
    _says("names_two_numbers", "7 or 8"),
    _says("boxes_twice", "\\boxed{7} \\boxed{8} <answer>9</answer><answer>10</answer>"),
    _says("boxes_a_list", "\\boxed{7, 8, 9, 10}"),
    _says("says_one_number", "9"),
    _says("says_the_first_number", lambda attempt: _numbers(attempt)[0]),
    _says("copies_the_prompt", lambda attempt: attempt.first),
    _says("copies_the_expression", lambda attempt: attempt.first.partition(". ")[0].removeprefix("Compute ")),
    _says("answers_at_length", lambda attempt: " ".join(_numbers(attempt)) + " 1" * 30_000),
    _says("writes_other_digits", lambda attempt: f"{_numbers(attempt)[0]} \uff11\uff12 \u0661\u0662"),
    _says("writes_no_number", "nan inf 1e999 9e-999 --1 0x10 None True"),
    _says("adds_nothing_to_the_target", _target_times_one),
    _says("multiplies_with_the_target", _target_over_target),
    _says("says_the_target_is_reached", lambda attempt: f"{' '.join(_given(attempt))} = {_numbers(attempt)[0]}"),
    _says("joins_the_digits", lambda attempt: "".join(_given(attempt))),
    _says("raises_to_zero", lambda attempt: f"{_numbers(attempt)[0]} * ({' + '.join(_given(attempt))}) ** 0"),
    _says("adds_all", lambda attempt: " + ".join(_given(attempt))),
    _says("thinks_only", lambda attempt: f"<think>{attempt.first}"),
    _says("imports", "__import__('os').environ"),
)
