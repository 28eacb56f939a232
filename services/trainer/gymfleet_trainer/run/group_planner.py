"""What the trainer requests: which task is in which slot, and how far ahead groups are requested.

Everything here is a pure function of recipe, run id and position, so that a
restarted run requests the same groups under the same ids.
"""

import hashlib
import random
import re
from dataclasses import dataclass, replace
from typing import Final

from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.rollout import Budget, GroupRequest, Sampling, StrategySpec
from gymfleet_contracts.session import OpenSession, Split
from gymfleet_contracts.trajectory import Purpose

from gymfleet_trainer.run.state import DEMONSTRATION_PREFIX, evaluation_prefix

_EXPERT: Final = StrategySpec(use="expert")
_MAX_SHUFFLED: Final = 1_000_000
_TRAIN_ID: Final = re.compile(r"s(\d{6,9})-g(\d{2,9})(?:-t(\d{1,9}))?(?:-r(\d{1,9}))?")
_DEMONSTRATION_ID: Final = re.compile(DEMONSTRATION_PREFIX + r"(\d{6,9})")
_EVALUATION_ID: Final = re.compile(r"(eval|eval_before|eval_after|eval_step_\d{6,9})-t(\d{6,9})(?:-r(\d{1,9}))?")


class TaskSequence:
    """An endless sequence of task indices: every task once per pass, each pass in a different order."""

    def __init__(self, num_tasks: int, seed: int) -> None:
        if num_tasks < 1:
            raise ValueError("an environment without train tasks cannot be trained on")
        self._num_tasks = num_tasks
        self._seed = seed
        self._pass = -1
        self._order: list[int] = []

    def __getitem__(self, position: int) -> int:
        if self._num_tasks > _MAX_SHUFFLED:  # no run gets near a second pass, so draw independently
            return random.Random(f"{self._seed}/{position}").randrange(self._num_tasks)
        number, place = divmod(position, self._num_tasks)
        if number != self._pass:
            self._order = list(range(self._num_tasks))
            random.Random(f"{self._seed}/pass/{number}").shuffle(self._order)
            self._pass = number
        return self._order[place]


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A place in the training plan.

    `replacement` counts how often the whole group was requested again, `draw` how often it got another task.
    """

    number: int
    replacement: int = 0
    draw: int = 0

    def again(self) -> "PlannedGroup":
        """Return the slot with the same task to be played again, because its episodes came too late."""
        return replace(self, replacement=self.replacement + 1)

    def redrawn(self) -> "PlannedGroup":
        """Return the slot with another task, because this task's episodes kept failing and it may be the reason."""
        return replace(self, replacement=self.replacement + 1, draw=self.draw + 1)


class GroupPlanner:
    """Create the run's group requests; `gamma` is the algorithm's discount per token."""

    def __init__(self, recipe: Recipe, run_id: str, num_train_tasks: int, *, gamma: float = 1.0) -> None:
        self._recipe = recipe
        self._reward = recipe.reward_spec(gamma)
        self._run_id = run_id
        self._tasks = TaskSequence(num_train_tasks, recipe.seed)
        self._num_train_tasks = num_train_tasks

    def train(self, slot: PlannedGroup) -> GroupRequest:
        """Return the request for a slot's group: `s000012-g03` is the fourth group planned for step 12.

        `-r1` marks its first replacement, with the same task; `-t1` is appended to the id for the first other task.
        """
        rl = self._recipe.rl
        if rl is None:
            raise ValueError("the recipe has no [rl]")
        step, place = divmod(slot.number, rl.groups_per_step)
        group_id = f"s{step + 1:06d}-g{place:02d}"
        group_id += f"-t{slot.draw}" if slot.draw else ""
        group_id += f"-r{slot.replacement}" if slot.replacement else ""
        position = _hashed(f"{self._recipe.seed}/{slot.number}/{slot.draw}") if slot.draw else slot.number
        task = self._task(self._recipe.env.train_split, self._tasks[position], seed=slot.number % 2**31)
        rollout = self._recipe.rollout
        request = self._request(group_id, task, rl.group_size, "train", rollout.strategy.spec, rollout.sampling)
        return request if rollout.budget == Budget() else request.model_copy(update={"budget": rollout.budget})

    def slot(self, group_id: str) -> PlannedGroup | None:
        """Return a training group's place in the plan, or None for an id that does not belong to this run."""
        rl, parts = self._recipe.rl, _TRAIN_ID.fullmatch(group_id)
        if rl is None or parts is None:
            return None
        step, place, draw, replacement = (int(part or 0) for part in parts.groups())
        slot = PlannedGroup((step - 1) * rl.groups_per_step + place, replacement, draw)
        planned = 1 <= step <= rl.steps and place < rl.groups_per_step
        return slot if planned and self.train(slot).group_id == group_id else None

    def find(self, group_id: str) -> GroupRequest | None:
        """Return the request that this run makes, or may still make, under an id; None for an id of another run."""
        if (slot := self.slot(group_id)) is not None:
            return self.train(slot)
        if (parts := _DEMONSTRATION_ID.fullmatch(group_id)) is not None:
            wanted = self._recipe.sft.num_demonstrations if self._recipe.sft else 0
            return self._demonstration(int(parts[1])) if int(parts[1]) < wanted else None
        if (parts := _EVALUATION_ID.fullmatch(group_id)) is not None and int(parts[2]) < self._recipe.eval.num_tasks:
            samples = self._recipe.eval.samples_per_task
            return self.evaluation(parts[1], int(parts[2]), int(parts[3] or 0), samples)
        return None

    def demonstrations(self) -> list[GroupRequest]:
        """Return requests for one expert episode on each of the first train tasks, as many as the recipe wants."""
        wanted = self._recipe.sft.num_demonstrations if self._recipe.sft else 0
        return [self._demonstration(index) for index in range(wanted)]

    def _demonstration(self, index: int) -> GroupRequest:
        seed, task = divmod(index, self._num_train_tasks)
        opened = self._task(self._recipe.env.train_split, task, seed=seed)
        return self._request(f"{DEMONSTRATION_PREFIX}{index:06d}", opened, 1, "demonstration", _EXPERT, Sampling())

    def evaluation(self, name: str, task: int, replacement: int, samples: int) -> GroupRequest:
        """Return the request for task number `task` of the held-out split; a replacement plays only what failed."""
        suffix = f"-r{replacement}" if replacement else ""
        group_id = f"{evaluation_prefix(name)}{task:06d}{suffix}"
        opened = self._task(self._recipe.env.eval_split, task, seed=0)
        return self._request(group_id, opened, samples, "eval", StrategySpec(), self._recipe.eval.sampling)

    def _task(self, split: Split, index: int, *, seed: int) -> OpenSession:
        env = self._recipe.env
        return OpenSession(env=env.name, split=split, level=env.level, task_index=index, seed=seed)

    def _request(
        self,
        group_id: str,
        task: OpenSession,
        samples: int,
        purpose: Purpose,
        strategy: StrategySpec,
        sampling: Sampling,
    ) -> GroupRequest:
        return GroupRequest(
            run_id=self._run_id,
            group_id=group_id,
            task=task,
            num_samples=samples,
            purpose=purpose,
            strategy=strategy,
            format=self._recipe.rollout.format,
            sampling=sampling,
            limits=self._recipe.rollout.limits,
            reward=self._reward,
        )


def planned_slots(recipe: Recipe, steps_done: int) -> int:
    """Return how many slots may have been requested once `steps_done` steps are finished.

    These are the groups for the next step and for `max_staleness` steps after it, but
    none beyond the last step. It is 0 for a recipe without reinforcement learning.
    """
    if recipe.rl is None:
        return 0
    return min(steps_done + 1 + recipe.rl.max_staleness, recipe.rl.steps) * recipe.rl.groups_per_step


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
