"""What a reward model says of an episode."""

from collections.abc import Sequence
from typing import Literal

from gymfleet_contracts.trajectory import Trajectory

from gymfleet_reward.component import Answers, Component, ComponentOptions, Versioned
from gymfleet_reward.models.tables import ModelName


class RewardModelOptions(ComponentOptions):
    """Which model, and what it is shown."""

    model: ModelName
    """Its name in the service's `GYMFLEET_REWARD_MODELS`; with `gymfleet train` also that of a stage of the recipe that
    trains one."""
    too_long: Literal["fail", "cut_front"] = "fail"
    """A transcript of more tokens than the model takes: `fail`, no reward; `cut_front`, the model reads its end."""


class RewardModel(Component[RewardModelOptions]):
    """The number that a reward model gives an episode, as its head has it.

    The model reads the observations and replies in its own chat template, whatever the policy's is.
    """

    Options = RewardModelOptions
    version = "1"

    def recorded_version(self) -> str:
        """Return the component's version, and the model's name here and where it comes from."""
        return f"{self.version} model={self.models(self.options.model).recorded(self.options.model)}"

    def score_batch(self, episodes: Sequence[Trajectory]) -> Answers:
        """See `Component`."""
        name = self.options.model
        said = self.models(name).of_episodes(name, episodes, cut_front=self.options.too_long == "cut_front")
        version = f"{self.version} model={said.model}"
        return [one if isinstance(one, BaseException) else Versioned(one, version) for one in said.numbers]
