"""Play the tasks of a stage, wave by wave, until a number of environment steps was taken."""

from typing import Final

from gymfleet_contracts.rollout import GroupRequest

from gymfleet_trainer.run.playing import Playing, Wanted

_FEW: Final = 8
"""Tasks of the first wave. Once the remaining steps suffice for no more tasks than this, one wave takes them all."""
_SHARE: Final = 0.75
"""Before that, a wave requests this share of the tasks for which the remaining steps suffice, as far as is known."""


class Limited(Playing):
    """Episodes of as many tasks as take a number of environment steps, and of no more than the stage names.

    A wave is requested when the previous one is over. It is as large as the remaining steps allow at the mean cost of a
    task so far, but no larger than all earlier waves together, since a few tasks say little about the cost of others.
    So short episodes are not preferred to long ones, and the tasks played do not depend on the order of arrival.
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
        # No steps are taken before the first wave, nor if no reply contains an action.
        for_all = left * self._next // self.env_steps if self.env_steps else _FEW
        wave = for_all if for_all <= _FEW else max(_FEW, int(_SHARE * for_all))
        return min(max(wave, 1), max(self._next, _FEW), self._num_groups - self._next, self.MAX_OPEN)
