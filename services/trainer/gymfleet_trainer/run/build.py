"""`gymfleet-trainer build`: the model that a run starts from."""

import asyncio
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from gymfleet_client.errors import (
    ClientError,
    EnvironmentFull,
    SessionLost,
    TransportError,
    Unavailable,
    UnknownEnvironment,
    UpstreamTimeout,
)
from gymfleet_client.rest import GatewayClient
from gymfleet_client.stream import SessionStream
from gymfleet_contracts.recipe import MODEL_BUILT, Recipe
from gymfleet_contracts.recipe_sections import EnvironmentSection, ScratchModel
from gymfleet_contracts.session import EnvironmentSpec, OpenSession
from gymfleet_kit.chat.image_reader import SEEING
from gymfleet_kit.formats import CheckedFormat, format_of
from gymfleet_kit.plugins import PluginError
from gymfleet_kit.retries import Retries

from gymfleet_trainer.errors import RunDirectoryError, TooManyFailures, UnsupportedModel
from gymfleet_trainer.run.run_directory import RunDirectory, recipe_hash, sync
from gymfleet_trainer.settings import TrainerSettings

log = structlog.get_logger()

_CONCURRENCY: Final = 16
_PAUSE_S: Final = 1.0
_PASSING: Final = (TransportError, Unavailable, UpstreamTimeout, UnknownEnvironment, SessionLost, EnvironmentFull)
"""Errors seen while a service is not up yet or is being restarted."""


def initial_model(recipe: Recipe, directory: RunDirectory) -> str:
    """Return the path or hub id of the model to start from.

    Raises:
        RunDirectoryError: the model from scratch was not built, or was built for another recipe.
    """
    if recipe.model.path is not None:
        return recipe.model.path
    if _built(directory.model_init) != recipe_hash(recipe):
        raise RunDirectoryError(
            f"{directory.model_init} holds no model of this recipe; "
            "run `gymfleet-trainer build` with the same arguments first"
        )
    return str(directory.model_init)


def require_model(recipe: Recipe) -> None:
    """Raise UnsupportedModel if the recipe's model cannot be computed by the trainer, does not exist, or does not see
    the images that it is shown.
    """
    if recipe.model.path is not None:
        from gymfleet_trainer.model.families import examine  # noqa: PLC0415 - transformers takes seconds to import

        family = examine(recipe.model.path, context=recipe.inference.max_model_len).config.model_type
        if recipe.rollout.images == "seen" and family not in SEEING:
            raise UnsupportedModel(
                f'rollout.images = "seen", and models of the family {family!r} read text alone; images are seen by '
                f"{', '.join(SEEING)}"
            )


def nothing_to_build(recipe: Recipe, directory: RunDirectory) -> bool:
    """Return whether the recipe names a model or its built one is complete. Takes no lock, since a run may hold it."""
    return recipe.model.scratch is None or _built(directory.model_init) == recipe_hash(recipe)


async def build(recipe: Recipe, directory: RunDirectory, settings: TrainerSettings) -> str:
    """Build the model from scratch, or return the given one. A complete model of the same recipe is kept.

    Raises:
        RunDirectoryError: the directory holds the model of another recipe.
        TooManyFailures: no episodes of the environment's expert could be collected.
    """
    scratch = recipe.model.scratch
    if scratch is None or nothing_to_build(recipe, directory):
        return initial_model(recipe, directory)
    digest = recipe_hash(recipe)
    if (known := _built(directory.model_init)) is not None:
        raise RunDirectoryError(
            f"{directory.model_init} was built for another recipe (hash {known}, not {digest}); "
            "use another run directory"
        )
    texts = await corpus(recipe, scratch, settings)
    await asyncio.to_thread(_write, recipe, scratch, texts, directory.model_init, digest)
    log.info("model.built", path=str(directory.model_init), texts=len(texts))
    return str(directory.model_init)


async def corpus(recipe: Recipe, scratch: ScratchModel, settings: TrainerSettings) -> list[str]:
    """Return the texts of `corpus_episodes` expert episodes on train tasks: instructions, observations, replies.

    They are in the order of the tasks, so that the same environment gives the same tokenizer. Waits for services
    that are being started or restarted. Raises TooManyFailures after `settings.services_timeout_s`.
    """
    texts = []
    for env, count in zip(recipe.environments, _shares(recipe, scratch.corpus_episodes), strict=True):
        retries = Retries("corpus.interrupted", on=_PASSING, longest_pause_s=_PAUSE_S, bound={"env": env.name})
        try:
            texts += await retries.call(
                partial(_corpus, recipe, env, count, settings), timeout_s=settings.services_timeout_s
            )
        except ClientError as error:
            raise TooManyFailures(
                f"the expert of {env.name} could not be watched through {settings.gateway_url}: {error}"
            ) from None
    return texts


def _shares(recipe: Recipe, episodes: int) -> list[int]:
    """Return how many of the episodes each environment provides, by the weights; at least one each."""
    whole = sum(env.weight for env in recipe.environments)
    return [max(1, round(episodes * env.weight / whole)) for env in recipe.environments]


async def _corpus(recipe: Recipe, env: EnvironmentSection, wanted: int, settings: TrainerSettings) -> list[str]:
    key = settings.gateway_api_key.get_secret_value() if settings.gateway_api_key else None
    reply_format = format_of(recipe.format_of(env))
    slots = asyncio.Semaphore(_CONCURRENCY)
    async with GatewayClient(settings.gateway_url, api_key=key) as client:
        spec = await client.environment(env.name)
    async with SessionStream(settings.gateway_url, api_key=key) as stream:
        count = min(wanted, spec.splits[env.train_split])
        limit = min(spec.max_turns, recipe.limits_of(env).max_turns)

        async def watch(index: int) -> list[str]:
            async with slots:
                return await _episode(stream, env, index, reply_format, limit)

        try:
            async with asyncio.TaskGroup() as tasks:
                episodes = [tasks.create_task(watch(index)) for index in range(count)]
        except ExceptionGroup as group:
            first = group.exceptions[0]
            raise (first if isinstance(first, ClientError | PluginError) else group) from None
    return [*_rules(spec, reply_format), *(text for episode in episodes for text in episode.result())]


def _said(reply_format: CheckedFormat, thought: str, action: str) -> list[str]:
    """Return the texts of a reply; for a call, its thoughts and arguments."""
    if not reply_format.tools:
        return [reply_format.render(thought, action)]
    reply = reply_format.compose(thought, action, thinks=True)
    arguments = [value for call in reply.calls for value in call.arguments.values() if isinstance(value, str)]
    return [reply.reasoning, *(name for call in reply.calls for name in (call.name, *call.arguments)), *arguments]


async def _episode(
    stream: SessionStream, env: EnvironmentSection, index: int, reply_format: CheckedFormat, limit: int
) -> list[str]:
    session = await stream.open(
        OpenSession(env=env.name, split=env.train_split, level=env.changed(None).level, task_index=index),
        timeout_s=60.0,
    )
    texts = [session.observation]
    try:
        for step in range(limit):
            move = await stream.expert(session.session_id, index=step)
            texts += _said(reply_format, move.thought, move.action)
            result = await stream.step(session.session_id, step, move.action, timeout_s=60.0)
            texts.append(result.observation)
            if result.terminated or result.truncated:
                break
    finally:
        await stream.close(session.session_id)
    return texts


def _rules(spec: EnvironmentSpec, reply_format: CheckedFormat) -> list[str]:
    return [spec.instructions, reply_format.instructions, reply_format.complaint]


def _write(recipe: Recipe, scratch: ScratchModel, texts: list[str], path: Path, digest: str) -> None:
    from gymfleet_trainer.model.scratch import build_scratch_model  # noqa: PLC0415 - transformers takes seconds to import

    temporary = path.with_name(f".{path.name}.writing")
    for leftover in (temporary, path):
        shutil.rmtree(leftover, ignore_errors=True)
    build_scratch_model(texts, scratch, temporary, recipe.seed, max_position=recipe.inference.max_model_len)
    (temporary / MODEL_BUILT).write_text(json.dumps({"recipe_hash": digest}), encoding="utf-8")
    temporary.rename(path)
    sync(path.parent)


def _built(path: Path) -> str | None:
    try:
        return str(json.loads((path / MODEL_BUILT).read_text(encoding="utf-8"))["recipe_hash"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
