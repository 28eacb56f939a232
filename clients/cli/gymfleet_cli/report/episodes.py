"""Texts of episodes for the page. They come from models and environments, so the template escapes them."""

from typing import Final

from gymfleet_contracts.trajectory import Turn

MAX_TURNS: Final = 30
_MAX_CHARS: Final = 2000


def faults(turn: Turn) -> list[str]:
    """Return the faults of a reply."""
    return ["not in the format"] * (not turn.format_valid) + ["action not understood"] * (not turn.action_valid)


def visible(text: str) -> str:
    """Return the beginning of a text, with replacement characters for invisible ones."""
    cut = text.strip()
    if len(cut) > _MAX_CHARS:
        cut = f"{cut[:_MAX_CHARS]} … ({len(cut) - _MAX_CHARS} characters more)"
    return "".join(char if char in "\n\t" or char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in cut)
