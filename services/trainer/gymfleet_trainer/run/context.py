"""The context that every stage of a run works with."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import structlog
from gymfleet_contracts.conversation import Conversation, Record
from gymfleet_contracts.data_records import Preference, form_of
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.data.converting import CheckedConverter
from gymfleet_kit.streams import RedisClient

from gymfleet_trainer.errors import NothingLeft, RunDirectoryError, TrainerError
from gymfleet_trainer.learning.learner import MODEL
from gymfleet_trainer.learning.pairs import Found
from gymfleet_trainer.learning.protocol import Learner, Training
from gymfleet_trainer.metrics import HELD, PARITY, TOLERANCE, VERSION
from gymfleet_trainer.publish.colocation import engines_asleep
from gymfleet_trainer.publish.publisher import Publication, Publisher
from gymfleet_trainer.publish.rollout_replicas import RolloutReplicas
from gymfleet_trainer.publish.tolerance import tolerance
from gymfleet_trainer.run.allocated import Allocated
from gymfleet_trainer.run.checkpoint import Checkpoints
from gymfleet_trainer.run.collect import Collector
from gymfleet_trainer.run.conversations import Rendered, render, render_pairs
from gymfleet_trainer.run.group_planner import GroupPlanner
from gymfleet_trainer.run.limited import Limited
from gymfleet_trainer.run.playing import Playing, Wanted
from gymfleet_trainer.run.progress import Reporter
from gymfleet_trainer.run.records import read, read_all, require_no_held_out, require_tokens_of
from gymfleet_trainer.run.run_directory import RunDirectory, sync
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.run.torch_thread import TorchThread
from gymfleet_trainer.settings import TrainerSettings
from gymfleet_trainer.stage import Stage

T = TypeVar("T")
log = structlog.get_logger()


@dataclass
class _Begun:
    """A checkpoint that is being written, and what it contains."""

    step: int
    stage: str
    settled: frozenset[str]
    blocked_s: float
    """How long the run has waited for it so far."""


@dataclass
class RunContext:
    """The parts of a running trainer."""

    recipe: Recipe
    settings: TrainerSettings
    directory: RunDirectory
    state: RunState
    checkpoints: Checkpoints
    learner: Learner
    worker: TorchThread
    endpoint: RolloutReplicas
    publisher: Publisher
    collector: Collector
    planner: GroupPlanner
    reporter: Reporter
    redis: RedisClient
    stage: Stage[Any]
    """The stage that is being carried out."""
    _left: list[Record] | None = None
    _published_age: int | None = None
    _begun: _Begun | None = None
    _committing: asyncio.Task[float] | None = None
    _lap_at: float = field(default_factory=time.monotonic)

    def lap(self, name: str) -> None:
        """Add the time since the last lap to one of the state's clocks."""
        now = time.monotonic()
        self.state.spend(name, now - self._lap_at)
        self._lap_at = now

    async def checkpoint(self) -> None:
        """Write a checkpoint, then acknowledge the deliveries that it contains, always in this order."""
        await self.begin_checkpoint()
        await self.settle_checkpoint()

    async def begin_checkpoint(self) -> None:
        """Begin to write a checkpoint of the current state in the background, after settling one begun before."""
        await self.settle_checkpoint()
        started = time.monotonic()
        await self._note_files()
        settled = self.collector.settled()
        await self.worker.run(self.checkpoints.begin, self.state, self.learner.begin_checkpoint)
        self._begun = _Begun(self.state.step, self.stage.name, settled, time.monotonic() - started)

    def commit_checkpoint(self) -> None:
        """Make a begun checkpoint, if any, the last one as soon as it is written.

        Call it once nothing is left that must not wait for the write: of a learner that does not finish apart, the
        torch thread waits for it.
        """
        if self._begun is not None:
            self._task(self._begun)

    async def see_to_checkpoint(self, waited_s: float) -> None:
        """Settle a begun checkpoint, if any, unless it is still being written; never wait.

        Raises as `settle_checkpoint` does.

        Args:
            waited_s: seconds that the last update has waited for it.
        """
        if self._begun is not None:
            self._begun.blocked_s += waited_s
            if self._task(self._begun).done():
                await self.settle_checkpoint()

    async def settle_checkpoint(self) -> None:
        """Wait until a begun checkpoint is the last one. Call it before the weights change, unless `update` waits.

        Raises:
            CheckpointFailed: its write failed. The last checkpoint is intact.
            WorkersFailed: the workers that hold the weights died.
        """
        begun, started = self._begun, time.monotonic()
        if begun is None:
            return
        write_s = await self._task(begun)
        self._begun = self._committing = None
        blocked_s = begun.blocked_s + time.monotonic() - started
        self.state.spend("checkpoint", blocked_s)
        self.directory.metric(
            "checkpoint", stage=begun.stage, step=begun.step, blocked_s=round(blocked_s, 4), write_s=round(write_s, 4)
        )

    def abandon_checkpoint(self) -> None:
        """Forget a begun, uncommitted checkpoint: the run ends here, and resumes from the last checkpoint."""
        self.checkpoints.abandon()
        if (committing := self._committing) is not None and not committing.cancel() and not committing.cancelled():
            committing.exception()  # or asyncio would log it: the run ends for an earlier reason

    def _task(self, begun: _Begun) -> asyncio.Task[float]:
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit(begun))
        return self._committing

    async def _commit(self, begun: _Begun) -> float:
        apart = self.learner.finishes_apart
        path, write_s = await (_in_a_thread(self._committed) if apart else self.worker.run(self._committed))
        acknowledged = await self.collector.acknowledge(begun.settled)
        self.state.spend("checkpoint_write", write_s)
        HELD.set(self.collector.num_held)
        self.directory.event("checkpoint", {"name": path.name, "step": begun.step}, stage=begun.stage)
        log.info("checkpoint.saved", name=path.name, acknowledged=acknowledged, write_s=round(write_s, 3))
        return write_s

    def _committed(self) -> tuple[Path, float]:
        seconds: list[float] = []
        path = self.checkpoints.commit(lambda: seconds.append(self.learner.finish_checkpoint()))
        return path, seconds[0]

    async def save_state(self) -> None:
        """Do the same as `checkpoint`, but replace only the state if the last checkpoint already has these weights."""
        await self.settle_checkpoint()
        if not self.checkpoints.holds(self.state):
            await self.checkpoint()
            return
        await self._note_files()
        settled = self.collector.settled()
        await self.worker.run(self.checkpoints.amend, self.state)
        await self.collector.acknowledge(settled)

    async def _note_files(self) -> None:
        await self.collector.keep_search_trees(self.directory)
        self.state.offsets = self.directory.offsets()

    async def play(self, label: str = "") -> list[ScoredTrajectory]:
        """Return the episodes that the stage plays under `label`, in the order of their tasks.

        Raises:
            TooManyFailures: one task's episodes failed more often than `max_replacements`, and so did all others.
        """
        return (await self.played(label)).counted

    async def played(self, label: str = "") -> Playing:
        """Do the same as `play`, and also return the cost: environment steps, and episodes that failed."""
        plays = self.stage.plays()[label]
        if not plays.by_expert:
            await self.ensure_published()
        wanted = Wanted(
            self.recipe, self.state, self.collector, self.directory, self.planner, self.stage.prefix(label), plays,
            self.settings.max_replacements,
        )  # fmt: skip
        if plays.allocation is not None:
            playing: Playing = Allocated(wanted, plays.allocation)
        elif plays.max_env_steps is not None:
            playing = Limited(wanted, plays.max_env_steps)
        else:
            playing = Playing(wanted)
        self.reporter.begin(self.stage.prefix(label), step=0, total=plays.num_episodes(self.recipe), unit="episodes")
        while playing.open:
            await playing.more()
            success = playing.num_successes / max(playing.num_counted, 1)
            self.reporter.advance(
                playing.num_counted, f"{playing.num_successes} successes", metrics={"success_now": success}
            )
        return playing

    def records(self, converter: CheckedConverter | None = None) -> list[Record]:
        """Return the records of the stage's `data`; files are read by the converter, if one is given.

        Raises the errors of `sources`.
        """
        return [record for source in self.sources(converter) for record in source]

    def sources(self, converter: CheckedConverter | None = None) -> list[list[Record]]:
        """Return the records of each source in the stage's `data`; files are read by the converter, if one is given.

        Raises:
            RunDirectoryError: a file is missing or damaged, was written with another model's tokens, or holds measured
                tasks.
            PluginFailed: the converter is at fault.
            NothingLeft: there is not a single record.
        """
        sources = read(self.directory, self.stage.data, converter)
        self._require_learnable([record for source in sources for record in source])
        return sources

    def compared_records(self, converter: CheckedConverter | None = None) -> list[ScoredTrajectory | Preference]:
        """See `records`; for a stage that takes episodes and preferences. Raises RunDirectoryError for others."""
        found = read_all(self.directory, self.stage.data, converter)
        compared = [record for record in found if isinstance(record, ScoredTrajectory | Preference)]
        if len(compared) < len(found):
            strange = next(form_of(record) for record in found if not isinstance(record, ScoredTrajectory | Preference))
            raise RunDirectoryError(
                f"{', '.join(self.stage.data)} holds {strange}, and {self.stage.table} takes only episodes and "
                "preferences"
            )
        self._require_learnable(compared)
        return compared

    def _require_learnable(self, found: Sequence[Record | Preference]) -> None:
        named = ", ".join(self.stage.data)
        if not found:
            raise NothingLeft(f"{self.stage.table}: there is nothing in {named}")
        require_no_held_out(found, self.recipe, named)
        episodes = [record for record in found if isinstance(record, ScoredTrajectory)]
        require_tokens_of(self.learner.vocab_size, episodes, named)

    def go_on_without(self, nothing: NothingLeft) -> None:
        """Note that the stage has nothing to work with, where the recipe lets the run continue."""
        # Set, not added up: a resumed stage finds nothing again.
        self.state.counts[f"nothing_left.{self.stage.name}"] = 1
        self.directory.metric("nothing_left", stage=self.stage.name, reason=str(nothing))
        log.warning("stage.nothing_left", stage=self.stage.name, reason=str(nothing))

    def episodes(self) -> list[ScoredTrajectory]:
        """See `records`; for a stage that takes only episodes. Raises RunDirectoryError for other records."""
        found = self.records()
        episodes = [record for record in found if isinstance(record, ScoredTrajectory)]
        if len(episodes) < len(found):
            raise RunDirectoryError(
                f"{', '.join(self.stage.data)} holds conversations, and {self.stage.table} takes only episodes"
            )
        return episodes

    async def rendered_pairs(self, preferences: Sequence[Preference]) -> Found:
        """Return preferences as pairs in tokens of the trained model. Raises TrainerError."""
        if not preferences:
            return Found()
        return await self.worker.run(
            render_pairs,
            preferences,
            self.tokenizer(),
            self.recipe.inference.max_model_len,
            self.recipe.rollout.template,
        )

    async def rendered(self, conversations: Sequence[Conversation]) -> Rendered:
        """Return conversations as token sequences of the trained model. Raises TrainerError."""
        return await self.worker.run(
            render, conversations, self.tokenizer(), self.recipe.inference.max_model_len, self.recipe.rollout.template
        )

    def tokenizer(self) -> Path:
        """Return a directory with tokenizer and chat template of the trained model. Raises TrainerError."""
        last = self.checkpoints.latest()
        if last is None:
            raise TrainerError("there is no checkpoint, and so no tokenizer to write with")
        return last[0] / MODEL

    def leave(self, records: Sequence[Record]) -> None:
        """Leave episodes, or conversations, under the stage's name: once, at its end."""
        self._left = list(records)
        self.directory.trajectories(self.stage.name, records)
        sync(self.directory.episodes(self.stage.name))  # as is the state that says that the stage is done

    def taken(self) -> list[Record] | None:
        """Return the records that the stage left with `leave`, and forget them; None if it left none."""
        left, self._left = self._left, None
        return left

    @contextlib.asynccontextmanager
    async def engines_aside(self) -> AsyncIterator[None]:
        """Have engines that share GPUs with the trainer sleep within the context. Raises VersionRefused, Stalled."""
        if not self.recipe.placement.colocated:
            yield
            return
        async with engines_asleep(self.endpoint):
            yield
            await self.worker.run(self.learner.release_memory)

    @contextlib.asynccontextmanager
    async def training(self, how: Training, previous: Path | None = None) -> AsyncIterator[None]:
        """Have the learner train for the stage within the context, for a stage that plays nothing; see `Learner.begin`.

        Engines that share GPUs with the trainer sleep until the optimiser is dropped. Raises VersionRefused, Stalled.
        """
        async with self.engines_aside():
            await self.worker.run(self.learner.begin, self.stage.name, how, previous)
            yield
            await self.worker.run(self.learner.end)

    async def ensure_published(self) -> None:
        """Publish the current weights unless this process has done so: from now on the policy plays with them."""
        if self._published_age != self.state.age:
            await self.publish()

    async def publish(self) -> Publication:
        """Publish the current weights."""
        TOLERANCE.set(tolerance(self.recipe, self.state))
        publication = await self.publisher.publish(self.state)
        self._published_age = self.state.age
        VERSION.set(publication.version)
        PARITY.set(publication.parity.mean_abs)
        return publication


def _in_a_thread(function: Callable[[], T]) -> asyncio.Future[T]:
    """Run a function in a thread of its own, for which neither the torch thread nor the end of the run waits."""
    executor = ThreadPoolExecutor(1, "commit")
    result = executor.submit(function)
    executor.shutdown(wait=False)
    return asyncio.wrap_future(result)
