"""The common part of the stages that train a reward model."""

import math
import shutil
import time
from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeVar

import structlog
from gymfleet_contracts.recipe import Recipe, RecipeError
from gymfleet_contracts.stages import PlannedStage
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.chat.transcripts import Transcripts, UnusableTranscripts

from gymfleet_trainer.errors import NothingLeft, TrainerError
from gymfleet_trainer.learning.learner import MODEL
from gymfleet_trainer.learning.options import RewardModelOptions
from gymfleet_trainer.learning.reward_data import (
    Example,
    Examples,
    Pair,
    Round,
    held_out_of,
    read_examples,
    replayed,
)
from gymfleet_trainer.learning.reward_measures import LastLineBaseline, LengthBaseline
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.run.records import read
from gymfleet_trainer.stage import Stage

log = structlog.get_logger()

OptionsT = TypeVar("OptionsT", bound=RewardModelOptions)


@dataclass(frozen=True)
class Divided:
    """The examples to train on, and those held out; each task is in one of the two."""

    trained: list[Example]
    trained_pairs: list[Pair]
    held_out: list[Example]
    held_out_pairs: list[Pair]
    earlier: list[Example] = field(default_factory=list)
    """The examples that earlier rounds were trained on, where episodes are learned from."""
    replayed: list[Example] = field(default_factory=list)
    """Those of `earlier` that are trained on again."""
    replayed_pairs: list[Pair] = field(default_factory=list)
    unread: list[ScoredTrajectory] = field(default_factory=list)
    """The episodes of all these tasks that the model cannot read, such as those that are too long."""


class RewardModelStage(Stage[OptionsT]):
    """Train a reward model in epochs, measure it on held-out tasks, and leave it for the reward service."""

    def __init__(self, planned: PlannedStage, options: OptionsT) -> None:
        super().__init__(planned, options)
        self._earlier = planned.earlier

    def check(self, _: Recipe, planned: PlannedStage) -> None:
        """Raise `RecipeError` for options about earlier rounds where there are none."""
        of_rounds = {
            "replay": self.options.replay > 0,
            "start_from": self.options.start_from == "previous",
            "if_nothing": self.options.if_nothing == "go_on",
        }
        if planned.name == planned.title and (given := [name for name, asked in of_rounds.items() if asked]):
            raise RecipeError(
                f"{self.table}.{given[0]}: there are no earlier rounds: put the stage, and those that leave its data, "
                "into a [[stages]] table with repeat"
            )

    @property
    @abstractmethod
    def learns_from(self) -> Collection[Literal["pairs", "episodes"]]:
        """Return the items that its loss is a mean over."""

    @abstractmethod
    def rows(self, run: RunContext, divided: Divided) -> list[TrainSequence]:
        """Return the rows to train on. Called in the torch thread. Raises `NothingLeft`."""

    @abstractmethod
    def measured(self, run: RunContext, divided: Divided) -> dict[str, Any]:
        """Return how good the model is on held-out examples."""

    def described(self) -> dict[str, Any]:
        """Return the fields of the line `reward_data` besides the numbers that all kinds have."""
        return {}

    async def run(self, run: RunContext) -> None:
        """Train the remaining epochs."""
        before = run.directory.models / self._earlier[-1].name if self._earlier else None
        left = run.directory.models / self.name
        try:
            divided = await run.worker.run(self._divided, run)
            rows = await run.worker.run(self.rows, run, divided)
        except NothingLeft as error:
            if self.options.if_nothing == "end" or before is None:
                raise
            run.go_on_without(error)
            copied = partial(shutil.copytree, before, dirs_exist_ok=True)
            await run.worker.run(run.directory.save_model, left, copied)
            return
        self._tell(run, divided)
        previous = before if self.options.start_from == "previous" else None
        async with run.training(self.options, previous):
            await self._epochs(run, divided, rows)
            await run.worker.run(run.directory.save_model, left, run.learner.save_reward_model)

    async def _epochs(self, run: RunContext, divided: Divided, rows: list[TrainSequence]) -> None:
        saved_at = time.monotonic()
        epochs = self.options.epochs
        run.reporter.begin(self.name, step=run.state.done, total=epochs, unit="epochs")
        for epoch in range(run.state.done, epochs):
            started = time.monotonic()
            metrics = await run.worker.run(run.learner.reward_epoch, rows, epoch)
            held_out = await run.worker.run(self.measured, run, divided) if divided.held_out else {}
            seconds = time.monotonic() - started
            run.state.done = epoch + 1
            run.state.spend("reward_model_update", seconds)
            run.directory.metric(
                "reward_epoch", stage=self.name, epoch=epoch + 1, seconds=round(seconds, 4), **metrics,
                **{f"held_out_{name}": value for name, value in held_out.items()},
            )  # fmt: skip
            accuracy = (metrics | held_out).get("accuracy", math.nan)
            run.reporter.advance(epoch + 1, f"accuracy {accuracy:.3f}", metrics={"reward_loss": metrics["loss"]})
            if epoch + 1 < epochs and time.monotonic() - saved_at > run.settings.sft_checkpoint_every_s:
                await run.checkpoint()
                saved_at = time.monotonic()

    def _divided(self, run: RunContext) -> Divided:
        transcripts = self._transcripts(run)
        found = self._examples(run, transcripts)
        own = Round.of(found.tasks, self.options)
        unread = [*found.unread]
        # Set, not added up: a resumed stage reads them again.
        run.state.counts |= {
            **{f"examples_{reason}.{self.name}": number for reason, number in found.left_out.items()},
            f"tasks_without_pairs.{self.name}": sum(not pairs for pairs in own.pairs.values()),
        }
        rounds = self._rounds(run, transcripts, unread)
        out = held_out_of([*rounds, own], self.options.held_out)
        trained = own.tasks.keys() - out
        divided = Divided(
            own.examples_of(trained), own.pairs_of(trained), own.examples_of(out), own.pairs_of(out), unread=unread
        )
        return self._with_replay(run, divided, rounds, out) if self.options.replay else divided

    def _with_replay(self, run: RunContext, divided: Divided, rounds: Sequence[Round], out: set[str]) -> Divided:
        """Add the examples to learn from again, and count them."""
        share, seed = self.options.replay, f"{run.recipe.seed}/{self.name}"
        if "episodes" in self.learns_from:
            earlier = [example for one in rounds for example in one.examples_of(one.tasks.keys() - out)]
            examples = replayed(earlier, divided.trained, round(share * len(divided.trained)), seed)
            divided = replace(divided, earlier=earlier, replayed=examples)
        if "pairs" in self.learns_from:
            found = (pair for one in rounds for pair in one.pairs_of(one.tasks.keys() - out))
            pairs = replayed(found, divided.trained_pairs, round(share * len(divided.trained_pairs)), seed)
            divided = replace(divided, replayed_pairs=pairs)
        run.state.counts[f"replayed.{self.name}"] = len(divided.replayed) + len(divided.replayed_pairs)
        return divided

    def _rounds(self, run: RunContext, transcripts: Transcripts, unread: list[ScoredTrajectory]) -> list[Round]:
        """Return the data of earlier rounds, where this round continues from it; what is unread of it is added."""
        if not self.options.replay and self.options.start_from == "policy":
            return []
        rounds = []
        for stage in self._earlier:
            records = (record for source in read(run.directory, stage.data(), None) for record in source)
            episodes = (record for record in records if isinstance(record, ScoredTrajectory))
            found = read_examples(episodes, transcripts, self.options, run.recipe.inference.max_model_len)
            rounds.append(Round.of(found.tasks, self.options))
            unread += found.unread
        return rounds

    def _transcripts(self, run: RunContext) -> Transcripts:
        last = run.checkpoints.latest()
        if last is None:
            raise TrainerError("there is no checkpoint, and so no tokenizer to write transcripts with")
        try:
            return Transcripts(last[0] / MODEL)
        except UnusableTranscripts as error:
            raise TrainerError(f"{self.table}: no reward model can be made of this model: {error}") from None

    def _examples(self, run: RunContext, transcripts: Transcripts) -> Examples:
        episodes = run.episodes()
        limit = run.recipe.inference.max_model_len
        found = read_examples(episodes, transcripts, self.options, limit)
        if not found.tasks:
            told = ", ".join(f"{number} {reason.replace('_', ' ')}" for reason, number in found.left_out.items())
            raise NothingLeft(
                f"{self.table}: none of {len(episodes)} episodes of {', '.join(self.data)} can be learned from "
                f"({told}; inference.max_model_len is {limit})"
            )
        return found

    def _tell(self, run: RunContext, divided: Divided) -> None:
        """Note how much data there is, and how well length or the last line alone predicts it."""
        trained, held_out = divided.trained_pairs, divided.held_out_pairs
        told = {
            "num_episodes": len(divided.trained),
            "num_pairs": len(trained),
            "num_held_out_episodes": len(divided.held_out),
            "num_held_out_pairs": len(held_out),
            "num_replayed": len(divided.replayed) + len(divided.replayed_pairs),
            "held_out_accuracy_by_length": LengthBaseline(trained).accuracy(held_out),
            "held_out_accuracy_by_last_line": LastLineBaseline(trained).accuracy(held_out),
            **self.described(),
        }
        run.directory.metric("reward_data", stage=self.name, **told)
        log.info("reward_model.begun", stage=self.name, **told)


def numbers_of(run: RunContext, examples: Sequence[Example]) -> dict[str, list[float]]:
    """Return the numbers of episodes by their ids, each computed once."""
    distinct = {example.name: example for example in examples}
    found = run.learner.reward_numbers([example.row() for example in distinct.values()])
    return dict(zip(distinct, found, strict=True))


def bins_of(found: Sequence[Any]) -> list[dict[str, float]]:
    """Return bins in the form of the run's files."""
    return [{name: round(value, 6) for name, value in asdict(one).items()} for one in found]
