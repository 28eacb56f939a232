"""A process reward model: a number for each turn, learned from how episodes end that go on from it."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

from gymfleet_contracts.stages import StageFacts

from gymfleet_trainer.errors import NothingLeft
from gymfleet_trainer.learning.options import ProcessRewardOptions
from gymfleet_trainer.learning.reward_data import Example, Labels, TreeNode, turn_labels, values_of_nodes
from gymfleet_trainer.learning.reward_measures import accuracy, calibration, calibration_error, sides, sigmoid
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.stages._reward_model import Divided, RewardModelStage, bins_of, numbers_of

_TOGETHER: Final[dict[str, Callable[[Sequence[float]], float]]] = {
    "product": math.prod, "min": min, "last": lambda probabilities: probabilities[-1],
}  # fmt: skip
"""How the component `process_reward_model` makes one number of an episode's turns."""


class ProcessRewardStageOptions(ProcessRewardOptions):
    """How a reward model learns what each turn is worth."""

    data: str | tuple[str, ...]
    """The episodes: of a stage, of several, or of a .jsonl file."""
    labels: Labels = "outcome"
    """What is learned of a turn: `outcome`, whether its episode solved the task; where a strategy forked episodes,
    `soft`, the share of those that went on from it and solved the task, or `hard`, whether any did."""


class ProcessReward(RewardModelStage[ProcessRewardStageOptions]):
    """Train a process reward model: how likely the task is solved after each turn."""

    Options = ProcessRewardStageOptions
    facts: ClassVar[StageFacts] = StageFacts(reads=True, leaves=("process_reward_model",))
    small: ClassVar[Mapping[str, Any]] = {"epochs": 3}

    @property
    def learns_from(self) -> tuple[Literal["episodes"]]:
        """See `RewardModelStage`."""
        return ("episodes",)

    def rows(self, run: RunContext, divided: Divided) -> list[TrainSequence]:  # noqa: ARG002 - a judge's need it
        """Return the episodes that are trained on, with the labels of their turns."""
        if not divided.trained:
            raise NothingLeft(f"{self.table}: all tasks of {', '.join(self.data)} are held out: there are too few")
        learned = [*divided.trained, *divided.replayed]
        # Of what is replayed, the forks count that are not.
        nodes = _nodes([*divided.trained, *divided.earlier])
        # Every turn of a group that is played together has a node, which its episode may have for itself.
        if self.options.labels != "outcome" and not any(len(ended) > 1 for ended in nodes.values()):
            raise NothingLeft(
                f'{self.table}: labels = "{self.options.labels}" needs episodes that a strategy forked, and '
                f"{', '.join(self.data)} has no node that several episodes went through: give [rollout.strategy], "
                'or the strategy of the stage that collects them, use = "forks" with train_continuations = true'
            )
        return [example.row(labels=turn_labels(example.scored, self.options.labels, nodes)) for example in learned]

    def measured(self, run: RunContext, divided: Divided) -> dict[str, Any]:
        """Return how well the turns of held-out episodes are told, and pairs of such episodes by all of their turns."""
        numbers = numbers_of(run, divided.held_out)
        probabilities = {name: [sigmoid(number) for number in found] for name, found in numbers.items()}
        nodes = _nodes(divided.held_out)
        labels = [
            label for example in divided.held_out for label in turn_labels(example.scored, self.options.labels, nodes)
        ]
        said = [number for example in divided.held_out for number in probabilities[example.name]]
        bins = calibration(said, labels)
        right = [(one > 0.5) == (label > 0.5) for one, label in zip(said, labels, strict=True)]
        ranked = {
            f"accuracy_by_{name}": accuracy(
                *([together(probabilities[one.name]) for one in side] for side in sides(divided.held_out_pairs))
            )
            for name, together in _TOGETHER.items()
        }
        return {
            "accuracy": sum(right) / len(right),
            "calibration_error": calibration_error(bins),
            "calibration": bins_of(bins),
            **ranked,
        }


def _nodes(examples: Sequence[Example]) -> Mapping[TreeNode, Sequence[bool]]:
    # Each episode once: a file may be the data of all rounds.
    return values_of_nodes({example.name: example.scored for example in examples}.values())
