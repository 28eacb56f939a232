"""What a TextCraft task holds."""

from dataclasses import dataclass

from gymfleet_envs.textcraft.recipes import RecipeBook


@dataclass(frozen=True, slots=True)
class CraftTask:
    """Make `goal`; `commands` are shown, `book` decides what works."""

    book: RecipeBook
    goal: str
    commands: tuple[str, ...]
