"""The context that every phase of a run works with."""

import time
from dataclasses import dataclass, field
from typing import Any

import structlog
from gymfleet_contracts.recipe import Recipe
from gymfleet_kit.streams import RedisClient

from gymfleet_trainer.learning.algorithm import Algorithm
from gymfleet_trainer.learning.learner import Learner
from gymfleet_trainer.metrics import HELD, PARITY, TOLERANCE, VERSION
from gymfleet_trainer.publish.publisher import Publication, Publisher
from gymfleet_trainer.publish.rollout_replicas import RolloutReplicas
from gymfleet_trainer.run.checkpoint import Checkpoints
from gymfleet_trainer.run.collect import Collector
from gymfleet_trainer.run.group_planner import GroupPlanner
from gymfleet_trainer.run.progress import Reporter
from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.run.torch_thread import TorchThread
from gymfleet_trainer.settings import TrainerSettings

log = structlog.get_logger()


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
    algorithm: Algorithm[Any] | None = None
    """Of reinforcement learning; None for a recipe without it."""
    _lap_at: float = field(default_factory=time.monotonic)

    def lap(self, name: str) -> None:
        """Add the time since the last lap to one of the state's clocks."""
        now = time.monotonic()
        self.state.spend(name, now - self._lap_at)
        self._lap_at = now

    async def checkpoint(self) -> None:
        """Write a checkpoint, then acknowledge the deliveries that it contains, always in this order."""
        started = time.monotonic()
        self.state.offsets = self.directory.offsets()
        path = await self.worker.run(self.checkpoints.save, self.state, self.learner.save_checkpoint)
        acknowledged = await self.collector.acknowledge()
        seconds = time.monotonic() - started
        self.state.spend("checkpoint", seconds)
        HELD.set(self.collector.num_held)
        log.info("checkpoint.saved", name=path.name, acknowledged=acknowledged, seconds=round(seconds, 3))

    async def save_state(self) -> None:
        """Do as `checkpoint`, but replace only the state if the last checkpoint already has these weights."""
        if not self.checkpoints.holds(self.state):
            await self.checkpoint()
            return
        self.state.offsets = self.directory.offsets()
        await self.worker.run(self.checkpoints.amend, self.state)
        await self.collector.acknowledge()

    async def publish(self) -> Publication:
        """Publish the current weights."""
        TOLERANCE.set(self.recipe.publish.parity_tolerance)
        publication = await self.publisher.publish(self.state)
        VERSION.set(publication.version)
        PARITY.set(publication.parity.mean_abs)
        return publication
