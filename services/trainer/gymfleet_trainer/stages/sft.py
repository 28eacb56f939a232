"""Supervised training: imitate the replies of episodes that an earlier stage or another run left."""

import time
from collections.abc import Mapping
from typing import Any, ClassVar

import structlog
from gymfleet_contracts.stages import StageFacts

from gymfleet_trainer.errors import RunDirectoryError
from gymfleet_trainer.learning.options import SupervisedOptions
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.stage import Stage

log = structlog.get_logger()


class SftOptions(SupervisedOptions):
    """How replies are imitated."""

    data: str | tuple[str, ...]
    """The episodes: of a stage, of several, or of a .jsonl file."""


class Supervised(Stage[SftOptions]):
    """Imitate the replies of episodes that an earlier stage or another run left."""

    Options = SftOptions
    facts: ClassVar[StageFacts] = StageFacts(reads=True, leaves=("model",))
    small: ClassVar[Mapping[str, Any]] = {"epochs": 3}

    async def run(self, run: RunContext) -> None:
        """Train the epochs that are left."""
        episodes = run.episodes()
        run.publisher.adopt_probe(run.state, episodes)
        await run.worker.run(run.learner.begin, self.name, self.options)
        sequences = await run.worker.run(run.learner.sequences, episodes, self.options.roles)
        if (roles := self.options.roles) and not any(sequence.num_trained for sequence in sequences):
            given = sorted({turn.role for scored in episodes for turn in scored.trajectory.turns})
            raise RunDirectoryError(
                f"{self.table}.roles: no token of {', '.join(roles)} is in {', '.join(run.stage.data)}, whose episodes "
                f"have the roles {', '.join(given)}"
            )
        await self._train(run, sequences)

    async def _train(self, run: RunContext, sequences: list[TrainSequence]) -> None:
        num_tokens = sum(sequence.num_trained for sequence in sequences)
        saved_at = time.monotonic()
        run.reporter.begin(self.name, step=run.state.done, total=self.options.epochs, unit="epochs")
        for epoch in range(run.state.done, self.options.epochs):
            started = time.monotonic()
            metrics = await run.worker.run(run.learner.sft_epoch, sequences, epoch)
            seconds = time.monotonic() - started
            run.state.done = epoch + 1
            run.state.age += 1
            run.state.count("tokens_trained_sft", num_tokens)
            run.state.spend("sft_update", seconds)
            run.directory.metric(
                "sft_epoch", stage=self.name, epoch=epoch + 1, seconds=round(seconds, 4), tokens=num_tokens, **metrics
            )
            run.reporter.advance(epoch + 1, "imitating", metrics={"sft_loss": metrics["loss"]})
            last = epoch + 1 == self.options.epochs
            if not last and time.monotonic() - saved_at > run.settings.sft_checkpoint_every_s:
                await run.checkpoint()
                saved_at = time.monotonic()
