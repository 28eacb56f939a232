"""BabyAI with steps that take time but no processor, like those of a browser, a build or another company's service."""

import math
import random
import time
from typing import ClassVar

from gymfleet_envs.babyai.environment import BabyAI
from gymfleet_envs.babyai.tasks import BabyAITask
from gymfleet_envs.environment import Options, Outcome

_SIGMA = 1.3
"""Standard deviation of the logarithm: a step of the slowest task in a hundred takes 20 times the median."""
SLOW_Z = 1.2816
"""Tasks with a slowness above this are the slowest tenth."""


class WaitingOptions(Options):
    """How long a step takes."""

    median_s: float = 0.25
    """The median over tasks; each task has its own step time, drawn from a lognormal distribution."""


def slowness(task: BabyAITask) -> float:
    """Return the logarithm of a task's step time relative to the median, in standard deviations."""
    return random.Random(f"waiting/{task.level}/{task.seed}").gauss(0.0, 1.0)


class Waiting(BabyAI):
    """BabyAI that waits before it answers a step."""

    name: ClassVar[str] = "waiting"
    blocking: ClassVar[bool] = True
    options: ClassVar[WaitingOptions] = WaitingOptions()

    def reset(self, task: BabyAITask, seed: int) -> str:
        """Build the world."""
        self._slowness = slowness(task)
        return super().reset(task, seed)

    def step(self, action: str) -> Outcome:
        """Wait, then act; `info` says whether the task is one of the slowest tenth."""
        time.sleep(self.options.median_s * math.exp(_SIGMA * self._slowness))
        outcome = super().step(action)
        outcome.info["slow"] = self._slowness > SLOW_Z
        return outcome


ENVIRONMENT = Waiting
