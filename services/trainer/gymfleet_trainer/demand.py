"""What the trainer asks for: which task stands in which slot, and how far ahead of need.

Everything here is a pure function of recipe, run id and position, so that a
restarted run asks for the same groups under the same ids.
"""

import hashlib
import random
from dataclasses import dataclass
from typing import Final

from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.rollout import GroupRequest, Sampling
from gymfleet_contracts.session import OpenSession, Split
from gymfleet_contracts.trajectory import Purpose, Strategy

from gymfleet_trainer.state import DEMONSTRATION_PREFIX, evaluation_prefix

_MAX_SHUFFLED: Final = 1_000_000


class TaskSequence:
    """An endless sequence of task indices: every task once per pass, each pass in an order of its own."""

    def __init__(self, num_tasks: int, seed: int) -> None:
        if num_tasks < 1:
            raise ValueError("an environment without train tasks cannot be trained on")
        self._num_tasks = num_tasks
        self._seed = seed
        self._pass = -1
        self._order: list[int] = []

    def __getitem__(self, position: int) -> int:
        if self._num_tasks > _MAX_SHUFFLED:  # no run comes near to a second pass: draw independently
            return random.Random(f"{self._seed}/{position}").randrange(self._num_tasks)
        number, place = divmod(position, self._num_tasks)
        if number != self._pass:
            self._order = list(range(self._num_tasks))
            random.Random(f"{self._seed}/pass/{number}").shuffle(self._order)
            self._pass = number
        return self._order[place]


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in the training plan. `replacement` counts how often its group had to be asked for anew."""

    number: int
    replacement: int = 0


class Demand:
    """Writes the run's group requests."""

    def __init__(self, recipe: Recipe, run_id: str, num_train_tasks: int) -> None:
        self._recipe = recipe
        self._run_id = run_id
        self._tasks = TaskSequence(num_train_tasks, recipe.seed)
        self._num_train_tasks = num_train_tasks

    def train(self, slot: Slot) -> GroupRequest:
        """The group in a slot: `s000012-g03` is the fourth group planned for step 12, `-r1` its first replacement."""
        rl = self._recipe.rl
        if rl is None:
            raise ValueError("the recipe has no [rl]")
        step, place = divmod(slot.number, rl.groups_per_step)
        group_id = f"s{step + 1:06d}-g{place:02d}" + (f"-r{slot.replacement}" if slot.replacement else "")
        # A replacement plays another task: the one that failed may be the reason.
        position = slot.number
        if slot.replacement:
            position = _hashed(f"{self._recipe.seed}/{slot.number}/{slot.replacement}")
        task = self._task(self._recipe.env.train_split, self._tasks[position], seed=slot.number % 2**31)
        return self._request(group_id, task, rl.group_size, "train", "policy", self._recipe.rollout.sampling)

    def demonstrations(self) -> list[GroupRequest]:
        """One expert episode on each of the first train tasks, as many as the recipe asks for."""
        wanted = self._recipe.sft.num_demonstrations if self._recipe.sft else 0
        split = self._recipe.env.train_split
        return [
            self._request(
                f"{DEMONSTRATION_PREFIX}{index:06d}",
                self._task(split, index % self._num_train_tasks, seed=index // self._num_train_tasks),
                1, "demonstration", "expert", Sampling(),
            )
            for index in range(wanted)
        ]  # fmt: skip

    def evaluation(self, name: str, task: int, replacement: int, samples: int) -> GroupRequest:
        """Task number `task` of the held-out split; a replacement plays only what failed."""
        suffix = f"-r{replacement}" if replacement else ""
        group_id = f"{evaluation_prefix(name)}{task:06d}{suffix}"
        opened = self._task(self._recipe.env.eval_split, task, seed=0)
        return self._request(group_id, opened, samples, "eval", "policy", self._recipe.eval.sampling)

    def _task(self, split: Split, index: int, *, seed: int) -> OpenSession:
        env = self._recipe.env
        return OpenSession(env=env.name, split=split, level=env.level, task_index=index, seed=seed)

    def _request(
        self, group_id: str, task: OpenSession, samples: int, purpose: Purpose, strategy: Strategy, sampling: Sampling
    ) -> GroupRequest:
        return GroupRequest(
            run_id=self._run_id,
            group_id=group_id,
            task=task,
            num_samples=samples,
            purpose=purpose,
            strategy=strategy,
            grammar=self._recipe.rollout.grammar,
            sampling=sampling,
            limits=self._recipe.rollout.limits,
            scoring=self._recipe.reward,
        )


def planned_slots(recipe: Recipe, steps_done: int) -> int:
    """How many slots may have been asked for once `steps_done` steps are finished.

    Groups for the next step and for `max_staleness` steps beyond it; never
    beyond the last step. 0 for a recipe without reinforcement learning.
    """
    if recipe.rl is None:
        return 0
    return min(steps_done + 1 + recipe.rl.max_staleness, recipe.rl.steps) * recipe.rl.groups_per_step


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
