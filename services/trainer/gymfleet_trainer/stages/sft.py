"""Supervised training: imitate the replies of episodes that an earlier stage left, or of conversations in files."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import structlog
from gymfleet_contracts.conversation import Conversation
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.stages import PlannedStage, StageFacts
from gymfleet_contracts.trajectory import ScoredTrajectory
from pydantic import JsonValue

from gymfleet_trainer.errors import NothingLeft, RunDirectoryError
from gymfleet_trainer.learning.options import SupervisedOptions
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.run.records import converter_in
from gymfleet_trainer.stage import Stage

log = structlog.get_logger()


class SftOptions(SupervisedOptions):
    """How replies are imitated."""

    data: str | tuple[str, ...]
    """The episodes: of a stage, of several, or of a .jsonl file."""
    converter: str | dict[str, JsonValue] | None = None
    """What reads the files that `data` names, `.jsonl` or `.json`, where they are not ours: `messages`, `sharegpt`, one
    of your own, or a table with `use` and its options."""


class Supervised(Stage[SftOptions]):
    """Imitate the replies of episodes that an earlier stage left, or of conversations in files."""

    Options = SftOptions
    facts: ClassVar[StageFacts] = StageFacts(reads=True, leaves=("model",), plugins={"converter": "converter"})
    small: ClassVar[Mapping[str, Any]] = {"epochs": 3}

    def check(self, recipe: Recipe, planned: PlannedStage) -> None:  # noqa: ARG002 - what every stage is given
        """Make the converter before anything is started."""
        converter_in(self.options.converter, self)

    async def run(self, run: RunContext) -> None:
        """Train the epochs that are left."""
        records = await run.worker.run(run.records, converter_in(self.options.converter, self))
        episodes = [record for record in records if isinstance(record, ScoredTrajectory)]
        run.publisher.adopt_probe(run.state, episodes)
        await run.worker.run(run.learner.begin, self.name, self.options)
        sequences = await run.worker.run(run.learner.sequences, episodes, self.options.roles)
        if (roles := self.options.roles) and episodes and not any(sequence.num_trained for sequence in sequences):
            given = sorted({turn.role for scored in episodes for turn in scored.trajectory.turns})
            raise RunDirectoryError(
                f"{self.table}.roles: no token of {', '.join(roles)} is in {', '.join(run.stage.data)}, whose episodes "
                f"have the roles {', '.join(given)}"
            )
        if conversations := [record for record in records if isinstance(record, Conversation)]:
            sequences += await self._rendered(run, conversations)
        if not sequences:
            raise NothingLeft(
                f"{self.table}: none of {len(records)} conversations of {', '.join(self.data)} fits into "
                f"inference.max_model_len ({run.recipe.inference.max_model_len} tokens)"
            )
        await self._train(run, sequences)

    async def _rendered(self, run: RunContext, conversations: Sequence[Conversation]) -> list[TrainSequence]:
        rendered = await run.rendered(conversations)
        # Set and not added up: a stage that is resumed reads them again.
        run.state.counts[f"conversations.{self.name}"] = len(rendered.sequences)
        run.state.counts[f"conversations_too_long.{self.name}"] = rendered.num_too_long
        if rendered.num_too_long:
            log.warning("conversations.too_long", stage=self.name, number=rendered.num_too_long, of=len(conversations))
        return rendered.sequences

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
