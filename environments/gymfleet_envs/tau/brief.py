"""A customer's brief: the text of a task, taken apart into the wishes and the answers in it."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

Kind = Literal["identity", "manner", "condition", "wish"]
_ENDS: Final = re.compile(
    r"(?<!i\.e\.)(?<!e\.g\.)(?<=[.!?])\s+|\n+|;\s+(?=For |Return |Cancel |Exchange |Modify |Change )"
)
_MAX_SENTENCES: Final = 64
_EMAIL: Final = re.compile(r"[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{0,64}\w")
_USER_ID: Final = re.compile(r"\b[a-z]{1,32}_[a-z]{1,32}_\d{3,5}\b")
_ZIP: Final = re.compile(r"\b\d{5}\b")
_LIVES: Final = re.compile(r"\b(?:zip|live|lives|living|reside)\b", re.IGNORECASE)
_BESIDE: Final = re.compile(r"\w{0,64}_\w{0,64}|#\w+|\S{1,64}@\S{1,64}")
_NAME: Final = re.compile(
    r"\b(?:You(?:r)? name is|You are|You're|I am|name is|called|named)\s+([A-Z][\w'-]+)\s+([A-Z][\w'-]+)\b"
)
_MANNER: Final = re.compile(r"(?:You are|You're|You seem|You sound)(?: [a-z-]+,?)+[.;]?")
_MATTERS: Final = re.compile(
    r"\b(?:want|wish|would|willing|payment|refund|card|cancel|change|return|exchange|order|flight|trip|ticket|insurance|"
    r"insist|bags?|cabin|upgrade|booking)\b"
)
_STAGING: Final = re.compile(
    r"\b(?:paraphrase|this instruction|conversation|reactive|personality|first message|upfront|be persistent|"
    r"(?:not|n't) (?:say|mention|reveal|offer)|(?:make|be) sure (?:to|you) (?:\w+ )?mention|make everything sound|"
    r"thank the agent|one thing at a time|too many words|talk \w+ tersely|say things in|tactics|no for an answer)\b",
    re.IGNORECASE,
)
"""Phrases on how to play the customer, not on what the customer wants."""
_CONDITION: Final = re.compile(
    r"\s*(?:(?:and|but|then|otherwise|else),?\s+)?(?:only\s+)?(?:if|unless|when)\b", re.IGNORECASE
)
_WISH: Final = re.compile(
    r"\b(?:want|wish|would like|'d like|need|wonder|change|cancel|return|exchange|modify|book|upgrade|refund|update|"
    r"add|remove|know|check|prefer)\b",
    re.IGNORECASE,
)
_ME: Final = re.compile(
    r"\b(to|for|with|by|from|of|ask|asks|tell|tells|told|give|gives|charge|charges|let|lets|help|helps|offer|offers|"
    r"inform|informs|sent|send|provides?|gets?) you\b",
    re.IGNORECASE,
)
_PERSONS: Final = (
    (re.compile(r"\byou name is\b", re.IGNORECASE), "my name is"),
    (re.compile(r"\byourself\b", re.IGNORECASE), "myself"),
    (re.compile(r"\byours\b", re.IGNORECASE), "mine"),
    (re.compile(r"\byour\b", re.IGNORECASE), "my"),
    (re.compile(r"\byou are\b", re.IGNORECASE), "I am"),
    (re.compile(r"\byou're\b", re.IGNORECASE), "I'm"),
    (re.compile(r"\byou were\b", re.IGNORECASE), "I was"),
    (re.compile(r"\byou\b", re.IGNORECASE), "I"),
)


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, as the customer would say it."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Brief:
    """Everything that the customer knows."""

    sentences: tuple[Sentence, ...]
    name: str | None
    email: str | None
    zip_code: str | None
    user_id: str | None

    def of_kind(self, kind: Kind) -> tuple[int, ...]:
        """Return the places of the sentences of a kind."""
        return tuple(place for place, one in enumerate(self.sentences) if one.kind == kind)


@lru_cache(maxsize=1024)
def read_brief(instruction: str) -> Brief:
    """Take a task's text apart. The text is not understood: sentences are sorted by the words in them."""
    parts = _ENDS.split(instruction.strip())[:_MAX_SENTENCES]
    sentences = [Sentence(_kind(part.strip()), first_person(part.strip())) for part in parts if part.strip(" .;")]
    name = _NAME.search(instruction)
    zips = next(filter(None, map(_own_zip, _ENDS.split(instruction))), None)
    emails = _EMAIL.findall(instruction)
    ids = _USER_ID.search(_EMAIL.sub(" ", instruction))
    return Brief(
        tuple(sentences),
        f"{name[1]} {name[2]}" if name else None,
        " or ".join(emails) or None,
        zips,
        ids[0] if ids else None,
    )


def first_person(sentence: str) -> str:
    """Return a sentence addressed to a person as that person would say it: `your order` as `my order`."""
    spoken = _ME.sub(r"\1 me", sentence)
    for pattern, own in _PERSONS:
        spoken = pattern.sub(own, spoken)
    spoken = spoken.strip(" ;")
    return spoken[:1].upper() + spoken[1:] + ("" if spoken.endswith((".", "!", "?")) else ".")


def _kind(sentence: str) -> Kind:
    if _CONDITION.match(sentence):
        return "condition"
    if _STAGING.search(sentence) or (_MANNER.fullmatch(sentence) and not _MATTERS.search(sentence)):
        return "manner"
    if _is_identity(sentence) and not _WISH.search(sentence):
        return "identity"
    return "wish"


def _own_zip(sentence: str) -> str | None:
    """Return the zip code of a sentence about where the customer lives, or None."""
    if _NAME.search(sentence) is None and _LIVES.search(sentence) is None:
        return None
    found = _ZIP.search(_BESIDE.sub(" ", sentence))
    return found[0] if found else None


def _is_identity(sentence: str) -> bool:
    patterns = (_NAME, _EMAIL, _USER_ID)
    return any(pattern.search(sentence) for pattern in patterns)
