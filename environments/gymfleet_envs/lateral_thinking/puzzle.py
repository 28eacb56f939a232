"""A lateral thinking puzzle."""

from dataclasses import dataclass

from gymfleet_envs.lateral_thinking.lexicon import Group, Language, Value


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A story for the agent, and the truth behind it, whose keys the host knows."""

    language: Language
    story: str
    truth: str
    story_keys: tuple[str, ...]
    """Facts that the story already states."""
    keys: tuple[str, ...]
    """Facts that the agent has to find out."""
    decoys: tuple[str, ...]
    """Keys of other puzzles, or false ones, which expose a judge that says yes to anything."""
    values: tuple[Value, ...] = ()
    """The values of a generated puzzle: two for each key, in the order of the keys."""
    told: tuple[Group, ...] = ()
    """The groups at which the story of a generated puzzle hints."""
