"""The warm start: supervised training on the replies of the environment's expert."""

import time

import structlog
from gymfleet_contracts.recipe import SftSection
from gymfleet_contracts.trajectory import ScoredTrajectory

from gymfleet_trainer.errors import TooManyFailures
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.run.groups import Group
from gymfleet_trainer.run.state import DEMONSTRATION_PREFIX, Phase

log = structlog.get_logger()


async def warm_start(run: RunContext, sft: SftSection) -> None:
    """Collect demonstrations, train the epochs, and leave the weights to be published.

    The demonstrations are acknowledged only with the checkpoint after the last
    epoch; a run that is killed before that gets them again and continues with the
    epoch at which its last checkpoint ends.
    """
    demonstrations = await _collect(run, sft)
    if "demonstrations" not in run.state.counts:
        run.directory.trajectories("demonstrations", demonstrations)
        run.state.count("demonstrations", len(demonstrations))
    run.publisher.adopt_probe(run.state, demonstrations)
    await _train(run, sft, demonstrations)
    run.state.age += 1
    run.state.phase = Phase.EVAL_BEFORE
    await run.worker.run(run.learner.end_sft)
    for request in run.planner.demonstrations():
        run.collector.settle(request.group_id)
    run.lap("sft")
    await run.checkpoint()


async def _collect(run: RunContext, sft: SftSection) -> list[ScoredTrajectory]:
    started = time.monotonic()
    run.reporter.begin("sft", step=0, total=sft.num_demonstrations, unit="demonstrations")
    await run.collector.ask(run.planner.demonstrations())
    groups: list[Group] = []
    while len(groups) < sft.num_demonstrations:
        groups.append(await run.collector.next_group(lambda group_id: group_id.startswith(DEMONSTRATION_PREFIX)))
        run.reporter.advance(len(groups), "collecting demonstrations")
    # Use the order of the tasks, so that training does not depend on which episode ended first.
    groups.sort(key=lambda group: group.group_id)
    solved = [s for group in groups for s in group.trajectories if s not in group.failed and s.trajectory.success]
    run.state.spend("sft_collect", time.monotonic() - started)
    failed = [group.failure_reason() for group in groups if group.failed]
    log.info("demonstrations.collected", solved=len(solved), asked=len(groups), failed=len(failed))
    if not solved:
        reason = failed[0] if failed else "the expert solved none"
        raise TooManyFailures(
            f"none of {len(groups)} demonstrations succeeded ({reason}); check that the environment "
            f"{run.recipe.env.name} has an expert and is served, or remove [sft] from the recipe"
        )
    return solved


async def _train(run: RunContext, sft: SftSection, demonstrations: list[ScoredTrajectory]) -> None:
    sequences = await run.worker.run(run.learner.sequences, demonstrations)
    num_tokens = sum(sequence.num_trained for sequence in sequences)
    saved_at = time.monotonic()
    run.reporter.begin("sft", step=run.state.sft_epochs, total=sft.epochs, unit="epochs")
    for epoch in range(run.state.sft_epochs, sft.epochs):
        started = time.monotonic()
        metrics = await run.worker.run(run.learner.sft_epoch, sequences, epoch)
        seconds = time.monotonic() - started
        run.state.sft_epochs = epoch + 1
        run.state.count("tokens_trained_sft", num_tokens)
        run.state.spend("sft_update", seconds)
        run.directory.metric("sft_epoch", epoch=epoch + 1, seconds=round(seconds, 4), tokens=num_tokens, **metrics)
        run.reporter.advance(epoch + 1, "training on demonstrations", metrics={"sft_loss": metrics["loss"]})
        last = epoch + 1 == sft.epochs
        if not last and time.monotonic() - saved_at > run.settings.sft_checkpoint_every_s:
            await run.checkpoint()
            saved_at = time.monotonic()
