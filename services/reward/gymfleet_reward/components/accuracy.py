"""The right mathematical answer, however it is written."""

import asyncio
import re
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

from gymfleet_contracts.trajectory import Trajectory
from pydantic import Field

from gymfleet_reward.answers import AnswerComponent, AnswerOptions, text_of
from gymfleet_reward.component import Answer, ComponentError
from gymfleet_reward.maths.pool import POOL
from gymfleet_reward.maths.verdict import Verdict

_SCIENTIFIC: Final = re.compile(r"(?<![\w.,])[0-9]{1,99}(?:\.[0-9]{1,99})?[eE][-+]?[0-9]{1,3}(?![\w.,]?[0-9A-Za-z_])")
_MAX_CHARS: Final = 100_000
"""Longest text that is rewritten for math-verify: a number that is written out may become a thousand characters."""
_NUMBER: Final = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+|/[0-9]+)?\s?%?")
_DOLLAR: Final = re.compile(r"(?<!\\)\\\$")
"""A currency: math-verify reads a number behind it in LaTeX alone."""
_DELIMITED: Final = re.compile(r"(?<!\\)\$|\\[(\[]|\\boxed|\\begin\{(?:equation|align|math)")
_WITH_ARGUMENT: Final = re.compile(r"\\begin\{array\}\{[^{}]*\}|\\([A-Za-z]+)\{[^{}]*\}")
"""A reply may be hostile: this takes time in proportion to its length."""
_COMMAND: Final = re.compile(r"\\[A-Za-z]+")
_NAMES: Final = frozenset({"mbox", "mathrm", "operatorname", "begin", "end"})
"""Commands, besides those of `text`, whose argument is no expression."""
_WORD: Final = re.compile(r"(?<![0-9A-Za-z])(?:[A-Za-z]{3}|(?:he|is|it|no|of|so|to|we)\b)", re.IGNORECASE)
"""Other letters, two in a row or behind a number, are a product or a unit: `ab - cd`, `15 cm`."""


class AccuracyOptions(AnswerOptions):
    """Limits on the cost of comparing an answer."""

    max_cpu_s: Annotated[float, Field(gt=0, le=8, strict=True, allow_inf_nan=False)] = 3.0
    """Seconds of processor time for one comparison; `9**9**9` would take for ever."""
    costly: Literal["wrong", "fail"] = "wrong"
    """The result for an answer that takes more time than this, or more than 512 MiB: `wrong`, 0; `fail`, no reward."""


class Accuracy(AnswerComponent[AccuracyOptions]):
    r"""1 if math-verify finds the answer equal to the right one, else 0: numbers, expressions, equations, sets.

    This is Open-R1's accuracy reward, except that Open-R1 gives 1 if the right answer cannot be read: here such an
    episode has no reward. LaTeX is read between its delimiters, `$`, `\(` or `\[`, on both sides; without any, a right
    answer that is neither a number nor words, such as `2x+3` or `\frac12`, is all LaTeX, and so is an answer to it. A
    number such as `1e-07`, which math-verify would take for 1, is written out for it, except in a text with LaTeX.

    Comparisons run in a separate process, whose time is counted in processor seconds: an answer is never wrong because
    the machine is busy. An answer that is too costly is wrong in itself, and stays so when it is tried again; if it
    were a failure, its episode would be played again, and a policy could avoid being judged.
    """

    Options = AccuracyOptions
    version = "5"

    async def score(self, episode: Trajectory) -> Answer:
        """See `Component`."""
        return await asyncio.to_thread(self.best, episode)

    def compared(self, answer: str, right: Any) -> float:
        """See `AnswerComponent`."""
        place = self.options.ground_truth_from
        gold, given = _written_out(text_of(right, place)), _written_out(answer)
        if not _NUMBER.fullmatch(gold.strip()):
            gold, given = _delimited(gold), _delimited(given)
        verdict = POOL.verify(gold, given, cpu_s=self.options.max_cpu_s)
        match verdict:
            case Verdict.UNREADABLE_GOLD:
                raise ComponentError(f"{place} is nothing that math-verify reads: a number, or LaTeX between $ and $")
            case Verdict.COSTLY_GOLD:
                raise ComponentError(f"{place} takes more than {self.options.max_cpu_s:g} s to read")
            case Verdict.COSTLY if self.options.costly == "fail":
                raise ComponentError(f"the answer takes more than {self.options.max_cpu_s:g} s or 512 MiB to compare")
            case _:
                return float(verdict is Verdict.RIGHT)


def _delimited(text: str) -> str:
    """Return an expression without delimiters between them, and any other text as it is."""
    if len(text) > _MAX_CHARS or not text.strip() or _DELIMITED.search(text):
        return text
    outside = _COMMAND.sub("", _WITH_ARGUMENT.sub(_expression, text)).strip()
    is_words = (outside.isalpha() and len(outside) > 1) or (" " in outside and _WORD.search(outside) is not None)
    return text if is_words else f"${text}$"


def _expression(command: re.Match[str]) -> str:
    """Return a command, unless its argument is a name or a text."""
    name = command[1] or "begin"
    return "" if "text" in name or name in _NAMES else command[0]


def _written_out(text: str) -> str:
    """Return a text without dollars, and without LaTeX with numbers in scientific notation as decimal numbers."""
    text = _DOLLAR.sub("", text)
    if len(text) > _MAX_CHARS or "$" in text or "\\" in text:
        return text
    return _SCIENTIFIC.sub(lambda found: f"{Decimal(found[0]):f}", text)
