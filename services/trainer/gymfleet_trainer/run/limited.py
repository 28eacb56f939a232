"""Play the tasks of a stage until a number of environment steps was taken, wave by wave."""

from typing import Final

from gymfleet_contracts.rollout import GroupRequest

from gymfleet_trainer.run.playing import Playing, Wanted

_FEW: Final = 8
"""Tasks of the first wave. Once what is left suffices for no more than so many, one wave takes it all."""
_SHARE: Final = 0.75
"""Before that, a wave asks for this share of the tasks that the rest of the steps suffices for, as far as is known."""


class Limited(Playing):
    """Episodes of so many tasks as take a number of environment steps, and of no more than the stage names.

    A wave is asked for when the one before it is over, and is as large as the steps that are left allow, at what a task
    took so far; but no larger than all before it, since a few tasks say little of what others take. So short episodes
    are not preferred to long ones, and which tasks are played depends on no order of arrival.
    """

    def __init__(self, wanted: Wanted, max_env_steps: int) -> None:
        super().__init__(wanted)
        self._max_env_steps = max_env_steps

    @property
    def open(self) -> bool:
        """Return whether episodes are still wanted."""
        return bool(self._again or self._asked) or self._size_of_wave() > 0

    def _due(self) -> list[GroupRequest]:
        if self._asked or self._again:
            requests, self._again = self._again, []
            return requests
        begin, self._next = self._next, self._next + self._size_of_wave()
        return [self._request(index, 0, self._plays.samples_per_task) for index in range(begin, self._next)]

    def _size_of_wave(self) -> int:
        left = self._max_env_steps - self.env_steps
        if left <= 0:
            return 0
        # Nothing is taken before the first wave, nor where no reply asks for an action.
        for_all = left * self._next // self.env_steps if self.env_steps else _FEW
        wave = for_all if for_all <= _FEW else max(_FEW, int(_SHARE * for_all))
        return min(max(wave, 1), max(self._next, _FEW), self._num_groups - self._next, self.MAX_OPEN)
