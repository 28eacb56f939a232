"""Reinforcement learning: ask ahead of need, collect whole groups, update, checkpoint, acknowledge, publish."""

import time

import structlog
from gymfleet_contracts.recipe import RlSection

from gymfleet_trainer.context import RunContext
from gymfleet_trainer.demand import Slot, planned_slots
from gymfleet_trainer.errors import PublishRefused, TooManyFailures
from gymfleet_trainer.evaluate import measure
from gymfleet_trainer.groups import Group
from gymfleet_trainer.phases.batch import batch_metrics, book_batch, refusal
from gymfleet_trainer.progress import GROUPS, STEP, TOKENS
from gymfleet_trainer.state import RunState

log = structlog.get_logger()


async def reinforce(run: RunContext, rl: RlSection) -> None:
    """Run the steps that are left, until the last or until the time is up."""
    run.reporter.begin("rl", step=run.state.step, total=rl.steps, unit="steps")
    await run.collector.ask(
        [run.demand.train(Slot(number, replacement)) for number, replacement in run.state.open_slots.values()]
    )
    while run.state.step < rl.steps and not _out_of_time(run.state, rl):
        await _evaluate_if_due(run, rl)
        await _ask_ahead(run)
        await _step(run, rl)
        run.lap("rl")
    if _out_of_time(run.state, rl):
        log.info("rl.out_of_time", step=run.state.step, seconds=round(run.state.seconds["rl"], 1))
    for group_id in list(run.state.open_slots):  # asked ahead, and not needed after an early end
        _drop(run, group_id, "not needed")


async def _step(run: RunContext, rl: RlSection) -> None:
    state = run.state
    started = time.monotonic()
    groups = await _collect(run, rl)
    wait_s = time.monotonic() - started
    version = state.version
    await _check_batch(run, groups)
    run.publisher.adopt_probe(state, [s for group in groups for s in group.trajectories])
    updating = time.monotonic()
    update = await run.worker.run(run.learner.update, groups, state.staleness)
    update_s = time.monotonic() - updating
    for group in groups:
        state.trained.append(group.group_id)
        state.open_slots.pop(group.group_id)
        run.collector.settle(group.group_id)
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
        requests.append(run.demand.train(Slot(number)))
        run.state.open_slots[requests[-1].group_id] = (number, 0)
        run.state.cursor = number + 1
    await run.collector.ask(requests)


async def _collect(run: RunContext, rl: RlSection) -> list[Group]:
    """Whole groups, fresh enough, as many as a step needs; in the order of their slots, not of their arrival."""
    accepted: list[Group] = []
    while len(accepted) < rl.groups_per_step:
        group = await run.collector.next_group()
        if group.group_id not in run.state.open_slots:  # an early end left it over
            run.collector.settle(group.group_id)
        elif reason := refusal(group, run.state, rl.max_staleness):
            await _replace(run, group, reason)
        else:
            accepted.append(group)
            run.reporter.advance(run.state.step, f"{len(accepted)} of {rl.groups_per_step} groups")
    return sorted(accepted, key=lambda group: run.state.open_slots[group.group_id])


async def _replace(run: RunContext, group: Group, reason: str) -> None:
    number, replacement = run.state.open_slots[group.group_id]
    _drop(run, group.group_id, reason)
    if replacement >= run.settings.max_replacements:
        raise TooManyFailures(
            f"group {group.group_id} and {replacement} before it in its place were dropped, the last because of: "
            f"{reason}; look into the rollout's and the environment's logs"
        )
    request = run.demand.train(Slot(number, replacement + 1))
    run.state.open_slots[request.group_id] = (number, replacement + 1)
    await run.collector.ask([request])


def _drop(run: RunContext, group_id: str, reason: str) -> None:
    state = run.state
    state.open_slots.pop(group_id)
    state.dropped[group_id] = reason
    run.collector.settle(group_id)
    kind = reason.split(":", maxsplit=1)[0]
    state.count(f"groups_dropped.{kind}")
    GROUPS.labels("dropped").inc()
    log.warning("group.dropped", group_id=group_id, reason=reason)
    run.directory.metric("group_dropped", step=state.step, group_id=group_id, reason=reason)


async def _check_batch(run: RunContext, groups: list[Group]) -> None:
    """Refuse a batch whose sampled log-probabilities are not those of the published weights."""
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
