"""Analyse a question by its words: for the host without a model, and for the rules that hold with a model too."""

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

from gymfleet_envs.lateral_thinking.lexicon import GROUPS, VALUES, Group, Language, Value

MOST_CHARS: Final[dict[Language, int]] = {"en": 240, "zh": 80}
"""Limit of a question. The longest of AgentBench's keys has 173 characters in English and 48 in Chinese."""
_GIVES_UP: Final[dict[Language, tuple[str, ...]]] = {
    "en": ("new story", "other story", "new game", "other game", "new question", "other question", "other round",
           "new round", "great job", "further question"),
    "zh": ("感谢", "谢谢", "再见"),
}  # fmt: skip
_NEGATION: Final[dict[Language, re.Pattern[str]]] = {
    "en": re.compile(r"\b(?:not|never|nobody|none|no one|neither|nor)\b|n['’]t\b"),
    "zh": re.compile("不(?!是吗|对吗)|没|非|未|无"),
}
_CHINESE_ASKS: Final = re.compile("是不是|有没有|对不对|会不会|能不能|要不要")
_MARKS: Final = re.compile("[?？]")
_WORD: Final = re.compile(r"[a-z0-9]+")
_CHARACTER: Final = re.compile(r"[\u3400-\u9fff0-9a-z]")
_COMMON: Final = frozenset({
    "a", "an", "the", "is", "are", "was", "were", "be", "been", "being", "do", "does", "did", "have", "has", "had",
    "of", "to", "in", "on", "at", "by", "for", "with", "from", "as", "and", "or", "it", "its", "this", "that", "there",
    "these", "those", "he", "she", "they", "him", "her", "his", "them", "their", "i", "me", "my", "you", "your", "we",
    "who", "which", "what", "when", "where", "because", "so", "but", "if", "then", "than", "will", "would", "could",
    "can", "true", "not", "no", "s", "t", "into", "out", "up", "just", "also", "very", "after", "before", "while",
})  # fmt: skip
_COMMON_ZH: Final = frozenset("的了是在和就也都还吗呢吧啊对着把被给为这那一个不没有会能很")


@dataclass(frozen=True, slots=True)
class Named:
    """The values and groups of the lexicon that a question names."""

    values: tuple[Value, ...]
    groups: tuple[Group, ...]
    is_negated: bool

    @property
    def is_too_much(self) -> bool:
        """Whether the question asks for more than one thing: more than a fact of two slots, or several groups."""
        slots = [value.slot for value in self.values]
        return len(slots) > 2 or len(set(slots)) < len(slots) or (not slots and len(self.groups) > 1)


def clean(action: str) -> str:
    """Return the first line of the agent's text, as AgentBench reads it, without invisible characters."""
    line = next((line for line in action.splitlines() if line.strip()), "")
    if line.isascii() and line.isprintable():
        return re.sub(" +", " ", line).strip()
    shown = "".join(sign if sign.isprintable() else " " for sign in unicodedata.normalize("NFKC", line))
    return re.sub(r"\s+", " ", shown).strip()


def essence(question: str) -> str:
    """Return a text that is equal for two questions that are the same."""
    return clean(question).rstrip("?.!。！ ").lower()


def is_one_question(question: str, language: Language) -> bool:
    """Return whether a question is short enough and has at most one sentence that asks."""
    return 0 < len(question) <= MOST_CHARS[language] and len(_MARKS.findall(question)) <= 1


def gives_up(question: str, language: Language) -> bool:
    """Return whether a question leaves the game or asks for another one, by AgentBench's words."""
    said = question.lower()
    return any(words in said for words in _GIVES_UP[language])


def is_negated(text: str, language: Language) -> bool:
    """Return whether a text denies something."""
    said = text.lower() if language == "en" else _CHINESE_ASKS.sub("", text)
    return len(_NEGATION[language].findall(said)) % 2 == 1


def terms(text: str, language: Language) -> frozenset[str]:
    """Return the meaningful words of a text, cut to their stems; pairs of characters in Chinese."""
    said = text.lower()
    if language == "en":
        return frozenset(_stem(word) for word in _WORD.findall(said) if word not in _COMMON)
    signs = [sign if _CHARACTER.match(sign) and sign not in _COMMON_ZH else " " for sign in said]
    pieces = "".join(signs).split()
    return frozenset(piece[place : place + 2] for piece in pieces for place in range(max(1, len(piece) - 1)))


def share(part: frozenset[str], whole: frozenset[str]) -> float:
    """Return the share of the terms of `part` that are in `whole`; 0 if `part` is empty."""
    return len(part & whole) / len(part) if part else 0.0


def named(question: str, language: Language) -> Named:
    """Return the values and groups of the lexicon that a question names."""
    said = question.lower()
    words = dict.fromkeys(found[1] for found in _LEXICON[language].finditer(said))
    values = tuple(_VALUES[language][word] for word in words if word in _VALUES[language])
    groups = tuple(_GROUPS[language][word] for word in words if word in _GROUPS[language])
    return Named(values, groups, is_negated(question, language))


def _stem(word: str) -> str:
    for ending in ("ing", "ies", "ed", "es", "s", "ly"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


_VALUES: Final = {
    language: {value.word(language): value for values in VALUES.values() for value in values} for language in MOST_CHARS
}
_GROUPS: Final = {language: {group.word(language): group for group in GROUPS.values()} for language in MOST_CHARS}
_LEXICON: Final[dict[Language, re.Pattern[str]]] = {
    "en": re.compile(rf"\b({'|'.join((*_VALUES['en'], *_GROUPS['en']))})(?:'?s|es)?\b"),
    "zh": re.compile(f"({'|'.join((*_VALUES['zh'], *_GROUPS['zh']))})"),
}
