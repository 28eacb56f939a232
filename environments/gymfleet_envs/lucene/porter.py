"""Porter's stemmer, as in Lucene, with which the benchmark's index was made.

M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980, with the two
departures of its author's own code (`bli`, `logi`).

Snowball's `porter`, which snowballstemmer and PyStemmer offer, cannot replace it: it keeps to the paper, undoubles only
some consonants and shortens words of two letters. It gives "technology", "assembly", "trekking" and "is" other stems.
"""

from collections.abc import Callable
from typing import Final

_STEP_2: Final = (
    ("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("bli", "ble"),
    ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate"),
    ("ator", "ate"), ("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"),
    ("iviti", "ive"), ("biliti", "ble"), ("logi", "log"),
)  # fmt: skip
_STEP_3: Final = (
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", ""),
)  # fmt: skip
_STEP_4: Final = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti",
    "ous", "ive", "ize",
)  # fmt: skip


def stem(word: str) -> str:
    """Return the stem of a lower-case word; words of one or two letters are their own stems."""
    if len(word) <= 2:
        return word
    word = _plural(word)
    word = _past(word)
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _replace(word, _STEP_2, _is_long)
    word = _replace(word, _STEP_3, _is_long)
    word = _strip(word)
    return _tidy(word)


def _is_consonant(word: str, place: int) -> bool:
    letter = word[place]
    if letter in "aeiou":
        return False
    return letter != "y" or place == 0 or not _is_consonant(word, place - 1)


def _measure(word: str) -> int:
    """Return how often a vowel is followed by a consonant: Porter's m."""
    count, vowel = 0, False
    for place in range(len(word)):
        consonant = _is_consonant(word, place)
        count += consonant and vowel
        vowel = not consonant
    return count


def _is_long(word: str) -> bool:
    return _measure(word) > 0


def _has_vowel(word: str) -> bool:
    return any(not _is_consonant(word, place) for place in range(len(word)))


def _ends_double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _is_consonant(word, len(word) - 1)


def _ends_cvc(word: str) -> bool:
    last = len(word) - 1
    return (
        last >= 2
        and _is_consonant(word, last)
        and not _is_consonant(word, last - 1)
        and _is_consonant(word, last - 2)
        and word[last] not in "wxy"
    )


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    if word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


def _past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _is_long(word[:-3]) else word
    for suffix in ("ed", "ing"):
        if word.endswith(suffix):
            base = word[: -len(suffix)]
            return _mended(base) if _has_vowel(base) else word
    return word


def _mended(base: str) -> str:
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if _ends_double(base):
        return base if base[-1] in "lsz" else base[:-1]
    return base + "e" if _measure(base) == 1 and _ends_cvc(base) else base


def _replace(word: str, pairs: tuple[tuple[str, str], ...], admits: Callable[[str], bool]) -> str:
    """Replace the longest of the suffixes that the word has, if `admits` accepts the part before it."""
    found = max((pair for pair in pairs if word.endswith(pair[0])), key=lambda pair: len(pair[0]), default=None)
    if found is None:
        return word
    base = word[: -len(found[0])]
    return base + found[1] if admits(base) else word


def _strip(word: str) -> str:
    suffix = max((suffix for suffix in _STEP_4 if word.endswith(suffix)), key=len, default="")
    base = word.removesuffix(suffix)
    if not suffix or _measure(base) <= 1 or (suffix == "ion" and not base.endswith(("s", "t"))):
        return word
    return base


def _tidy(word: str) -> str:
    if word.endswith("e"):
        base = word[:-1]
        measure = _measure(base)
        if measure > 1 or (measure == 1 and not _ends_cvc(base)):
            word = base
    if word.endswith("ll") and _measure(word[:-1]) > 1:
        word = word[:-1]
    return word
