"""What the stages that train a reward model have in common."""

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeVar

import structlog
from gymfleet_contracts.stages import StageFacts
from gymfleet_kit.chat.transcripts import Transcripts, UnusableTranscripts

from gymfleet_trainer.errors import NothingLeft, TrainerError
from gymfleet_trainer.learning.learner import MODEL
from gymfleet_trainer.learning.options import RewardModelOptions
from gymfleet_trainer.learning.reward_data import Example, Examples, Pair, held_out_tasks, pairs_of, read_examples
from gymfleet_trainer.learning.reward_measures import LastLineBaseline, LengthBaseline
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.stage import Stage

log = structlog.get_logger()

OptionsT = TypeVar("OptionsT", bound=RewardModelOptions)


@dataclass(frozen=True)
class Divided:
    """What is trained on, and what is held out: tasks, which are in one of the two."""

    trained: list[Example]
    trained_pairs: list[Pair]
    held_out: list[Example]
    held_out_pairs: list[Pair]


class RewardModelStage(Stage[OptionsT]):
    """Train a reward model in epochs, measure it on held-out tasks, and leave it for the reward service."""

    facts: ClassVar[StageFacts] = StageFacts(reads=True, leaves=("reward_model",))

    @abstractmethod
    def rows(self, divided: Divided) -> list[TrainSequence]:
        """Return what is trained on. Raises `NothingLeft`."""

    @abstractmethod
    def measured(self, run: RunContext, divided: Divided) -> dict[str, Any]:
        """Return how good the model is on what is held out."""

    async def run(self, run: RunContext) -> None:
        """Train the epochs that are left."""
        divided = await run.worker.run(self._divided, run)
        rows = self.rows(divided)
        self._tell(run, divided)
        await run.worker.run(run.learner.begin, self.name, self.options)
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
            accuracy = held_out.get("accuracy", metrics["accuracy"])
            run.reporter.advance(epoch + 1, f"accuracy {accuracy:.3f}", metrics={"reward_loss": metrics["loss"]})
            if epoch + 1 < epochs and time.monotonic() - saved_at > run.settings.sft_checkpoint_every_s:
                await run.checkpoint()
                saved_at = time.monotonic()
        await run.worker.run(run.directory.save_model, run.directory.models / self.name, run.learner.save_reward_model)

    def _divided(self, run: RunContext) -> Divided:
        found = self._examples(run)
        pairs = {task: pairs_of(examples, self.options) for task, examples in found.tasks.items()}
        with_pairs = {task for task, drawn in pairs.items() if drawn}
        # Set and not added up: a stage that is resumed reads them again.
        run.state.counts |= {
            **{f"examples_{reason}.{self.name}": number for reason, number in found.left_out.items()},
            f"tasks_without_pairs.{self.name}": len(pairs) - len(with_pairs),
        }
        out = held_out_tasks(with_pairs, self.options.held_out)
        out |= held_out_tasks(found.tasks.keys() - with_pairs, self.options.held_out)
        own = found.tasks.keys() - out

        def of(tasks: set[str]) -> tuple[list[Example], list[Pair]]:
            ordered = sorted(tasks)
            return (
                [example for task in ordered for example in found.tasks[task]],
                [pair for task in ordered for pair in pairs[task]],
            )

        return Divided(*of(set(own)), *of(out))

    def _examples(self, run: RunContext) -> Examples:
        last = run.checkpoints.latest()
        if last is None:
            raise TrainerError("there is no checkpoint, and so no tokenizer to write transcripts with")
        try:
            transcripts = Transcripts(last[0] / MODEL)
        except UnusableTranscripts as error:
            raise TrainerError(f"{self.table}: no reward model can be made of this model: {error}") from None
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
        """Note what there is to learn from, and what length and the last line alone tell of it."""
        trained, held_out = divided.trained_pairs, divided.held_out_pairs
        told = {
            "num_episodes": len(divided.trained),
            "num_pairs": len(trained),
            "num_held_out_episodes": len(divided.held_out),
            "num_held_out_pairs": len(held_out),
            "held_out_accuracy_by_length": LengthBaseline(trained).accuracy(held_out),
            "held_out_accuracy_by_last_line": LastLineBaseline(trained).accuracy(held_out),
        }
        run.directory.metric("reward_data", stage=self.name, **told)
        log.info("reward_model.begun", stage=self.name, **told)


def numbers_of(run: RunContext, examples: Sequence[Example]) -> dict[str, list[float]]:
    """Return the numbers of episodes by their ids, each computed once."""
    distinct = {example.name: example for example in examples}
    found = run.learner.reward_numbers([example.row() for example in distinct.values()])
    return dict(zip(distinct, found, strict=True))


def bins_of(found: Sequence[Any]) -> list[dict[str, float]]:
    """Return bins as they stand in the run's files."""
    return [{name: round(value, 6) for name, value in asdict(one).items()} for one in found]
