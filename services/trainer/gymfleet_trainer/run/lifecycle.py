"""A run from its first to its last stage, resumed from the last checkpoint."""

import contextlib
import shutil
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

import structlog
import torch
from gymfleet_client.errors import ClientError, TransportError
from gymfleet_client.rest import GatewayClient
from gymfleet_contracts.recipe import Recipe, RecipeError
from gymfleet_contracts.recipe_sections import EnvironmentSection
from gymfleet_contracts.rollout import Policy
from gymfleet_contracts.session import EnvironmentSpec
from gymfleet_contracts.stages import PlannedStage
from gymfleet_contracts.streams import (
    cancelled_run,
    dead_letters,
    held_group,
    produced_samples,
    search_trees,
    trajectories_scored,
)
from gymfleet_kit.formats import format_of
from gymfleet_kit.plugins import PluginError
from gymfleet_kit.retries import Retries
from gymfleet_kit.streams import OUTAGE, RedisClient, connect, disconnect
from safetensors import SafetensorError

from gymfleet_trainer.errors import (
    PluginFailed,
    RunDirectoryError,
    Stalled,
    TrainerError,
    UnsupportedModel,
    WorkersLost,
)
from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.learning.protocol import Learner, LearnerFactory
from gymfleet_trainer.model.adapters import require_modules
from gymfleet_trainer.model.fingerprint import fingerprint
from gymfleet_trainer.publish.policy_endpoint import VersionRefused, readiness
from gymfleet_trainer.publish.publisher import Publisher
from gymfleet_trainer.publish.rollout_replicas import RolloutReplicas
from gymfleet_trainer.publish.transfers import transfer_of
from gymfleet_trainer.run.build import initial_model
from gymfleet_trainer.run.checkpoint import Checkpoints, damaged
from gymfleet_trainer.run.collect import Collector
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.run.group_planner import GroupPlanner
from gymfleet_trainer.run.measuring import measure
from gymfleet_trainer.run.plan import require_held_out, stages_of
from gymfleet_trainer.run.progress import Reporter
from gymfleet_trainer.run.replays import Referee
from gymfleet_trainer.run.run_directory import RunDirectory, recipe_hash
from gymfleet_trainer.run.state import EvalResult, Left, RunState
from gymfleet_trainer.run.summary import summarise
from gymfleet_trainer.run.torch_thread import TorchThread
from gymfleet_trainer.run.trajectory_consumer import TrajectoryConsumer
from gymfleet_trainer.settings import TrainerSettings
from gymfleet_trainer.stage import Stage
from gymfleet_trainer.stages.measure import Measure, MeasureStageOptions

log = structlog.get_logger()

_PAUSE_S: Final = 0.5
_UNREADABLE: Final = (OSError, EOFError, ValueError, RuntimeError, UnpicklingError, SafetensorError)
"""What torch, safetensors and transformers raise for files that are cut short, empty, missing or overwritten."""


async def train(
    recipe: Recipe,
    directory: RunDirectory,
    settings: TrainerSettings,
    reporter: Reporter,
    run_id: str,
    learner: LearnerFactory = LocalLearner,
) -> None:
    """Run the rest of the run and write its summary; if workers die, continue from the last checkpoint.

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
    stages = stages_of(recipe)
    async with opened(recipe, directory, settings, reporter, run_id, stages[0], learner=learner) as run:
        await _require_playable(run, stages[len(run.state.left) :])
        for stage in stages[len(run.state.left) :]:
            run.stage = stage
            log.info("stage.begun", stage=stage.name, done=run.state.done)
            directory.event("stage_begun", {"done": run.state.done}, stage=stage.name)
            await _carried_out(run)
            await _end(run)
        await run.ensure_published()
        await _finish(run)


async def _require_playable(run: RunContext, stages: Iterable[Stage[Any]]) -> None:
    """Raise RecipeError if an environment cannot be played by a strategy of these stages."""
    for table, strategies in {stage.table: stage.strategies(run.recipe) for stage in stages}.items():
        try:
            if strategies:
                await run.endpoint.require_playable(run.planner.examples(strategies))
        except VersionRefused as refused:
            raise RecipeError(f"{table}: {refused.problem.detail or refused}") from None


async def _carried_out(run: RunContext) -> None:
    stage = run.stage
    try:
        await stage.run(run)
    except (TrainerError, PluginError, OSError, *OUTAGE):
        raise
    except Exception as error:
        if type(stage).__module__.startswith("gymfleet_trainer."):
            raise
        log.exception("plugin.failed")
        reason = " ".join(str(error).split())
        raise PluginFailed(
            f"the stage {stage.name} ({type(stage).__name__}) failed: {type(error).__name__}: {reason}; its traceback "
            "is in the log"
        ) from error


async def _end(run: RunContext) -> None:
    """Note the stage's results, and that it is done."""
    stage, state = run.stage, run.state
    run.lap(stage.name)
    await run.worker.run(run.learner.end)
    episodes, model = run.taken(), None
    if "model" in stage.facts.leaves:
        model = run.directory.models / stage.name
        await run.worker.run(run.directory.save_model, model, run.learner.save_model)
    elif {"reward_model", "process_reward_model", "judge"} & set(stage.facts.leaves):
        model = run.directory.models / stage.name
        if "judge" not in stage.facts.leaves:  # which no reward service loads
            run.directory.link_reward_model(model)
    measured = state.evals.get(stage.name)
    left = Left(
        name=stage.name,
        kind=stage.kind,
        seconds=round(state.seconds[stage.name], 3),
        episodes=None if episodes is None else run.directory.relative(run.directory.episodes(stage.name)),
        num_episodes=None if episodes is None else len(episodes),
        model=None if model is None else run.directory.relative(model),
        success=None if measured is None else measured.success,
    )
    if measured is not None:
        key = "success_before" if _is_first(stage, state) else "success_after"
        run.reporter.advance(measured.num_episodes, metrics={key: measured.success})
    state.left.append(left)
    state.done = 0
    state.searched.clear()
    state.first_slot, state.cursor = state.first_slot + state.cursor, 0
    await run.save_state()
    run.directory.stages([one.model_dump(exclude_none=True) for one in state.left])
    shutil.rmtree(run.directory.references / stage.name, ignore_errors=True)
    log.info("stage.ended", **left.model_dump(exclude_none=True))
    run.directory.event("stage_ended", left.model_dump(exclude_none=True), stage=stage.name)


def _is_first(stage: Stage[Any], state: RunState) -> bool:
    return next(iter(state.evals)) == stage.name


async def evaluate_only(
    recipe: Recipe,
    directory: RunDirectory,
    settings: TrainerSettings,
    reporter: Reporter,
    checkpoint: Path,
    run_id: str,
    options: MeasureStageOptions,
) -> EvalResult:
    """Publish the weights of a checkpoint or a Hugging Face directory, and measure them once.

    `directory` is a separate scratch directory, so nothing of the checkpoint's run is touched.
    """
    path = checkpoint / "model" if (checkpoint / "model").is_dir() else checkpoint
    adapted = recipe.model.lora is not None
    if not adapted and not (path / "config.json").is_file():
        raise RunDirectoryError(f"{checkpoint} is neither a checkpoint nor a Hugging Face model directory")
    # An adapter belongs to the model that the run around this directory began with.
    source = initial_model(recipe, RunDirectory(directory.path.parent)) if adapted else str(path)
    planned = PlannedStage("eval", "measure", "stages.eval", {}, {})
    stage = Measure(planned, options)
    stage.check(recipe, planned)
    async with opened(recipe, directory, settings, reporter, run_id, stage, start_from=source) as run:
        await _require_playable(run, [stage])
        if adapted and str(path) != source:
            await run.worker.run(run.learner.start_from, path)
        result, _ = await measure(run)
        await _clean_up(run)
        return result


@contextlib.asynccontextmanager
async def opened(
    recipe: Recipe,
    directory: RunDirectory,
    settings: TrainerSettings,
    reporter: Reporter,
    run_id: str,
    stage: Stage[Any],
    *,
    start_from: str | None = None,
    learner: LearnerFactory = LocalLearner,
) -> AsyncIterator[RunContext]:
    """Provide what `stage` and later stages need: services, state and weights, and recovered deliveries."""
    versions = {section.name: format_of(section).version for section in recipe.formats().values()}
    redis = connect(str(settings.redis_url))
    endpoint = RolloutReplicas(settings, redis, run_id)
    try:
        with contextlib.ExitStack() as left, TorchThread(settings.torch_threads) as worker:
            specs = await _services(recipe, settings, redis, endpoint, reporter)
            require_held_out(recipe, specs, (stage, *stages_of(recipe)))
            source = start_from or initial_model(recipe, directory)
            transfer = await worker.run(transfer_of, recipe, directory.weights, run_id, source)
            left.callback(transfer.close)
            checkpoints = Checkpoints(directory.checkpoints, keep=recipe.checkpoint.keep)
            state, policy = await _restore(recipe, directory, checkpoints, worker, run_id, start_from, learner)
            publisher = Publisher(endpoint, policy, worker, directory, checkpoints, recipe, transfer)
            async with TrajectoryConsumer(redis, run_id, lease_s=settings.lease_s) as consumer:
                planner = GroupPlanner(recipe, run_id, {spec.name: spec.splits for spec in specs})
                referee = Referee(lambda group_id: run.stage.request(run, group_id), policy.vocab_size, versions)
                collector = Collector(redis, consumer, endpoint, settings, state, publisher.bring_up, referee)
                run = RunContext(
                    recipe, settings, directory, state, checkpoints, policy, worker, endpoint, publisher, collector,
                    planner, reporter, redis, stage,
                )  # fmt: skip
                try:
                    yield run
                finally:
                    run.abandon_checkpoint()
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
    if recipe.model.lora is not None:
        await worker.run(require_modules, source, recipe.model.lora)  # before workers start, whose errors end them
    model = await worker.run(fingerprint, source)
    if last is None:
        state = RunState(run_id=run_id, recipe_hash=recipe_hash(recipe), model=model)
        learner = await _made(make_learner, worker, recipe, source, directory.references)
        directory.truncate({})
        await worker.run(checkpoints.save, state, learner.save_checkpoint)
        log.info("run.started", run_id=run_id)
        directory.event("run_started", {"run_id": run_id})
        return state, learner
    path, state = last
    if state.run_id != run_id or state.recipe_hash != recipe_hash(recipe):
        raise RunDirectoryError(f"{path} belongs to run {state.run_id}, not {run_id}; use another run directory")
    if state.model not in ("", model):
        raise RunDirectoryError(
            f"{source} is not the model that this run began with: its config, tokenizer or weights have changed; put "
            "that model back, or use another run directory"
        )
    learner = await _made(make_learner, worker, recipe, source, directory.references)
    try:
        await worker.run(learner.load_checkpoint, path)
    except torch.OutOfMemoryError:
        raise
    except _UNREADABLE as error:
        raise damaged(path, error) from error
    directory.truncate(state.offsets)
    state.count("resumed")
    log.info("run.resumed", run_id=run_id, checkpoint=path.name, stages=len(state.left), done=state.done)
    directory.event("run_resumed", {"checkpoint": path.name, "step": state.step, "done": state.done})
    return state, learner


async def _made(
    make_learner: LearnerFactory, worker: TorchThread, recipe: Recipe, source: str, references: Path
) -> Learner:
    """Make the learner. Raises UnsupportedModel for files of weights that are cut short, or missing."""
    try:
        return await worker.run(make_learner, recipe, source, references)
    except (OSError, EOFError, UnpicklingError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # not transformers' own, such as a full disk
            raise
        told = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UnsupportedModel(f"{source}: the weights cannot be read: {told:.300}") from error


async def _services(
    recipe: Recipe, settings: TrainerSettings, redis: RedisClient, endpoint: RolloutReplicas, reporter: Reporter
) -> list[EnvironmentSpec]:
    """Wait until Redis, the gateway with the environments, and the rollout service answer."""

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
    _require_engines_for(recipe, await endpoint.present())
    specs = [await _environment(env, settings) for env in recipe.environments]
    if recipe.rollout.images == "seen" and not any(spec.images for spec in specs):
        raise RecipeError(
            f'rollout.images = "seen", and no environment shows images: {", ".join(spec.name for spec in specs)}'
        )
    return specs


def _require_engines_for(recipe: Recipe, present: Mapping[str, Policy]) -> None:
    """Raise RecipeError if engines were started for other versions than the run publishes (whole weights or adapters),
    or cannot sleep where they must, or see no images where they must.

    An engine that joins later refuses versions that it cannot load, and is left out.
    """
    rank = 0 if recipe.model.lora is None else recipe.model.lora.rank
    for url, policy in present.items():
        if recipe.placement.colocated and not policy.sleep_mode:
            raise RecipeError(
                f"placement.colocated has engines sleep, and those of {url} were not started for it: start the rollout "
                "service with this recipe, or with GYMFLEET_ROLLOUT_SLEEP_MODE=true"
            )
        if recipe.rollout.images == "seen" and not policy.sees_images:
            raise RecipeError(
                f'rollout.images = "seen", and the policy of {url} sees no images: that wants inference.backend = '
                '"embedded" and a model with its preprocessor_config.json; the service says which as it starts'
            )
        if rank <= policy.max_lora_rank and bool(rank) == bool(policy.max_lora_rank):
            continue
        made_for = f"adapters of rank {policy.max_lora_rank} at most" if policy.max_lora_rank else "whole weights"
        wanted = f"adapters of rank {rank} (model.lora.rank)" if rank else "whole weights, as there is no [model.lora]"
        raise RecipeError(
            f"the run publishes {wanted}, and the engines of {url} were started for {made_for}: start the rollout "
            f"service with this recipe, or with GYMFLEET_ROLLOUT_MAX_LORA_RANK={rank}"
        )


async def _missing(settings: TrainerSettings, redis: RedisClient, endpoint: RolloutReplicas) -> str:
    try:
        await redis.ping()
    except OUTAGE as error:
        place = str(settings.redis_url).partition("?")[0].rpartition("@")[2]  # either may hold the password
        return f"Redis at {place} does not answer ({type(error).__name__})"
    answer = await readiness(settings.gateway_url)
    if answer != "ready":
        return f"gateway at {settings.gateway_url} says: {answer}"
    answer = await endpoint.readiness()
    if answer != "ready":
        return f"rollout at {answer}"
    if owner := await endpoint.ownership.claim():
        return f"run {owner} has the rollout replicas: let it end, or give this run a Redis and replicas of its own"
    return ""


async def _environment(env: EnvironmentSection, settings: TrainerSettings) -> EnvironmentSpec:
    key = settings.gateway_api_key.get_secret_value() if settings.gateway_api_key else None
    async with GatewayClient(settings.gateway_url, api_key=key) as client:
        try:
            spec = await client.environment(env.name)
        except TransportError as error:
            raise Stalled(f"the gateway at {settings.gateway_url} does not answer: {error}") from None
        except ClientError as error:
            raise TrainerError(f"the gateway does not serve {env.name}: {error}") from None
    levels = {level for level in (env.level, *(change.level for change in env.schedule)) if level is not None}
    if unknown := sorted(levels - set(spec.levels)):
        raise TrainerError(f"{spec.name} has no level {', '.join(unknown)}; it has {', '.join(spec.levels)}")
    for split in (env.train_split, env.eval_split):
        if not spec.splits.get(split):
            raise TrainerError(f"{spec.name} has no {split} tasks; it has {dict(spec.splits)}")
    return spec


async def _finish(run: RunContext) -> None:
    """Save the model, write the summary and leave nothing in Redis. It is safe to repeat."""
    policy = await run.endpoint.policy()
    await run.worker.run(run.directory.save_model, run.directory.model, run.learner.save_model)
    await _clean_up(run)
    summary = summarise(run.recipe, run.state, policy)
    run.directory.summary(summary)
    run.reporter.finish("done", _headline(run.state))
    log.info("run.finished", run_id=run.state.run_id, gain=summary["gain"])


async def _clean_up(run: RunContext) -> None:
    """Delete the run's streams, its dead letters, its sets of produced samples and everything held for a group."""
    await run.collector.close()
    await run.endpoint.ownership.withdraw()
    run_id = run.state.run_id
    stream = trajectories_scored(run_id)
    keys = [dead_letters(stream), search_trees(run_id), cancelled_run(run_id)]
    for pattern in (produced_samples(run_id, "*"), held_group(run_id, "*")):
        keys += [key.decode() async for key in run.redis.scan_iter(match=pattern, count=1000)]
    await run.redis.delete(stream, *keys)


def _headline(state: RunState) -> str:
    measured = [state.evals[one.name] for one in state.left if one.name in state.evals]
    if len(measured) < 2:
        return f"{state.step} steps"
    return f"success {measured[0].success:.3f} before, {measured[-1].success:.3f} after {state.step} steps"
