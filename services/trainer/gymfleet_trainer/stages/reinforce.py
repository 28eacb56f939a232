"""Reinforcement learning: request groups in advance, collect them, update, checkpoint, acknowledge, publish."""

import time
from collections import Counter
from collections.abc import Set as AbstractSet

import structlog
from gymfleet_contracts.recipe import RlSection
from gymfleet_contracts.rollout import GroupRequest

from gymfleet_trainer.errors import PublishRefused, TooManyFailures
from gymfleet_trainer.learning.algorithm import Need
from gymfleet_trainer.metrics import GROUPS, STEP, TOKENS
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.run.group_planner import GroupPlanner, PlannedGroup, planned_slots
from gymfleet_trainer.run.groups import Group
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.stages.batch import batch_metrics, book_batch, refusal
from gymfleet_trainer.stages.measure import measure

log = structlog.get_logger()


async def reinforce(run: RunContext, rl: RlSection) -> None:
    """Run the remaining steps, until the last one is done or the time is up."""
    run.reporter.begin("rl", step=run.state.step, total=rl.steps, unit="steps")
    await run.collector.ask([run.planner.train(slot_of(run.planner, group_id)) for group_id in run.state.open_slots])
    while run.state.step < rl.steps and not _out_of_time(run.state, rl):
        await _evaluate_if_due(run, rl)
        await _ask_ahead(run)
        await _step(run, rl)
        run.lap("rl")
    if _out_of_time(run.state, rl):
        log.info("rl.out_of_time", step=run.state.step, seconds=round(run.state.seconds["rl"], 1))
    for group_id in list(run.state.open_slots):  # requested in advance, and not needed after an early end
        _drop(run, group_id, "not needed")


async def _step(run: RunContext, rl: RlSection) -> None:
    state = run.state
    started = time.monotonic()
    groups = await collect(run, rl)
    wait_s = time.monotonic() - started
    version = state.version
    await _check_batch(run, groups)
    run.publisher.adopt_probe(state, [s for group in groups for s in group.trajectories])
    updating = time.monotonic()
    update = await run.worker.run(run.learner.update, groups, state.staleness)
    update_s = time.monotonic() - updating
    for group in groups:
        state.trained.append(group.group_id)
        _close(run, group.group_id)
    state.step += 1
    state.age += 1
    book_batch(state, groups, wait_s=wait_s, update_s=update_s)
    metrics = batch_metrics(state, groups, wait_s=wait_s, update_s=update_s)
    _record(run, groups, metrics | update, version)
    run.lap("rl")
    if state.step % run.recipe.checkpoint.every_steps == 0 or state.step == rl.steps or _out_of_time(state, rl):
        await run.checkpoint()
    await run.publish()
    run.reporter.advance(state.step, metrics={"success": metrics["success"], "reward": metrics["reward_mean"]})


def _record(run: RunContext, groups: list[Group], metrics: dict[str, float], version: int) -> None:
    kept = groups[: run.settings.recorded_groups_per_step]
    run.directory.trajectories("train", [s for group in kept for s in group.trajectories])
    run.directory.metric("rl_step", step=run.state.step, policy_version=version, **metrics)
    STEP.set(run.state.step)
    GROUPS.labels("trained").inc(len(groups))
    TOKENS.inc(metrics["tokens"])


async def _ask_ahead(run: RunContext) -> None:
    requests = []
    for number in range(run.state.cursor, planned_slots(run.recipe, run.state.step)):
        requests.append(_open(run, PlannedGroup(number)))
        run.state.cursor = number + 1
    await run.collector.ask(requests)


def _open(run: RunContext, slot: PlannedGroup) -> GroupRequest:
    """Record a slot's group as requested with the current weights, and return its request."""
    request = run.planner.train(slot)
    run.state.open_slots[request.group_id] = (slot.number, slot.replacement)
    run.state.asked_ages[request.group_id] = run.state.age
    return request


def _close(run: RunContext, group_id: str) -> None:
    run.state.open_slots.pop(group_id)
    run.state.asked_ages.pop(group_id, None)
    run.collector.settle(group_id)


async def collect(run: RunContext, rl: RlSection) -> list[Group]:
    """Return the groups of a step, fresh enough to be trained on, in the order of their slots, not of arrival.

    Raises:
        TooManyFailures: one slot's groups were replaced more often than `max_replacements` within the step.
    """
    replaced: Counter[int] = Counter()
    bootstraps = run.algorithm is not None and Need.CRITIC in run.algorithm.needs
    compared = 1 if run.algorithm is None else run.algorithm.facts.min_group_size
    while True:
        for group in [one for name, one in run.collector.ready.items() if name in run.state.open_slots]:
            reason = refusal(group, run.state, rl.max_staleness, bootstraps=bootstraps, min_group_size=compared)
            if reason:
                await _replace(run, group, reason, replaced)
        ready = run.collector.ready.keys() & run.state.open_slots.keys()
        chosen = choose(run.state, ready, rl)
        if chosen:
            groups = [run.collector.ready[group_id] for group_id in chosen]
            return sorted(groups, key=lambda group: run.state.open_slots[group.group_id])
        run.reporter.advance(run.state.step, f"{min(len(ready), rl.groups_per_step)} of {rl.groups_per_step} groups")
        await run.collector.more()


def choose(state: RunState, ready: AbstractSet[str], rl: RlSection) -> list[str]:
    """Return the ready groups to train on now, or none while it is better to wait.

    Those that were requested first come first, and a group that would be too old after this step is
    waited for: otherwise long episodes would always come too late, and nothing would be learned from them.
    """
    oldest_first = sorted(state.open_slots, key=lambda name: (state.asked_ages.get(name, 0), state.open_slots[name]))
    due = [name for name in oldest_first if state.age - state.asked_ages.get(name, 0) >= rl.max_staleness]
    due = due[: rl.groups_per_step]
    others = [name for name in oldest_first if name in ready and name not in due]
    chosen = [*due, *others][: rl.groups_per_step]
    return chosen if len(chosen) == rl.groups_per_step and ready >= set(due) else []


async def _replace(run: RunContext, group: Group, reason: str, replaced: Counter[int]) -> None:
    """Request a slot's group again: with the same task if it came too late, with another if it kept failing."""
    slot = slot_of(run.planner, group.group_id)
    _drop(run, group.group_id, reason)
    replaced[slot.number] += 1
    if replaced[slot.number] > run.settings.max_replacements:
        raise TooManyFailures(
            f"group {group.group_id} and {replaced[slot.number] - 1} before it in its place were dropped within one "
            f"step, the last because of: {reason}; look into the rollout's and the environment's logs"
        )
    request = _open(run, slot.again() if reason.startswith("stale") else slot.redrawn())
    await run.collector.ask([request])


def slot_of(planner: GroupPlanner, group_id: str) -> PlannedGroup:
    """Return the slot of an open group. Raises ValueError for a group of another recipe."""
    if (slot := planner.slot(group_id)) is None:
        raise ValueError(f"{group_id} is no training group of this run")
    return slot


def _drop(run: RunContext, group_id: str, reason: str) -> None:
    state = run.state
    _close(run, group_id)
    state.dropped[group_id] = reason
    kind = reason.split(":", maxsplit=1)[0]
    state.count(f"groups_dropped.{kind}")
    GROUPS.labels("dropped").inc()
    log.warning("group.dropped", group_id=group_id, reason=reason)
    run.directory.metric("group_dropped", step=state.step, group_id=group_id, reason=reason)


async def _check_batch(run: RunContext, groups: list[Group]) -> None:
    """Refuse a batch whose sampled log-probabilities do not match those of the published weights."""
    state = run.state
    trajectories = [s for group in groups for s in group.trajectories]
    parity = await run.worker.run(run.learner.batch_parity, trajectories, state.version)
    if parity is None:
        return
    state.parity_batch_worst = max(state.parity_batch_worst, parity.mean_abs)
    run.directory.metric(
        "batch_parity", step=state.step + 1, version=state.version, mean_abs=parity.mean_abs,
        max_abs=parity.max_abs, tokens=parity.num_tokens,
    )  # fmt: skip
    tolerance = run.recipe.publish.parity_tolerance
    if not parity.within(tolerance):
        raise PublishRefused(
            f"step {state.step + 1}: tokens sampled by version {state.version} differ from the trainer's "
            f"log-probabilities by {parity.mean_abs:.6g} on average over {parity.num_tokens} tokens, "
            f"publish.parity_tolerance allows {tolerance:g}; nothing was trained on them"
        )


async def _evaluate_if_due(run: RunContext, rl: RlSection) -> None:
    every, step = run.recipe.eval.every_steps, run.state.step
    name = f"eval_step_{step:06d}"
    if not every or not step or step % every or name in run.state.evals:
        return
    run.lap("rl")
    run.state.evals[name] = await measure(run, name)
    run.lap("eval_during")
    await run.save_state()
    run.reporter.begin("rl", step=step, total=rl.steps, unit="steps")


def _out_of_time(state: RunState, rl: RlSection) -> bool:
    return rl.max_wall_s is not None and state.seconds.get("rl", 0.0) >= rl.max_wall_s
