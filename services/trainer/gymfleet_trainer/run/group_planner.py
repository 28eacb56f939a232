"""The trainer's requests: which task is in which slot, and how far ahead groups are requested.

Everything here is a pure function of recipe, run id and position, so that a
restarted run requests the same groups under the same ids.
"""

import hashlib
import random
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.recipe_sections import EnvironmentSection
from gymfleet_contracts.reward import RewardSection
from gymfleet_contracts.rollout import Budget, GroupRequest, Sampling, StrategySpec
from gymfleet_contracts.schedule import value_at
from gymfleet_contracts.session import OpenSession, Split, TaskRef
from gymfleet_contracts.trajectory import Purpose

from gymfleet_trainer.learning.options import ReinforceOptions
from gymfleet_trainer.stage import Plays

_MAX_SHUFFLED: Final = 1_000_000
_TRAIN_ID: Final = re.compile(r"s(\d{6,9})-g(\d{2,9})(?:-t(\d{1,9}))?(?:-r(\d{1,9}))?")
_PLAYED_ID: Final = re.compile(r"t(\d{6,9})(?:-r(\d{1,9}))?")


class TaskSequence:
    """An endless sequence of task indices: every task once per pass, each pass in a different order."""

    def __init__(self, num_tasks: int, seed: str) -> None:
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


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The requests of a `reinforce` stage."""

    stage: str
    options: ReinforceOptions
    gamma: float = 1.0
    """The algorithm's discount per token."""
    first_slot: int = 0
    """Number of slots of earlier stages: the tasks continue after theirs."""
    state_keys: bool = False
    """Whether the algorithm needs the keys of states."""
    reward: RewardSection | None = None
    """The stage's own reward; by default that of the recipe or the environment."""


class Mixture:
    """The environment of each place of a sequence, chosen by the environments' weights as evenly as possible.

    The next place goes to the environment that is furthest behind its share (smooth weighted round-robin).
    """

    def __init__(self, weights: tuple[float, ...]) -> None:
        self._weights = weights
        self._credit = [0.0] * len(weights)
        self._places: list[list[int]] = [[] for _ in weights]
        self._chosen: list[int] = []

    def __getitem__(self, place: int) -> tuple[int, int]:
        """Return the environment of a place, and how many earlier places have the same environment."""
        if len(self._weights) == 1:
            return 0, place
        while len(self._chosen) <= place:
            self._credit = [credit + weight for credit, weight in zip(self._credit, self._weights, strict=True)]
            chosen = max(range(len(self._credit)), key=self._credit.__getitem__)
            self._credit[chosen] -= sum(self._weights)
            self._places[chosen].append(len(self._chosen))
            self._chosen.append(chosen)
        chosen = self._chosen[place]
        return chosen, bisect_left(self._places[chosen], place)


class GroupPlanner:
    """Create the run's group requests.

    Args:
        recipe: the recipe.
        run_id: the run's id.
        num_tasks: for each environment, by its name, the number of tasks in each split.
    """

    def __init__(self, recipe: Recipe, run_id: str, num_tasks: Mapping[str, Mapping[Split, int]]) -> None:
        self._recipe = recipe
        self._run_id = run_id
        self._envs = recipe.environments
        self._mixture = Mixture(tuple(env.weight for env in self._envs))
        self._num_train = [num_tasks[env.name][env.train_split] for env in self._envs]
        seeds = [str(recipe.seed), *(f"{recipe.seed}/{env.title}" for env in self._envs[1:])]
        self._tasks = [TaskSequence(number, seed) for number, seed in zip(self._num_train, seeds, strict=True)]

    def train(self, plan: TrainingPlan, slot: PlannedGroup) -> GroupRequest:
        """Return the request for a slot's group: `STAGE.s000012-g03` is the fourth group planned for its step 12.

        `-r1` marks its first replacement, with the same task; `-t1` is appended to the id for the first other task.
        """
        recipe, rollout, exploration = self._recipe, self._recipe.rollout, plan.options.exploration
        step, place = divmod(slot.number, plan.options.groups_per_step)
        group_id = f"{plan.stage}.s{step + 1:06d}-g{place:02d}"
        group_id += f"-t{slot.draw}" if slot.draw else ""
        group_id += f"-r{slot.replacement}" if slot.replacement else ""
        number = plan.first_slot + slot.number
        which, position = self._mixture[number]
        if slot.draw:
            position = _hashed(f"{recipe.seed}/{number}/{slot.draw}")
        env = self._envs[which]
        task = self._task(env, env.train_split, self._tasks[which][position], seed=number % 2**31, step=step + 1)
        if plan.state_keys:
            task = task.model_copy(update={"state_keys": True})
        request = self._request(
            group_id, env, task, plan.options.group_size, "train", rollout.strategy.spec,
            exploration.sampling(rollout.sampling, step + 1), reward=plan.reward, gamma=plan.gamma,
            step=step + 1, budget=rollout.budget,
        )  # fmt: skip
        hints = value_at(exploration.hints, step + 1)
        return request.model_copy(update={"hint_probability": hints}) if hints else request

    def slot(self, plan: TrainingPlan, group_id: str) -> PlannedGroup | None:
        """Return a training group's place in the plan, or None for an id that does not belong to it."""
        stage, _, own = group_id.rpartition(".")
        parts = _TRAIN_ID.fullmatch(own)
        if parts is None or stage != plan.stage:
            return None
        step, place, draw, replacement = (int(part or 0) for part in parts.groups())
        slot = PlannedGroup((step - 1) * plan.options.groups_per_step + place, replacement, draw)
        planned = 1 <= step <= plan.options.steps and place < plan.options.groups_per_step
        return slot if planned and self.train(plan, slot).group_id == group_id else None

    def play(self, prefix: str, plays: Plays, index: int, replacement: int, samples: int) -> GroupRequest:
        """Return the request for group number `index` of `plays`; a replacement plays only the failed samples."""
        suffix = f"-r{replacement}" if replacement else ""
        which, position = self._place(plays, index)
        env = self._envs[which]
        reward = plays.reward if plays.allocation is None else self._recipe.rollout.evaluator
        if plays.purpose == "eval":
            task = self._task(env, env.eval_split, position, seed=0, level=plays.level)
        else:
            seed, place = divmod(position, self._num_train[which])
            task = self._task(env, env.train_split, place, seed=seed, level=plays.level)
        request = self._request(
            f"{prefix}.t{index:06d}{suffix}", env, task, samples, plays.purpose, plays.strategy, plays.sampling,
            reward=reward, budget=plays.budget,
        )  # fmt: skip
        return request.model_copy(update={"rejected": True}) if plays.rejected else request

    def examples(self, strategies: Iterable[StrategySpec]) -> list[GroupRequest]:
        """Return a request for each strategy in each environment, to ask whether it could be played."""
        return [
            self._request(
                "example", env, self._task(env, env.train_split, 0, seed=0), 1, "collect", strategy, Sampling()
            )
            for strategy in strategies
            for env in self._envs
        ]

    def replay(self, group_id: str, task: TaskRef, strategy: StrategySpec) -> GroupRequest | None:
        """Return the request to play a task once more, or None for a task of an environment that is not the recipe's.

        If the environment has several tables, the one with the task's level counts, or else the first.
        """
        tables = sorted(
            (env for env in self._envs if env.name == task.env), key=lambda env: env.changed(None).level != task.level
        )
        if not tables:
            return None
        opened = OpenSession(env=task.env, split=task.split, level=task.level, task_id=task.task_id, seed=task.seed)
        return self._request(group_id, tables[0], opened, 1, "demonstration", strategy, Sampling())

    def find(self, prefix: str, plays: Plays, group_id: str) -> GroupRequest | None:
        """Return the request of `plays` under a group id; None for an id that does not belong to it."""
        given, _, own = group_id.rpartition(".")
        parts = _PLAYED_ID.fullmatch(own)
        if parts is None or given != prefix or int(parts[1]) >= plays.num_groups(self._recipe):
            return None
        return self.play(prefix, plays, int(parts[1]), int(parts[2] or 0), plays.samples_per_task)

    def title_of(self, plays: Plays, group_id: str) -> str:
        """Return the title of the environment that a group of `plays` was played in."""
        return self._envs[self._place(plays, self.number_of(group_id))[0]].title

    def number_of(self, group_id: str) -> int:
        """Return the number of the group with this id, which a replacement shares with the group that it replaces."""
        parts = _PLAYED_ID.fullmatch(group_id.rpartition(".")[2])
        if parts is None:
            raise ValueError(f"{group_id} is no group outside of training")
        return int(parts[1])

    def _place(self, plays: Plays, index: int) -> tuple[int, int]:
        if plays.purpose == "eval":
            return divmod(index, plays.num_tasks)
        return self._mixture[plays.first_task + index]

    def _task(
        self,
        env: EnvironmentSection,
        split: Split,
        index: int,
        *,
        seed: int,
        step: int | None = None,
        level: str | None = None,
    ) -> OpenSession:
        level = level or env.changed(step).level
        return OpenSession(env=env.name, split=split, level=level, task_index=index, seed=seed)

    def _request(
        self,
        group_id: str,
        env: EnvironmentSection,
        task: OpenSession,
        samples: int,
        purpose: Purpose,
        strategy: StrategySpec,
        sampling: Sampling,
        *,
        reward: RewardSection | None = None,
        gamma: float = 1.0,
        step: int | None = None,
        budget: Budget | None = None,
    ) -> GroupRequest:
        return GroupRequest(
            run_id=self._run_id,
            group_id=group_id,
            task=task,
            num_samples=samples,
            purpose=purpose,
            strategy=strategy,
            format=self._recipe.format_of(env),
            roles=self._recipe.rollout.roles,
            template=self._recipe.rollout.template,
            images=self._recipe.rollout.images,
            actions=self._recipe.actions_of(env),
            sampling=sampling,
            limits=self._recipe.limits_of(env, step),
            reward=self._recipe.reward_spec(env, gamma, reward),
            evaluator=self._recipe.evaluator_spec,
            budget=budget or Budget(),
        )


def planned_slots(rl: ReinforceOptions, steps_done: int) -> int:
    """Return how many slots may have been requested once `steps_done` steps of the stage are finished.

    These are the groups for the next step and for `max_staleness` steps after it, but none beyond the last step.
    """
    return min(steps_done + 1 + rl.max_staleness, rl.steps) * rl.groups_per_step


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
