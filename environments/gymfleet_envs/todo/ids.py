"""Ids as Todoist gives them: ascending numbers with gaps, of ten digits."""

import random
from typing import Final

_FIRST_PROJECT: Final = 2_331_000_000
_FIRST_TASK: Final = 7_896_000_000
_SPAN: Final = 900_000
_MAX_GAP: Final = 60


class Ids:
    """The ids of one account, in the order in which its projects and tasks were made."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._project = _FIRST_PROJECT + rng.randrange(_SPAN)
        self._task = _FIRST_TASK + rng.randrange(_SPAN)

    def project(self) -> str:
        """Return the next project's id."""
        self._project += self._rng.randint(1, _MAX_GAP)
        return str(self._project)

    def task(self) -> str:
        """Return the next task's id."""
        self._task += self._rng.randint(1, _MAX_GAP)
        return str(self._task)
