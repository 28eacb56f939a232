"""Supervised training: imitate the replies of episodes that an earlier stage left, or of conversations in files."""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import structlog
from gymfleet_contracts.conversation import Conversation, Record
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.stages import INITIAL, PlannedStage, StageFacts
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.data.tools import ToolUse, tool_use
from pydantic import JsonValue, PositiveFloat, PositiveInt, model_validator

from gymfleet_trainer.errors import NothingLeft, RunDirectoryError
from gymfleet_trainer.learning.options import SupervisedOptions
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.run.records import converter_in
from gymfleet_trainer.stage import IfNothing, Stage

log = structlog.get_logger()


class SftOptions(SupervisedOptions):
    """Options for imitating replies."""

    data: str | tuple[str, ...]
    """The episodes: of a stage, of several, or of a file."""
    converter: str | dict[str, JsonValue] | None = None
    """The converter that reads the files that `data` names (`.jsonl`, `.json` or `.parquet`), if they are not in
    gymfleet's format: `messages`, `sharegpt`, `agentgym`, one of your own, or a table with `use` and its options."""
    weights: tuple[PositiveFloat, ...] | None = None
    """How often an epoch contains each source that `data` names, in their order: with 2 every record twice, with 0.25 a
    quarter of them, drawn anew for every epoch. By default all once."""
    start_from: str | None = None
    """The stage whose model is trained, or `initial` for the model that the run began with; by default the policy as it
    is. The optimiser starts anew in either case."""
    if_nothing: IfNothing = "end"
    """What happens if `data` has no record, because a filter kept none: the run ends with exit code 9, or it continues
    with the policy as it is."""
    max_tokens: PositiveInt | None = None
    """Imitate at most this many tokens of replies, to compare data of several sizes: in as few epochs as that takes,
    `epochs` at most, each of as many records as fit, drawn anew."""

    @model_validator(mode="after")
    def weights_fit(self) -> Self:
        """Require a weight for every source, and no weights with a budget, which draws by itself."""
        num_sources = 1 if isinstance(self.data, str) else len(self.data)
        if self.weights is not None and len(self.weights) != num_sources:
            raise ValueError(f"weights: {len(self.weights)} are given, and data names {num_sources} sources")
        if self.weights is not None and self.max_tokens is not None:
            raise ValueError("weights: with max_tokens, which draws from all records alike, there are none")
        return self


class Supervised(Stage[SftOptions]):
    """Imitate the replies of episodes that an earlier stage left, or of conversations in files."""

    Options = SftOptions
    facts: ClassVar[StageFacts] = StageFacts(
        reads=True, starts=True, leaves=("model",), plugins={"converter": "converter"}
    )
    small: ClassVar[Mapping[str, Any]] = {"epochs": 3}

    def __init__(self, planned: PlannedStage, options: SftOptions) -> None:
        super().__init__(planned, options)
        self._start = planned.start()

    def check(self, recipe: Recipe, planned: PlannedStage) -> None:  # noqa: ARG002 - what every stage is given
        """Make the converter before anything is started."""
        converter_in(self.options.converter, self)

    async def run(self, run: RunContext) -> None:
        """Train the remaining epochs."""
        try:
            read = await run.worker.run(run.sources, converter_in(self.options.converter, self))
            sources = self._without_rejected(run, read)
        except NothingLeft as error:
            if self.options.if_nothing == "end":
                raise
            run.go_on_without(error)
            return
        records = [record for source in sources for record in source]
        episodes = [record for record in records if isinstance(record, ScoredTrajectory)]
        run.publisher.adopt_probe(run.state, episodes)
        for name in ("conversations", "conversations_too_long"):  # a stage that is resumed reads them again
            run.state.counts.pop(f"{name}.{self.name}", None)
        by_source = [await self._sequences(run, source) for source in sources]
        sequences = [sequence for source in by_source for sequence in source]
        if (roles := self.options.roles) and episodes and not any(sequence.num_trained for sequence in sequences):
            given = sorted({turn.role for scored in episodes for turn in scored.trajectory.turns})
            raise RunDirectoryError(
                f"{self.table}.roles: no token of {', '.join(roles)} is in {', '.join(run.stage.data)}, whose episodes "
                f"have the roles {', '.join(given)}"
            )
        if conversations := [record for record in records if isinstance(record, Conversation)]:
            self._count_tools(run, await run.worker.run(tool_use, conversations))
        if not sequences:
            raise NothingLeft(
                f"{self.table}: none of {len(records)} conversations of {', '.join(self.data)} fits into "
                f"inference.max_model_len ({run.recipe.inference.max_model_len} tokens)"
            )
        if self._start is not None and not run.state.done:
            model = None if self._start == INITIAL else run.directory.models / self._start
            await run.worker.run(run.learner.start_from, model)
        await self._train(run, self._epochs(by_source, run.recipe.seed))

    def _without_rejected(self, run: RunContext, sources: Sequence[Sequence[Record]]) -> list[list[Record]]:
        """Return each source's records to imitate, without episodes that a search rejected, which are counted."""
        kept = [[record for record in source if not _rejected(record)] for source in sources]
        if number := sum(map(len, sources)) - sum(map(len, kept)):
            # Set, not added up: a resumed stage reads them again.
            run.state.counts[f"left_out.{self.name}.rejected"] = number
            if not any(kept):
                raise NothingLeft(
                    f"{self.table}: a search rejected all {number} episodes of {', '.join(self.data)}, and what it "
                    "rejected is not imitated: loosen the filter, or collect more"
                )
        return kept

    async def _sequences(self, run: RunContext, records: Sequence[Record]) -> list[TrainSequence]:
        """Return the sequences of a source: those of its episodes, then those of its conversations."""
        episodes = [record for record in records if isinstance(record, ScoredTrajectory)]
        conversations = [record for record in records if isinstance(record, Conversation)]
        sequences: list[TrainSequence] = []
        if episodes:
            sequences += await run.worker.run(run.learner.sequences, episodes, self.options.roles)
        if conversations:
            sequences += await self._rendered(run, conversations)
        return sequences

    async def _rendered(self, run: RunContext, conversations: Sequence[Conversation]) -> list[TrainSequence]:
        rendered = await run.rendered(conversations)
        run.state.count(f"conversations.{self.name}", len(rendered.sequences))
        run.state.count(f"conversations_too_long.{self.name}", rendered.num_too_long)
        if rendered.num_too_long:
            log.warning("conversations.too_long", stage=self.name, number=rendered.num_too_long, of=len(conversations))
        return rendered.sequences

    def _count_tools(self, run: RunContext, use: ToolUse) -> None:
        """Count the tool calls that are about to be imitated, and those of tools that nobody offers."""
        if not use.num_calls:
            return
        run.state.counts[f"tool_calls.{self.name}"] = use.num_calls
        run.state.counts[f"tool_calls_hallucinated.{self.name}"] = use.hallucinated.total()
        if use.rate:
            log.warning(
                "tools.hallucinated", stage=self.name, rate=round(use.rate, 4), most=use.hallucinated.most_common(3)
            )

    async def _train(self, run: RunContext, shares: list[list[TrainSequence]]) -> None:
        async with run.training(self.options.model_copy(update={"epochs": len(shares)})):
            await self._imitate(run, shares)

    async def _imitate(self, run: RunContext, shares: list[list[TrainSequence]]) -> None:
        saved_at = time.monotonic()
        run.reporter.begin(self.name, step=run.state.done, total=len(shares), unit="epochs")
        for epoch in range(run.state.done, len(shares)):
            started = time.monotonic()
            metrics = await run.worker.run(run.learner.sft_epoch, shares[epoch], epoch)
            seconds = time.monotonic() - started
            run.state.done = epoch + 1
            run.state.age += 1
            num_tokens = sum(sequence.num_trained for sequence in shares[epoch])
            run.state.count("tokens_trained_sft", num_tokens)
            run.state.spend("sft_update", seconds)
            run.directory.metric(
                "sft_epoch", stage=self.name, epoch=epoch + 1, seconds=round(seconds, 4), tokens=num_tokens, **metrics
            )
            run.reporter.advance(epoch + 1, "imitating", metrics={"sft_loss": metrics["loss"]})
            last = epoch + 1 == len(shares)
            if not last and time.monotonic() - saved_at > run.settings.sft_checkpoint_every_s:
                await run.checkpoint()
                saved_at = time.monotonic()

    def _epochs(self, sources: list[list[TrainSequence]], seed: int) -> list[list[TrainSequence]]:
        """Return the sequences of each epoch: all, or as weighted by source; or with a budget, as few epochs as it
        takes, of about equal size.

        Raises `NothingLeft` where the epochs, or the records, do not suit the budget or the weights.
        """
        budget, epochs = self.options.max_tokens, self.options.epochs
        sequences = [sequence for source in sources for sequence in source]
        if (weights := self.options.weights) is not None:
            mixed = [
                [
                    one
                    for place, (source, weight) in enumerate(zip(sources, weights, strict=True))
                    for one in _drawn(source, weight, random.Random(f"{seed}/{self.name}/drawn/{epoch}/{place}"))
                ]
                for epoch in range(epochs)
            ]
            if not all(mixed):
                raise NothingLeft(f"{self.table}: weights leave none of the {len(sequences)} records of an epoch")
            return mixed
        if budget is None:
            return [sequences] * epochs
        num_tokens = sum(sequence.num_trained for sequence in sequences)
        needed = -(-budget // max(num_tokens, 1))
        if needed > epochs:
            raise NothingLeft(
                f"{self.table}: max_tokens = {budget} takes {needed} epochs of the {num_tokens} tokens of "
                f"{', '.join(self.data)}, and epochs is {epochs}"
            )
        shares: list[list[TrainSequence]] = []
        spent = 0
        for epoch in range(needed):
            order = random.Random(f"{seed}/{self.name}/drawn/{epoch}").sample(sequences, len(sequences))
            shares.append(list(_fitting(order, budget * (epoch + 1) // needed - spent)))
            spent += sum(sequence.num_trained for sequence in shares[-1])
        if not all(shares):
            raise NothingLeft(f"{self.table}: max_tokens = {budget} is less than the tokens of any record")
        return shares


def _rejected(record: Record) -> bool:
    return isinstance(record, ScoredTrajectory) and record.trajectory.rejected


def _drawn(sequences: list[TrainSequence], weight: float, draw: random.Random) -> list[TrainSequence]:
    """Return the sequences repeated by the whole part of the weight, and a drawn share of them for its fraction."""
    whole = int(weight)
    return sequences * whole + draw.sample(sequences, round((weight - whole) * len(sequences)))


def _fitting(sequences: Sequence[TrainSequence], budget: int) -> Iterator[TrainSequence]:
    """Yield, in order, the sequences that still fit into a number of trained tokens."""
    for sequence in sequences:
        if 0 < sequence.num_trained <= budget:
            budget -= sequence.num_trained
            yield sequence
