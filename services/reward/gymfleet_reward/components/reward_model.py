"""The number that a reward model gives an episode."""

from collections.abc import Sequence
from typing import Literal

from gymfleet_contracts.trajectory import Trajectory

from gymfleet_reward.component import Answers, Component, ComponentOptions, Versioned
from gymfleet_reward.models.tables import ModelName


class RewardModelOptions(ComponentOptions):
    """The model, and what it is shown."""

    model: ModelName
    """The model's name in the service's `GYMFLEET_REWARD_MODELS`; with `gymfleet train` also that of a stage of the
    recipe that trains one."""
    too_long: Literal["fail", "cut_front"] = "fail"
    """The result for a transcript that is too long for the model: `fail`, no reward; `cut_front`, it reads the end."""


class RewardModel(Component[RewardModelOptions]):
    """The number that a reward model gives an episode, as its head outputs it.

    The model reads the observations and replies in its own chat template, whatever the policy's is.
    """

    Options = RewardModelOptions
    version = "1"

    def recorded_version(self) -> str:
        """Return the component's version, the model's name here, and the model's origin."""
        return f"{self.version} model={self.models(self.options.model).recorded(self.options.model)}"

    def score_batch(self, episodes: Sequence[Trajectory]) -> Answers:
        """See `Component`."""
        name = self.options.model
        said = self.models(name).of_episodes(name, episodes, cut_front=self.options.too_long == "cut_front")
        version = f"{self.version} model={said.model}"
        return [one if isinstance(one, BaseException) else Versioned(one, version) for one in said.numbers]
