"""The messages between the service and a process that compares answers."""

from enum import StrEnum
from typing import Final

READY: Final = "ready"
GOLD_READ: Final = "gold read"


class Verdict(StrEnum):
    """The result of a comparison."""

    RIGHT = "right"
    WRONG = "wrong"
    UNREADABLE_GOLD = "unreadable gold"
    COSTLY_GOLD = "costly gold"
    COSTLY = "costly"
    """The answer takes more time or memory than it may."""
