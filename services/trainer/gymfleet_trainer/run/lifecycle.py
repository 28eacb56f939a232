"""A run from its first to its last phase, resumed from the last checkpoint."""

import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import structlog
from gymfleet_client.errors import ClientError, TransportError
from gymfleet_client.rest import GatewayClient
from gymfleet_contracts.recipe import Recipe, RecipeError
from gymfleet_contracts.session import EnvironmentSpec
from gymfleet_contracts.streams import cancelled_run, dead_letters, held_group, produced_samples, trajectories_scored
from gymfleet_kit.formats import format_of
from gymfleet_kit.retries import Retries
from gymfleet_kit.streams import OUTAGE, RedisClient, connect, disconnect

from gymfleet_trainer.errors import RunDirectoryError, Stalled, TrainerError, WorkersLost
from gymfleet_trainer.learning.learner import Learner, LearnerFactory, LocalLearner
from gymfleet_trainer.learning.plugins import suitable_algorithm
from gymfleet_trainer.publish.policy_endpoint import readiness
from gymfleet_trainer.publish.publisher import Publisher
from gymfleet_trainer.publish.rollout_replicas import RolloutReplicas
from gymfleet_trainer.run.build import initial_model
from gymfleet_trainer.run.checkpoint import Checkpoints
from gymfleet_trainer.run.collect import Collector
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.run.group_planner import GroupPlanner
from gymfleet_trainer.run.progress import Reporter
from gymfleet_trainer.run.replays import Referee
from gymfleet_trainer.run.run_directory import RunDirectory, recipe_hash, sync_directory
from gymfleet_trainer.run.state import EvalResult, Phase, RunState
from gymfleet_trainer.run.summary import summarise
from gymfleet_trainer.run.torch_thread import TorchThread
from gymfleet_trainer.run.trajectory_consumer import TrajectoryConsumer
from gymfleet_trainer.settings import TrainerSettings
from gymfleet_trainer.stages.measure import measure
from gymfleet_trainer.stages.reinforce import reinforce
from gymfleet_trainer.stages.sft import warm_start

log = structlog.get_logger()

_PAUSE_S: Final = 0.5
_MAX_HELD: Final = 8_000


async def train(
    recipe: Recipe,
    directory: RunDirectory,
    settings: TrainerSettings,
    reporter: Reporter,
    run_id: str,
    learner: LearnerFactory = LocalLearner,
) -> None:
    """Run what is left of the run and write its summary; if workers die, continue from the last checkpoint.

    Raises:
        TrainerError: the run cannot continue, for the reason given; the same command resumes it.
    """
    while True:
        try:
            await _train(recipe, directory, settings, reporter, run_id, learner)
        except WorkersLost as error:
            log.warning("workers.lost", reason=str(error))
        else:
            return


async def _train(
    recipe: Recipe,
    directory: RunDirectory,
    settings: TrainerSettings,
    reporter: Reporter,
    run_id: str,
    learner: LearnerFactory,
) -> None:
    async with opened(recipe, directory, settings, reporter, run_id, learner=learner) as run:
        state = run.state
        if state.phase is Phase.SFT:
            if recipe.sft is not None:
                await warm_start(run, recipe.sft)
            state.phase = Phase.EVAL_BEFORE
        await run.publish()
        run.lap("sft")
        if state.phase is Phase.EVAL_BEFORE:
            await _measure(run, "eval_before", Phase.RL if recipe.rl else Phase.EVAL_AFTER)
        if state.phase is Phase.RL and recipe.rl is not None:
            await reinforce(run, recipe.rl)
            state.phase = Phase.EVAL_AFTER
            await run.save_state()
        if state.phase is Phase.EVAL_AFTER:
            await _measure(run, "eval_after", Phase.DONE)
        await _finish(run)


async def evaluate_only(
    recipe: Recipe,
    directory: RunDirectory,
    settings: TrainerSettings,
    reporter: Reporter,
    checkpoint: Path,
    run_id: str,
) -> EvalResult:
    """Publish the weights of a checkpoint or a Hugging Face directory, and measure them once.

    `directory` is a separate scratch directory, so nothing of the checkpoint's run is touched.
    """
    path = checkpoint / "model" if (checkpoint / "model").is_dir() else checkpoint
    if not (path / "config.json").is_file():
        raise RunDirectoryError(f"{checkpoint} is neither a checkpoint nor a Hugging Face model directory")
    async with opened(recipe, directory, settings, reporter, run_id, start_from=str(path)) as run:
        await run.publish()
        result = await measure(run, "eval")
        await _clean_up(run)
        return result


@contextlib.asynccontextmanager
async def opened(
    recipe: Recipe,
    directory: RunDirectory,
    settings: TrainerSettings,
    reporter: Reporter,
    run_id: str,
    *,
    start_from: str | None = None,
    learner: LearnerFactory = LocalLearner,
) -> AsyncIterator[RunContext]:
    """Provide what a phase needs: reach the services, restore state and weights, and take back deliveries."""
    _check_bounds(recipe)
    algorithm, reply_format = suitable_algorithm(recipe), format_of(recipe.rollout.format)
    redis = connect(settings.redis_url)
    endpoint = RolloutReplicas(settings, redis, run_id)
    try:
        with TorchThread(settings.torch_threads) as worker:
            spec = await _services(recipe, settings, redis, endpoint, reporter)
            checkpoints = Checkpoints(directory.checkpoints, keep=recipe.checkpoint.keep)
            state, policy = await _restore(recipe, directory, checkpoints, worker, run_id, start_from, learner)
            publisher = Publisher(endpoint, policy, worker, directory, checkpoints, recipe)
            async with TrajectoryConsumer(redis, run_id, lease_s=settings.lease_s) as consumer:
                planner = GroupPlanner(
                    recipe, run_id, spec.splits[recipe.env.train_split], gamma=algorithm.gamma if algorithm else 1.0
                )
                referee = Referee(planner.find, policy.vocab_size, reply_format.version)
                collector = Collector(redis, consumer, endpoint, settings, state, publisher.bring_up, referee)
                run = RunContext(
                    recipe, settings, directory, state, checkpoints, policy, worker, endpoint, publisher, collector,
                    planner, reporter, redis, algorithm,
                )  # fmt: skip
                yield run
    finally:
        await endpoint.aclose()
        await disconnect(redis)


async def _restore(
    recipe: Recipe,
    directory: RunDirectory,
    checkpoints: Checkpoints,
    worker: TorchThread,
    run_id: str,
    start_from: str | None,
    make_learner: LearnerFactory,
) -> tuple[RunState, Learner]:
    """Restore the last checkpoint's state and weights; in a new run, checkpoint the initial ones."""
    checkpoints.sweep()
    last = checkpoints.latest()
    source = start_from or initial_model(recipe, directory)
    if last is None:
        state = RunState(run_id=run_id, recipe_hash=recipe_hash(recipe))
        learner = await worker.run(make_learner, recipe, source, directory.path / "reference")
        directory.truncate({})
        await worker.run(checkpoints.save, state, learner.save_checkpoint)
        log.info("run.started", run_id=run_id)
        return state, learner
    path, state = last
    if state.run_id != run_id or state.recipe_hash != recipe_hash(recipe):
        raise RunDirectoryError(f"{path} belongs to run {state.run_id}, not {run_id}; use another run directory")
    learner = await worker.run(make_learner, recipe, source, directory.path / "reference")
    await worker.run(learner.load_checkpoint, path)
    directory.truncate(state.offsets)
    state.count("resumed")
    log.info("run.resumed", run_id=run_id, checkpoint=path.name, phase=state.phase, step=state.step)
    return state, learner


async def _services(
    recipe: Recipe, settings: TrainerSettings, redis: RedisClient, endpoint: RolloutReplicas, reporter: Reporter
) -> EnvironmentSpec:
    """Wait until Redis, the gateway with the environment, and the rollout service answer."""

    async def ready() -> None:
        if missing := await _missing(settings, redis, endpoint):
            reporter.advance(0, f"waiting: {missing}")
            raise Stalled(missing)

    try:
        await Retries("services.awaited", on=Stalled, longest_pause_s=_PAUSE_S, level="info").call(
            ready, timeout_s=settings.services_timeout_s
        )
    except Stalled as missing:
        raise Stalled(
            f"after {settings.services_timeout_s:g} s: {missing}; put that right and run the same command again"
        ) from None
    return await _environment(recipe, settings)


def _check_bounds(recipe: Recipe) -> None:
    """Check that unacknowledged deliveries stay below the stream length at which producers wait."""
    held = {"eval.num_tasks x eval.samples_per_task": recipe.eval.num_episodes}
    if recipe.sft is not None:
        held["sft.num_demonstrations"] = recipe.sft.num_demonstrations
    if recipe.rl is not None:
        ahead = 1 + recipe.rl.max_staleness
        held["rl.groups_per_step x rl.group_size x (1 + rl.max_staleness)"] = (
            recipe.rl.groups_per_step * recipe.rl.group_size * ahead
        )
    for name, number in held.items():
        if number > _MAX_HELD:
            raise RecipeError(f"{name} is {number}; at most {_MAX_HELD} episodes can be open at once")


async def _missing(settings: TrainerSettings, redis: RedisClient, endpoint: RolloutReplicas) -> str:
    try:
        await redis.ping()
    except OUTAGE as error:
        return f"Redis at {settings.redis_url.rpartition('@')[2]} does not answer ({type(error).__name__})"
    answer = await readiness(settings.gateway_url)
    if answer != "ready":
        return f"gateway at {settings.gateway_url} says: {answer}"
    answer = await endpoint.readiness()
    if answer != "ready":
        return f"rollout at {answer}"
    if owner := await endpoint.ownership.claim():
        return f"run {owner} has the rollout replicas: let it end, or give this run a Redis and replicas of its own"
    return ""


async def _environment(recipe: Recipe, settings: TrainerSettings) -> EnvironmentSpec:
    key = settings.gateway_api_key.get_secret_value() if settings.gateway_api_key else None
    async with GatewayClient(settings.gateway_url, api_key=key) as client:
        try:
            spec = await client.environment(recipe.env.name)
        except TransportError as error:
            raise Stalled(f"the gateway at {settings.gateway_url} does not answer: {error}") from None
        except ClientError as error:
            raise TrainerError(f"the gateway does not serve {recipe.env.name}: {error}") from None
    for split in (recipe.env.train_split, recipe.env.eval_split):
        if not spec.splits.get(split):
            raise TrainerError(f"{spec.name} has no {split} tasks; it has {dict(spec.splits)}")
    return spec


async def _measure(run: RunContext, name: str, then: Phase) -> None:
    run.lap("rl" if then is Phase.DONE else "sft")
    result = await measure(run, name)
    run.lap(name)
    run.state.evals[name] = result
    run.state.phase = then
    run.reporter.advance(result.num_episodes, metrics={f"success_{name.removeprefix('eval_')}": result.success})
    await run.save_state()


async def _finish(run: RunContext) -> None:
    """Save the model, write the summary and leave nothing in Redis. It is safe to repeat."""
    policy = await run.endpoint.policy()
    await run.worker.run(_save_model, run.learner, run.directory.model)
    await _clean_up(run)
    summary = summarise(run.recipe, run.state, policy)
    run.directory.summary(summary)
    run.reporter.finish("done", _headline(run.state))
    log.info("run.finished", run_id=run.state.run_id, gain=summary["gain"])


async def _clean_up(run: RunContext) -> None:
    """Delete the run's stream, its dead letters, its sets of produced samples and what waits for a group."""
    await run.collector.close()
    await run.endpoint.ownership.withdraw()
    run_id = run.state.run_id
    stream = trajectories_scored(run_id)
    keys = [dead_letters(stream), cancelled_run(run_id)]
    for pattern in (produced_samples(run_id, "*"), held_group(run_id, "*")):
        keys += [key.decode() async for key in run.redis.scan_iter(match=pattern, count=1000)]
    await run.redis.delete(stream, *keys)


def _save_model(learner: Learner, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.writing")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    learner.save_model(temporary)
    shutil.rmtree(path, ignore_errors=True)
    temporary.rename(path)
    sync_directory(path.parent)


def _headline(state: RunState) -> str:
    before, after = state.evals.get("eval_before"), state.evals.get("eval_after")
    if before is None or after is None:
        return f"{state.step} steps"
    return f"success {before.success:.3f} before, {after.success:.3f} after {state.step} steps"
