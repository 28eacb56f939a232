"""What a lateral thinking puzzle is."""

from dataclasses import dataclass

from gymfleet_envs.lateral_thinking.lexicon import Group, Language, Value


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A story that the agent is told, and the truth behind it, of which the host knows the keys."""

    language: Language
    story: str
    truth: str
    story_keys: tuple[str, ...]
    """What the story already says."""
    keys: tuple[str, ...]
    """What is to be found out."""
    decoys: tuple[str, ...]
    """Keys of other puzzles, or false ones, by which a judge is found out that says yes to anything."""
    values: tuple[Value, ...] = ()
    """Of a generated puzzle: two for each key, in the order of the keys."""
    told: tuple[Group, ...] = ()
    """Of a generated puzzle: the groups at which the story hints."""
