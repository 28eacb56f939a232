"""The learner's interface to the training loop, whether it is in this process or spread over workers.

Every method blocks; all are called in the torch thread, except for the properties, and for `finish_checkpoint` where
`finishes_apart` says so.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.trajectory import ScoredTrajectory

from gymfleet_trainer.learning.options import (
    PreferenceUpdates,
    ReinforceOptions,
    RewardModelOptions,
    SupervisedOptions,
)
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.publish.probe import Parity
from gymfleet_trainer.run.groups import Group

Training: TypeAlias = SupervisedOptions | ReinforceOptions | PreferenceUpdates | RewardModelOptions
"""How a stage trains."""


class Learner(Protocol):
    """Model, optimiser and random state of one run, whose stages train it one after the other."""

    @property
    def vocab_size(self) -> int:
        """Return the size of the vocabulary; every token id is smaller."""

    def start_from(self, model: Path | None) -> None:
        """Replace the weights by those that an earlier stage left in a directory, or by the run's initial ones."""

    def begin(self, stage: str, training: Training, previous: Path | None = None) -> None:
        """Train as a stage specifies from now on, with a new optimiser or that of the loaded checkpoint.

        A reward model starts from the model in the directory `previous`, or without it from the policy.
        """

    def end(self) -> None:
        """Drop the stage's optimiser."""

    def release_memory(self) -> None:
        """Return unused memory of the GPU to the driver, for others to take."""

    def sequences(
        self, trajectories: Sequence[ScoredTrajectory], roles: Sequence[str] | None = None
    ) -> list[TrainSequence]:
        """Return demonstrations as training sequences, with a loss only on the tokens of these roles, or on all."""

    def sft_epoch(self, sequences: list[TrainSequence], epoch: int) -> dict[str, Any]:
        """Make one pass over the demonstrations, in an order that depends only on the seed, stage and `epoch`."""

    def update(self, groups: Sequence[Group], staleness: Callable[[int], int | None]) -> dict[str, Any]:
        """Train on whole groups. `staleness` returns the number of weight changes since a policy version."""

    def miss_update(self) -> None:
        """Count a step that was planned and has nothing to learn from: schedules go on without its updates."""

    def update_rows(self, rows: list[TrainSequence]) -> dict[str, Any]:
        """Train, with the stage's algorithm, on one batch of rows that the stage made itself."""

    def reward_epoch(self, rows: list[TrainSequence], epoch: int) -> dict[str, Any]:
        """Make one pass of a reward model over its rows, in an order that depends on the same as in `sft_epoch`."""

    def reward_numbers(self, rows: list[TrainSequence]) -> list[list[float]]:
        """Return the reward model's numbers for each row."""

    def save_reward_model(self, directory: Path) -> None:
        """Write the reward model, its tokenizer and a note of its template, as the reward service loads them.

        For a judge, write the files that a server of language models loads.
        """

    def sampled_logprobs(self, prompts: list[list[int]], samples: list[list[int]]) -> list[list[float]]:
        """Return the log-probabilities, at temperature 1, of each sample's tokens after its prompt."""

    def batch_parity(self, trajectories: Sequence[ScoredTrajectory], version: int) -> Parity | None:
        """Return the parity over tokens sampled from exactly `version`, the live one; once per version.

        Returns None if this version was checked before, if no token was sampled
        from it, or if the sampling truncates the distribution: the engine's
        log-probabilities are then of a different distribution than the policy's.
        """

    def save_weights(self, directory: Path) -> None:
        """Write config and safetensors in the form that the engine loads."""

    def save_model(self, directory: Path) -> None:
        """Write weights, config and tokenizer, as a model that transformers can load from `directory`."""

    def save_checkpoint(self, directory: Path) -> None:
        """Write everything that `load_checkpoint` needs to continue as if nothing had happened."""

    def begin_checkpoint(self, directory: Path) -> None:
        """Begin to write what `save_checkpoint` writes, in the background.

        The write reads the live weights and moments: every call that would change them waits for it.
        """

    def finish_checkpoint(self) -> float:
        """Wait for the write that `begin_checkpoint` began, and return its duration in seconds. Raises its error."""

    @property
    def finishes_apart(self) -> bool:
        """Return whether any thread may call `finish_checkpoint`, also while `update` runs.

        `update` then waits for the write itself, before it changes anything.
        """

    @property
    def waited_s(self) -> float:
        """Return the seconds that the last `update` waited for a write."""

    def load_checkpoint(self, directory: Path) -> None:
        """Load weights, optimiser and random state from a checkpoint."""


LearnerFactory = Callable[[Recipe, str, Path], Learner]
"""Takes the recipe, the weights to start from, and the directory of reference policies; see `LocalLearner`."""
