"""The data of a TextCraft task."""

from dataclasses import dataclass

from gymfleet_envs.textcraft.recipes import RecipeBook


@dataclass(frozen=True, slots=True)
class CraftTask:
    """Make `goal`; the agent sees `commands`, and `book` decides what works."""

    book: RecipeBook
    goal: str
    commands: tuple[str, ...]
