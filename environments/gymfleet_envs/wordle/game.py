"""The rules of LMRL-Gym's Wordle."""

import re
from collections.abc import Iterable
from typing import Final

WORD_LENGTH: Final = 5
NUM_GUESSES: Final = 6
_SPACED_WORD: Final = re.compile(r"[a-z](?: ?[a-z]){4}")


def feedback(guess: str, hidden: str) -> str:
    """Return one letter per position: g in place, y elsewhere in the word, b not in the word.

    A letter that the guess repeats is yellow each time, however often the hidden
    word holds it: LMRL-Gym's rule, not the newspaper's.
    """
    return "".join(
        "g" if letter == true else "y" if letter in hidden else "b" for letter, true in zip(guess, hidden, strict=True)
    )


def consistent(words: Iterable[str], guess: str, shown: str) -> tuple[str, ...]:
    """Return the words that would have given this feedback, in their order."""
    return tuple(word for word in words if feedback(guess, word) == shown)


def parse_guess(action: str) -> str | None:
    """`s h i r e` (or `shire`) -> `shire`; None for anything else."""
    text = action.strip().strip("\"'`.").lower()
    return text.replace(" ", "") if len(text) <= 2 * WORD_LENGTH and _SPACED_WORD.fullmatch(text) else None


def spaced(letters: str) -> str:
    """`shire` -> `s h i r e`."""
    return " ".join(letters)
