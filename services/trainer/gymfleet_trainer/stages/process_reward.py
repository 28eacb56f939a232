"""A process reward model: a number for each turn, learned from the outcomes of episodes that continue from it."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from gymfleet_contracts.stages import StageFacts
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.plugins import ASCENDING
from pydantic import ConfigDict, Field, model_validator

from gymfleet_trainer.errors import NothingLeft, RunDirectoryError
from gymfleet_trainer.learning.options import ProcessRewardOptions
from gymfleet_trainer.learning.reward_data import (
    Example,
    Labels,
    TreeNode,
    turn_labels,
    value_labels,
    values_of_nodes,
)
from gymfleet_trainer.learning.reward_measures import accuracy, calibration, calibration_error, sides, sigmoid
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.stages._reward_model import Divided, RewardModelStage, bins_of, numbers_of

_TOGETHER: Final[dict[str, Callable[[Sequence[float]], float]]] = {
    "product": math.prod, "min": min, "last": lambda probabilities: probabilities[-1],
}  # fmt: skip
"""How the component `process_reward_model` combines the numbers of an episode's turns into one."""


class ProcessRewardStageOptions(ProcessRewardOptions):
    """Options for a reward model that learns the worth of each turn."""

    model_config = ConfigDict(json_schema_extra={ASCENDING: ["lowest_value", "highest_value"]})

    data: str | tuple[str, ...]
    """The episodes: of a stage, of several, or of a .jsonl file."""
    labels: Labels = "outcome"
    """The label of a turn: `outcome`, whether its episode solved the task; where a strategy forked episodes, `soft`,
    the share of the episodes continuing from it that solved the task, or `hard`, whether any did; `values`, a search's
    value of the node that it leads to. Nothing is learned of turns whose node has no value."""
    lowest_value: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    """The value that maps to 0, with labels = "values"."""
    highest_value: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    """The value that maps to 1."""

    @model_validator(mode="after")
    def values_ascend(self) -> Self:
        """Require `highest_value` to be above `lowest_value`."""
        if self.lowest_value >= self.highest_value:
            raise ValueError(f"highest_value = {self.highest_value:g} must be above lowest_value")
        return self


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
        # For replayed episodes, the forks that are not replayed count too.
        nodes = _nodes([*divided.trained, *divided.earlier], divided.unread)
        # Every turn of a group that is played together has a node, which may belong to its episode alone.
        shares = self.options.labels in ("soft", "hard")
        if shares and not any(len(ended) > 1 for ended in nodes.values()):
            raise NothingLeft(
                f'{self.table}: labels = "{self.options.labels}" needs episodes that a strategy forked, and '
                f"{', '.join(self.data)} has no node that several episodes went through: give [rollout.strategy], "
                'or the strategy of the stage that collects them, use = "forks" with train_continuations = true'
            )
        rows = [example.row(labels=self._labels(example, nodes)) for example in learned]
        if not any(row.num_trained for row in rows):
            raise NothingLeft(
                f'{self.table}: labels = "{self.options.labels}" needs nodes that a search valued, and no turn of '
                f"{', '.join(self.data)} leads to one: collect with a strategy that values nodes, such as mcts"
            )
        return [row for row in rows if row.num_trained]

    def _labels(self, example: Example, nodes: Mapping[TreeNode, Sequence[bool]]) -> Sequence[float | None]:
        """Return the label of each turn. Raises `RunDirectoryError` for values outside the range."""
        if self.options.labels != "values":
            return turn_labels(example.scored, self.options.labels, nodes)
        try:
            return value_labels(example.scored, self.options.lowest_value, self.options.highest_value)
        except ValueError as error:
            raise RunDirectoryError(
                f"{self.table}: {error}, outside of [{self.options.lowest_value:g}, {self.options.highest_value:g}]: "
                "give as lowest_value and highest_value what [rollout.evaluator], or the strategy, goes to"
            ) from None

    def measured(self, run: RunContext, divided: Divided) -> dict[str, Any]:
        """Return how well held-out turns are predicted, and how well all turns rank pairs of held-out episodes."""
        numbers = numbers_of(run, divided.held_out)
        probabilities = {name: [sigmoid(number) for number in found] for name, found in numbers.items()}
        nodes = _nodes(divided.held_out, divided.unread)
        given = [label for example in divided.held_out for label in self._labels(example, nodes)]
        told = [number for example in divided.held_out for number in probabilities[example.name]]
        known = [(number, label) for number, label in zip(told, given, strict=True) if label is not None]
        said, labels = [number for number, _ in known], [label for _, label in known]
        bins = calibration(said, labels)
        right = [(one > 0.5) == (label > 0.5) for one, label in zip(said, labels, strict=True)]
        ranked = {
            f"accuracy_by_{name}": accuracy(
                *([together(probabilities[one.name]) for one in side] for side in sides(divided.held_out_pairs))
            )
            for name, together in _TOGETHER.items()
        }
        return {
            "accuracy": sum(right) / len(right) if right else math.nan,
            "calibration_error": calibration_error(bins),
            "calibration": bins_of(bins),
            **ranked,
        }


def _nodes(examples: Sequence[Example], unread: Sequence[ScoredTrajectory]) -> Mapping[TreeNode, Sequence[bool]]:
    # Unread episodes count too: without the longest ones, which often fail, turns would seem better than they are.
    episodes = [*(example.scored for example in examples), *unread]
    # Each episode once: a file may be the data of all rounds.
    return values_of_nodes({scored.trajectory.trajectory_id: scored for scored in episodes}.values())
