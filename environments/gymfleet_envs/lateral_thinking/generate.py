"""Puzzles from a grammar: an odd story, hints at the truth behind it, and keys of two values each."""

import random
from dataclasses import dataclass
from typing import Final

from gymfleet_envs.lateral_thinking.lexicon import GROUPS, GROUPS_OF, PAIRS, VALUES, Language, Value
from gymfleet_envs.lateral_thinking.prose import CLOSINGS, OPENINGS, fact
from gymfleet_envs.lateral_thinking.puzzle import Puzzle
from gymfleet_envs.tasks import GeneratedTasks


@dataclass(frozen=True, slots=True)
class _Level:
    language: Language
    num_keys: int
    num_unhinted: int


_SUFFIXES: Final[dict[Language, str]] = {"en": "", "zh": "_zh"}
_LEVELS: Final = {
    f"{name}{suffix}": _Level(language, num_keys, num_unhinted)
    for language, suffix in _SUFFIXES.items()
    for name, num_keys, num_unhinted in (("two_keys", 2, 0), ("few_hints", 2, 2), ("three_keys", 3, 0))
}


def generated_tasks() -> GeneratedTasks[Puzzle]:
    """Return puzzles in both languages; the same truth belongs to the same split in both."""
    return GeneratedTasks(
        "lateral_thinking",
        lambda rng, level: _draw(rng, _LEVELS[level]),
        lambda puzzle: " ".join(value.word("en") for value in puzzle.values),
        levels=tuple(_LEVELS),
    )


def _draw(rng: random.Random, level: _Level) -> Puzzle:
    language = level.language
    pairs = sorted(rng.sample(range(len(PAIRS)), level.num_keys))
    slots = [slot for pair in pairs for slot in PAIRS[pair]]
    values = tuple(_value(rng, slot) for slot in slots)
    unhinted = set(rng.sample(slots, level.num_unhinted))
    told = tuple(GROUPS[value.group] for value in values if value.slot not in unhinted)
    sentences = [rng.choice(OPENINGS[language]), *(group.clue(language) for group in told)]
    glue = " " if language == "en" else ""
    keys = _facts(values, language)
    decoys = tuple(
        key for _ in range(2) for key in _facts(tuple(_other(rng, value) for value in values), language)
    )  # fmt: skip
    return Puzzle(
        language=language,
        story=glue.join([*sentences, CLOSINGS[language]]),
        truth=glue.join(keys),
        story_keys=tuple(sentences),
        keys=keys,
        decoys=decoys,
        values=values,
        told=told,
    )


def _facts(values: tuple[Value, ...], language: Language) -> tuple[str, ...]:
    return tuple(fact(values[place], values[place + 1], language) for place in range(0, len(values), 2))


def _value(rng: random.Random, slot: str) -> Value:
    return rng.choice(VALUES[rng.choice(GROUPS_OF[slot]).word("en")])


def _other(rng: random.Random, value: Value) -> Value:
    return rng.choice([one for group in GROUPS_OF[value.slot] for one in VALUES[group.word("en")] if one != value])
