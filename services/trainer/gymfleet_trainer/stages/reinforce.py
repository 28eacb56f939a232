"""Reinforcement learning: request groups in advance, collect them, update, publish, checkpoint, acknowledge."""

import time
from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Final

import structlog
from gymfleet_contracts.recipe import MIN_TRAIN_TEMPERATURE, Recipe, RecipeError
from gymfleet_contracts.reward import RewardSection
from gymfleet_contracts.rollout import GroupRequest, Sampling, StrategySpec
from gymfleet_contracts.stages import PlannedStage, StageFacts
from pydantic import PositiveInt

from gymfleet_trainer.errors import PublishRefused, TooManyFailures
from gymfleet_trainer.learning.algorithm import Algorithm, Need, Trained, Verdict
from gymfleet_trainer.learning.options import ReinforceOptions
from gymfleet_trainer.learning.plugins import algorithm_of, verdict_on
from gymfleet_trainer.metrics import GROUPS, STEP, TOKENS, TOLERANCE
from gymfleet_trainer.publish.tolerance import calibrated, tolerance
from gymfleet_trainer.run.batch import (
    batch_metrics,
    book_batch,
    contradiction,
    most_spread,
    num_spread,
    refusal,
)
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.run.divergence import DivergenceWatch
from gymfleet_trainer.run.group_planner import PlannedGroup, TrainingPlan, planned_slots
from gymfleet_trainer.run.groups import Group
from gymfleet_trainer.run.measuring import measure
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.stage import Plays, Stage
from gymfleet_trainer.stages.measure import MeasureOptions

log = structlog.get_logger()

_SELECTED: Final = ("redrawn", "not_redrawn", "unselected", "unspread")
_MAX_SETTLED: Final = 1_000
"""Episodes of dropped groups, or those that arrive while a checkpoint is written, that may wait for a checkpoint:
together with the open ones, fewer than the number at which producers wait."""


class MeasuredOnTheWay(MeasureOptions):
    """Measurements between steps, on held-out tasks."""

    every_steps: PositiveInt
    """Steps between two measurements."""


class ReinforceStageOptions(ReinforceOptions):
    """Reinforcement learning. Keys that are not named here are options of the algorithm, which checks them."""

    measure: MeasuredOnTheWay | None = None
    reward: RewardSection | None = None


class Reinforce(Stage[ReinforceStageOptions]):
    """Improve the policy on groups of episodes that it plays itself, by an algorithm such as GRPO or PPO."""

    Options = ReinforceStageOptions
    facts: ClassVar[StageFacts] = StageFacts(
        leaves=("model",), plugins={"algorithm": "algorithm"}, passes_on="algorithm"
    )
    small: ClassVar[Mapping[str, Any]] = {"steps": 3, "groups_per_step": 4, "group_size": 4}

    @cached_property
    def algorithm(self) -> Algorithm[Any]:
        """The algorithm with its options. Raises `PluginError`."""
        return algorithm_of(self.options, self.table)

    def check(self, recipe: Recipe, planned: PlannedStage) -> None:
        """Raise `RecipeError` for a recipe that the algorithm cannot learn from."""
        options = self.options
        recipe.suits(planned, options.algorithm, options.group_size, self.algorithm.facts)
        if Trained.POLICY not in self.algorithm.trains(options.steps - 1):
            raise RecipeError(
                f"{self.table}.critic.warmup_steps: all {options.steps} steps would train the critic alone; give fewer"
            )
        if recipe.rollout.images == "seen" and Need.CRITIC in self.algorithm.needs:
            raise RecipeError(
                f"{self.table}.algorithm: the critic of {options.algorithm} reads text alone, and rollout.images is "
                '"seen": give an algorithm without one, such as grpo'
            )
        if recipe.placement.colocated and options.max_staleness > 0:
            raise RecipeError(
                f"{self.table}.max_staleness = {options.max_staleness} has episodes played during an update, and with "
                "placement.colocated the engines sleep then: give max_staleness = 0, or the engines a GPU of their own"
            )
        if options.keep_share < 1 and options.group_size < 2:
            raise RecipeError(
                f"{self.table}.keep_share keeps the groups whose rewards differ the most, and those of groups of one "
                "do not differ: give group_size of at least 2, or leave it out"
            )
        if options.updates_per_step > (kept := num_spread(options.groups_per_step, options.keep_share)):
            raise RecipeError(
                f"{self.table}.updates_per_step = {options.updates_per_step}: keep_share = {options.keep_share:g} "
                f"leaves {kept} of the batch's {options.groups_per_step} groups, and every update needs one: give "
                "fewer updates, or a larger share"
            )
        self._check_temperatures(recipe.rollout.sampling)

    def _check_temperatures(self, sampling: Sampling) -> None:
        """Raise `RecipeError` if a schedule and the spread of groups go below a temperature that can be trained on."""
        if (schedule := self.options.exploration.temperature) is None:
            return
        if (lowest := schedule.bounds[0] * (1 - sampling.spread)) < MIN_TRAIN_TEMPERATURE:
            raise RecipeError(
                f"{self.table}.exploration.temperature: with rollout.sampling.spread = {sampling.spread:g} it goes "
                f"down to {lowest:g}, and {MIN_TRAIN_TEMPERATURE:g} is the lowest that can be trained on: give a "
                "higher start and end, or a smaller spread"
            )

    def plays(self) -> Mapping[str, Plays]:
        """Return the measurements between steps."""
        if (on_the_way := self.options.measure) is None:
            return {}
        plays = replace(on_the_way.plays(), reward=self.options.reward)
        steps = range(on_the_way.every_steps, self.options.steps, on_the_way.every_steps)
        return {_measurement(step): plays for step in steps}

    def strategies(self, recipe: Recipe) -> list[StrategySpec]:
        """Return the recipe's strategy, and those of the measurements between steps."""
        return [recipe.rollout.strategy.spec, *super().strategies(recipe)]

    def held(self, recipe: Recipe) -> int:
        """Return how many episodes may be open at once: those since the last checkpoint and those made in advance."""
        options = self.options
        num_steps = recipe.checkpoint.every_steps + options.max_staleness
        return max(options.groups_per_step * options.group_size * num_steps, super().held(recipe))

    def request(self, run: RunContext, group_id: str) -> GroupRequest | None:
        """Return the stage's request under a group id."""
        plan = self.plan(run.state)
        if (slot := run.planner.slot(plan, group_id)) is not None:
            return run.planner.train(plan, slot)
        return super().request(run, group_id)

    def plan(self, state: RunState) -> TrainingPlan:
        """Return the stage's training plan."""
        algorithm = self.algorithm
        return TrainingPlan(
            self.name, self.options, algorithm.gamma, state.first_slot, state_keys=algorithm.facts.state_keys,
            reward=self.options.reward,
        )  # fmt: skip

    async def run(self, run: RunContext) -> None:
        """Run the remaining steps, until the last one is done or the time is up."""
        await run.worker.run(run.learner.begin, self.name, self.options)
        await run.ensure_published()
        run.lap(self.name)
        await Steps(run, self).run()


class Steps:
    """The steps of one stage of reinforcement learning, in one process."""

    def __init__(self, run: RunContext, stage: Reinforce) -> None:
        self._run = run
        self._stage = stage
        self._rl = stage.options
        self._plan = stage.plan(run.state)
        self._verdicts: dict[str, Verdict] = {}
        """The algorithm's verdicts on groups that are complete and not settled."""
        self._selection: Counter[str] = Counter()
        """The outcomes of the verdicts of this step."""
        self._watch = DivergenceWatch(run.state, stage.table, self._rl.max_diverged_steps)
        self._num_settled = 0
        """Episodes of groups that were dropped since this stage last began a checkpoint, plus those of one step, which
        are collected while it is written."""

    async def run(self) -> None:
        """Run the remaining steps."""
        run, rl, state = self._run, self._rl, self._run.state
        run.reporter.begin(self._stage.name, step=state.done, total=rl.steps, unit="steps")
        await run.collector.ask([run.planner.train(self._plan, self._slot_of(name)) for name in state.open_slots])
        while state.done < rl.steps and not self._spent:
            await self._measure_if_due()
            await self._ask_ahead()
            await self._step()
            run.lap(self._stage.name)
        if self._spent:
            log.info("rl.spent", budget=self._spent, step=state.done, env_steps=self._env_steps)
        await run.collector.keep_search_trees(run.directory)
        for group_id in list(state.open_slots):  # requested in advance, and not needed after an early end
            self._drop(group_id, "not needed")

    async def _step(self) -> None:
        run, state = self._run, self._run.state
        started = time.monotonic()
        groups = await self.collect()
        wait_s = time.monotonic() - started
        if not groups:
            await self._skip(wait_s)
            return
        version = state.version
        async with run.engines_aside():
            await self._check_batch(groups)
            run.publisher.adopt_probe(state, [s for group in groups for s in group.trajectories])
            if not run.learner.finishes_apart:
                await run.settle_checkpoint()  # the weights stand still while it is written
            updating = time.monotonic()
            update = await run.worker.run(run.learner.update, groups, state.staleness)
            waited_s = run.learner.waited_s
            update_s = time.monotonic() - updating - waited_s
            await run.see_to_checkpoint(waited_s)  # which may have failed meanwhile
        for group in groups:
            state.trained.append(group.group_id)
            self._close(group.group_id)
        state.done += 1
        state.step += 1
        state.age += 1
        book_batch(state, groups, wait_s=wait_s, update_s=update_s)
        metrics = batch_metrics(state, groups, wait_s=wait_s, update_s=update_s) | {"env_steps": self._env_steps}
        self._record(groups, metrics | self._selected() | update, version)
        self._watch.look_at(update, groups)
        run.lap(self._stage.name)
        await run.publish()  # first, as engines wait for it; the checkpoint is written beside the next batch
        await self._checkpoint_if_due()
        run.commit_checkpoint()
        run.reporter.advance(state.done, metrics={"success": metrics["success"], "reward": metrics["reward_mean"]})

    async def _skip(self, wait_s: float) -> None:
        """End a step without an update, because the algorithm dropped all of its groups."""
        run, state = self._run, self._run.state
        async with run.engines_aside():
            await run.worker.run(run.learner.miss_update)
        state.done += 1
        state.step += 1
        state.count("steps_skipped")
        state.spend("step_wait", wait_s)
        log.warning("step.skipped", step=state.step, reason="the algorithm dropped all of its groups")
        run.directory.metric(
            "step_skipped", stage=self._stage.name, step=state.step, env_steps=self._env_steps, **self._selected()
        )
        run.lap(self._stage.name)
        await self._checkpoint_if_due()
        run.commit_checkpoint()
        run.reporter.advance(state.done, "the algorithm dropped all groups of the step")

    async def _checkpoint_if_due(self) -> None:
        run, state = self._run, self._run.state
        if state.done % run.recipe.checkpoint.every_steps == 0 or state.done == self._rl.steps or self._spent:
            await run.begin_checkpoint()
            self._num_settled = self._rl.groups_per_step * self._rl.group_size

    def _selected(self) -> dict[str, int]:
        return {f"groups_{name}": self._selection[name] for name in _SELECTED}

    def _record(self, groups: list[Group], metrics: dict[str, float], version: int) -> None:
        run, name = self._run, self._stage.name
        kept = groups[: run.settings.recorded_groups_per_step]
        run.directory.trajectories(name, [s for group in kept for s in group.trajectories])
        run.directory.metric("rl_step", stage=name, step=run.state.step, policy_version=version, **metrics)
        STEP.set(run.state.step)
        GROUPS.labels("trained").inc(len(groups))
        TOKENS.inc(metrics["tokens"])

    async def _ask_ahead(self) -> None:
        state = self._run.state
        if self._num_settled >= _MAX_SETTLED:
            await self._run.settle_checkpoint()
            self._num_settled = 0
        requests = []
        for number in range(state.cursor, planned_slots(self._rl, state.done)):
            requests.append(self._open(PlannedGroup(number)))
            state.cursor = number + 1
        await self._run.collector.ask(requests)

    def _open(self, slot: PlannedGroup) -> GroupRequest:
        """Record a slot's group as requested with the current weights, and return its request."""
        state = self._run.state
        request = self._run.planner.train(self._plan, slot)
        state.open_slots[request.group_id] = (slot.number, slot.replacement)
        state.asked_ages[request.group_id] = state.age
        return request

    def _close(self, group_id: str) -> None:
        self._run.state.count(_env_steps(self._stage), self._run.collector.env_steps(group_id))
        self._run.state.searched.pop(group_id, None)
        self._run.state.open_slots.pop(group_id)
        self._run.state.asked_ages.pop(group_id, None)
        self._verdicts.pop(group_id, None)
        self._run.collector.settle(group_id)

    async def collect(self) -> list[Group]:
        """Return the groups of a step, fresh enough to train on, in the order of their slots, not of arrival.

        There are fewer than `groups_per_step`, or none, where the algorithm drops some.

        Raises:
            PluginFailed: the algorithm could not judge a group.
            TooManyFailures: one slot's groups were replaced more often than `max_replacements` within the step.
        """
        run, rl, state = self._run, self._rl, self._run.state
        replaced: Counter[int] = Counter()
        self._selection.clear()
        while True:
            ready = await self._fit(replaced)
            chosen = choose(state, ready, rl)
            if chosen:
                groups = [run.collector.ready[group_id] for group_id in chosen]
                groups.sort(key=lambda group: state.open_slots[group.group_id])
                return self._with_spread(self._without_dropped(groups))
            run.reporter.advance(state.done, f"{min(len(ready), rl.groups_per_step)} of {rl.groups_per_step} groups")
            await run.collector.more()

    async def _fit(self, replaced: Counter[int]) -> set[str]:
        """Return the ids of the complete groups that may be trained on, and replace the others."""
        run, state, algorithm = self._run, self._run.state, self._stage.algorithm
        bootstraps = Need.CRITIC in algorithm.needs
        compared = algorithm.facts.min_group_size
        fit: set[str] = set()
        # Repeat until nothing is new: samples that came early may complete a group at the moment it is requested.
        while new := [one for name, one in run.collector.ready.items() if name in state.open_slots and name not in fit]:
            await run.collector.keep_search_trees(run.directory)
            for group in new:
                reason = refusal(group, state, self._rl.max_staleness, bootstraps=bootstraps, min_group_size=compared)
                if group.group_id not in self._verdicts:  # the first time
                    reason = reason or contradiction(group)
                if reason:
                    await self._replace(group, reason, replaced)
                elif await self._verdict(group) is Verdict.ANOTHER and self._may_redraw(group):
                    await self._redraw(group)
                else:
                    fit.add(group.group_id)
        return fit

    async def _replace(self, group: Group, reason: str, replaced: Counter[int]) -> None:
        """Request a slot's group again: with the same task if it came too late, with another if it kept failing."""
        slot = self._slot_of(group.group_id)
        self._drop(group.group_id, reason)
        replaced[slot.number] += 1
        if replaced[slot.number] > self._run.settings.max_replacements:
            raise TooManyFailures(
                f"group {group.group_id} and {replaced[slot.number] - 1} before it in its place were dropped within "
                f"one step, the last because of: {reason}; look into the rollout's and the environment's logs"
            )
        request = self._open(slot.again() if reason.startswith("stale") else slot.redrawn())
        await self._run.collector.ask([request])

    async def _verdict(self, group: Group) -> Verdict:
        """Return the algorithm's verdict on a complete group; it is asked once per group."""
        if group.group_id not in self._verdicts:
            algorithm = self._stage.algorithm
            self._verdicts[group.group_id] = await self._run.worker.run(verdict_on, group.trajectories, algorithm)
        return self._verdicts[group.group_id]

    def _may_redraw(self, group: Group) -> bool:
        return self._slot_of(group.group_id).draw < self._rl.max_redraws

    async def _redraw(self, group: Group) -> None:
        """Request a group of another task to replace one that the algorithm does not want."""
        slot = self._slot_of(group.group_id)
        self._drop(group.group_id, f"redrawn: {self._rl.algorithm} asked for another group")
        self._selection["redrawn"] += 1
        request = self._open(slot.redrawn())
        self._num_settled += len(group.trajectories)
        if self._num_settled >= _MAX_SETTLED:
            await self._run.save_state()
            self._num_settled = 0
        await self._run.collector.ask([request])

    def _without_dropped(self, groups: list[Group]) -> list[Group]:
        """Drop the groups of a step that the algorithm rejects, and note those that it wanted redrawn."""
        kept = []
        for group in groups:
            verdict = self._verdicts[group.group_id]
            if verdict is Verdict.DROP:
                self._drop(group.group_id, f"unselected: {self._rl.algorithm} dropped it")
                self._selection["unselected"] += 1
                continue
            if verdict is Verdict.ANOTHER:
                log.warning("group.not_redrawn", group_id=group.group_id, max_redraws=self._rl.max_redraws)
                self._run.state.count("groups_not_redrawn")
                self._selection["not_redrawn"] += 1
            kept.append(group)
        return kept

    def _with_spread(self, groups: list[Group]) -> list[Group]:
        """Drop the groups of a step that the recipe's `keep_share` leaves out."""
        kept = most_spread(groups, self._rl.keep_share)
        for group in groups:
            if group not in kept:
                self._drop(group.group_id, f"unspread: keep_share = {self._rl.keep_share:g}")
                self._selection["unspread"] += 1
        return kept

    def _slot_of(self, group_id: str) -> PlannedGroup:
        """Return the slot of an open group. Raises ValueError for a group of another recipe."""
        if (slot := self._run.planner.slot(self._plan, group_id)) is None:
            raise ValueError(f"{group_id} is no training group of this stage")
        return slot

    def _drop(self, group_id: str, reason: str) -> None:
        state = self._run.state
        self._close(group_id)
        state.dropped[group_id] = reason
        kind = reason.split(":", maxsplit=1)[0]
        state.count(f"groups_dropped.{kind}")
        GROUPS.labels("dropped").inc()
        log.warning("group.dropped", group_id=group_id, reason=reason)
        self._run.directory.metric("group_dropped", step=state.step, group_id=group_id, reason=reason)

    async def _check_batch(self, groups: list[Group]) -> None:
        """Refuse a batch whose sampled log-probabilities do not match those of the published weights."""
        run, state = self._run, self._run.state
        trajectories = [s for group in groups for s in group.trajectories]
        parity = await run.worker.run(run.learner.batch_parity, trajectories, state.version)
        if parity is None:
            return
        state.parity_batch_worst = max(state.parity_batch_worst, parity.mean_abs)
        run.directory.metric(
            "batch_parity", step=state.step + 1, version=state.version, mean_abs=parity.mean_abs,
            max_abs=parity.max_abs, tokens=parity.num_tokens,
        )  # fmt: skip
        allowed = tolerance(run.recipe, state)
        if not parity.within(allowed):
            raise PublishRefused(
                f"step {state.step + 1}: tokens sampled by version {state.version} differ from the trainer's "
                f"log-probabilities by {parity.mean_abs:.6g} on average over {parity.num_tokens} tokens, "
                f"publish.parity_tolerance allows {allowed:g}; nothing was trained on them"
            )
        if calibrated(run.recipe, state, parity):
            allowed = tolerance(run.recipe, state)
            TOLERANCE.set(allowed)
            run.directory.metric("parity_tolerance", step=state.step + 1, tolerance=allowed, mean_abs=parity.mean_abs)
            log.info("parity.calibrated", tolerance=allowed, mean_abs=parity.mean_abs)

    async def _measure_if_due(self) -> None:
        run, state, every = self._run, self._run.state, self._rl.measure
        if every is None or not state.done or state.done % every.every_steps:
            return
        name = self._stage.prefix(label := _measurement(state.done))
        if name in state.evals:
            return
        run.lap(self._stage.name)
        state.evals[name], _ = await measure(run, label)
        run.lap("measured_on_the_way")
        await run.save_state()
        run.reporter.begin(self._stage.name, step=state.done, total=self._rl.steps, unit="steps")

    @property
    def _env_steps(self) -> int:
        """Environment steps of all settled groups."""
        return self._run.state.counts.get(_env_steps(self._stage), 0)

    @property
    def _spent(self) -> str:
        """The option that ends the stage before its last step, or an empty string."""
        rl, seconds = self._rl, self._run.state.seconds.get(self._stage.name, 0.0)
        if rl.max_wall_s is not None and seconds >= rl.max_wall_s:
            return "max_wall_s"
        return "max_env_steps" if rl.max_env_steps is not None and self._env_steps >= rl.max_env_steps else ""


def _env_steps(stage: Stage[Any]) -> str:
    """Return the name of the counter of a stage's environment steps."""
    return f"env_steps.{stage.name}"


def _measurement(step: int) -> str:
    return f"step_{step:06d}"


def choose(state: RunState, ready: AbstractSet[str], rl: ReinforceOptions) -> list[str]:
    """Return the ready groups to train on now, or none while it is better to wait.

    Groups that were requested first come first, and a group that would be too old after this step is
    waited for: otherwise long episodes would always come too late, and would never be learned from.
    """
    oldest_first = sorted(state.open_slots, key=lambda name: (state.asked_ages.get(name, 0), state.open_slots[name]))
    due = [name for name in oldest_first if state.age - state.asked_ages.get(name, 0) >= rl.max_staleness]
    due = due[: rl.groups_per_step]
    others = [name for name in oldest_first if name in ready and name not in due]
    chosen = [*due, *others][: rl.groups_per_step]
    return chosen if len(chosen) == rl.groups_per_step and ready >= set(due) else []
