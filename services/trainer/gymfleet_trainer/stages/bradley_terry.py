"""A Bradley-Terry reward model: a number for an episode, learned from pairs of episodes of one task."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from gymfleet_contracts.stages import StageFacts

from gymfleet_trainer.errors import NothingLeft
from gymfleet_trainer.learning.options import BradleyTerryOptions
from gymfleet_trainer.learning.reward_measures import accuracy, calibration, calibration_error, sides, sureness
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.stages._reward_model import Divided, RewardModelStage, bins_of, numbers_of


class BradleyTerryStageOptions(BradleyTerryOptions):
    """Options for a reward model that learns which of two episodes is better."""

    data: str | tuple[str, ...]
    """The episodes: of a stage, of several, or of a .jsonl file."""


class BradleyTerry(RewardModelStage[BradleyTerryStageOptions]):
    """Train a reward model on pairs of episodes of the same task, one of which has the higher reward."""

    Options = BradleyTerryStageOptions
    facts: ClassVar[StageFacts] = StageFacts(reads=True, leaves=("reward_model",))
    small: ClassVar[Mapping[str, Any]] = {"epochs": 3}

    @property
    def learns_from(self) -> tuple[Literal["pairs"]]:
        """See `RewardModelStage`."""
        return ("pairs",)

    def rows(self, run: RunContext, divided: Divided) -> list[TrainSequence]:  # noqa: ARG002 - a judge's need it
        """Return the pairs that are trained on."""
        if not divided.trained_pairs:
            raise NothingLeft(
                f"{self.table}: no two episodes of a task make a pair: rewards that differ by {self.options.min_gap:g} "
                f"({', '.join(self.data)} has {len(divided.trained)} episodes outside of the held-out tasks)"
            )
        return [row for pair in (*divided.trained_pairs, *divided.replayed_pairs) for row in pair.rows()]

    def measured(self, run: RunContext, divided: Divided) -> dict[str, Any]:
        """Return the accuracy on held-out pairs, and how well the model knows when it is right."""
        better, worse = sides(divided.held_out_pairs)
        numbers = numbers_of(run, [*better, *worse])
        chosen, rejected = ([numbers[example.name][0] for example in side] for side in (better, worse))
        bins = calibration(*sureness(chosen, rejected))
        return {
            "accuracy": accuracy(chosen, rejected),
            "calibration_error": calibration_error(bins),
            "calibration": bins_of(bins),
            "mean": sum(number for (number,) in numbers.values()) / max(len(numbers), 1),
        }
