"""The right one of lettered choices."""

import re
from typing import Final

from gymfleet_envs.dataset.scorer import BadGold, OneOf, ScorerOptions

_ALONE: Final = re.compile(r"\W*([A-Za-z])\W*")
_CHOICE: Final = re.compile(r"(?<![A-Za-z])\(?([A-Z])[).:](?=\s|\Z)")
_SAID: Final = re.compile(
    r"\b(?i:answer|choice|option)(?: is)?:?[ \n*]{0,4}"
    r"(?:\(?([A-Z])\b(?!')|\(([a-z])\)|([a-z])(?=[.*]{0,3}\s*(?:\n|\Z)))"
)
_SET: Final = re.compile(r"\\(?:text|textbf|textrm|mathbf|mathrm|mbox)\{([^{}]*)\}")
"""Text as LaTeX sets it: `\\text{B}`, as models write in a box."""
_MAX_CHARS: Final = 4_096
"""Length limit of an answer: a longer one chooses nothing."""


class MultipleChoice(OneOf[ScorerOptions]):
    r"""1 for the right letter: `B`, `(b)`, `B) Rome`, `Answer: **B**`, `Answer: b`, `The answer is B.`, `\text{B}`.

    An answer that names two letters chooses neither.
    """

    def right_one(self, gold: str) -> str:
        """See `OneOf`."""
        if (letter := _ALONE.fullmatch(gold)) is None:
            raise BadGold("it is no letter")
        return letter[1].upper()

    def compared(self, answer: str, right: str) -> float:
        """See `OneOf`."""
        if len(answer) > _MAX_CHARS:
            return 0.0
        answer = _SET.sub(r"\1", answer)
        if alone := _ALONE.fullmatch(answer):
            return float(alone[1].upper() == right)
        named = {*_CHOICE.findall(answer), *("".join(said).upper() for said in _SAID.findall(answer))}
        return float(named == {right})
