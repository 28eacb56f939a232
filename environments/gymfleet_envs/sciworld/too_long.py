"""Variations that the engine's own solution does not finish within 100 moves, measured with 1.2.3."""

from collections.abc import Mapping
from typing import Final

_BY_TASK: Final[Mapping[str, tuple[int, ...]]] = {
    "boil": (20, 22, 26, 28),
    "melt": (24, 25),
    "freeze": (5, 11, 15, 19, 20, 22, 24, 25, 27),
    "change-the-state-of-matter-of": (24, 25),
    "grow-fruit": (5, 6, 8, 26, 29, 41, 44, 59, 62, 65, 68, 77, 78, 80, 83, 87, 95, 98, 113, 116),
}
TOO_LONG: Final = frozenset((task, index) for task, indices in _BY_TASK.items() for index in indices)
