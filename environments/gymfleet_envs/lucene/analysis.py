"""Text to terms, as Lucene's EnglishAnalyzer does it: words, no possessives, no stop words, stems."""

import re
import unicodedata
from functools import lru_cache
from typing import Final

from gymfleet_envs.lucene.porter import stem

MAX_TERM_CHARS: Final = 255
_STOP_WORDS: Final = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
})  # fmt: skip
_IDEOGRAPH: Final = "\u3040-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_KATAKANA: Final = "\u30a0-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"
# What belongs to the character before it (annex 29's Extend and Format): accents, vowel signs, soft hyphens. Python's
# words leave it out. Only the first plane: a class of `re` that reaches further is several times slower.
_MARK: Final = "".join(
    sign for code in range(0x80, 0x10000)
    if code != 0x200B and unicodedata.category(sign := chr(code)) in ("Mn", "Mc", "Me", "Cf")
)  # fmt: skip
# The symbols of Unicode's `Emoji` property beyond ASCII and Latin-1; Lucene counts each as a word.
_EMOJI: Final = (
    "\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u23cf\u23e9-\u23f3\u23f8-\u23fa\u24c2"
    "\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2604\u260e\u2611\u2614\u2615\u2618\u261d\u2620\u2622\u2623\u2626"
    "\u262a\u262e\u262f\u2638-\u263a\u2640\u2642\u2648-\u2653\u265f\u2660\u2663\u2665\u2666\u2668\u267b\u267e\u267f"
    "\u2692-\u2697\u2699\u269b\u269c\u26a0\u26a1\u26a7\u26aa\u26ab\u26b0\u26b1\u26bd\u26be\u26c4\u26c5\u26c8\u26ce"
    "\u26cf\u26d1\u26d3\u26d4\u26e9\u26ea\u26f0-\u26f5\u26f7-\u26fa\u26fd\u2702\u2705\u2708-\u270d\u270f\u2712\u2714"
    "\u2716\u271d\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763\u2764\u2795-\u2797\u27a1"
    "\u27b0\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
_ONE_EMOJI: Final = rf"[{_EMOJI}][\ufe0f\U0001f3fb-\U0001f3ff]*"
_BASE: Final = rf"[^\W{_IDEOGRAPH}{_KATAKANA}]"
_RUN: Final = rf"{_BASE}+(?:[{_MARK}]+{_BASE}*)*"
_LETTER: Final = r"[^\W\d_]"
# Word boundaries of Unicode's annex 29: a point or an apostrophe joins letters or digits, a colon letters alone.
_WORD: Final = re.compile(
    rf"[{_IDEOGRAPH}][{_MARK}]*|(?:[{_KATAKANA}]+[{_MARK}]*)+|{_ONE_EMOJI}(?:\u200d{_ONE_EMOJI})*"
    rf"|{_RUN}(?:(?:(?:(?<={_LETTER})|(?<=[{_MARK}]))[:.'\u2019\u00b7](?={_LETTER})|(?<=\d)[.,;'\u2044](?=\d)){_RUN})*"
)
_POSSESSIVES: Final = ("'s", "\u2019s", "\uff07s")


def terms(text: str) -> list[str]:
    """Return the terms of a text, in order, with repetitions. No text is an error, and nothing in it is syntax."""
    # Java's lower case is one character for one, without the two exceptions that Python makes.
    lower = text.replace("\u0130", "i").replace("\u03a3", "\u03c3").lower()
    return [term for word in _WORD.findall(lower) if (term := _term(word[:MAX_TERM_CHARS]))]


@lru_cache(maxsize=100_000)
def _term(word: str) -> str:
    if word.endswith(_POSSESSIVES):
        word = word[:-2]
    return "" if word in _STOP_WORDS or not word.strip("_") else stem(word)
