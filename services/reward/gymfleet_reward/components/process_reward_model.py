"""The number that a process reward model gives each turn."""

import math
from collections.abc import Callable, Sequence
from typing import Final, Literal, Self

from gymfleet_contracts.trajectory import Trajectory
from pydantic import ConfigDict, model_validator

from gymfleet_reward.component import Answer, Answers, Component, ComponentOptions, Versioned
from gymfleet_reward.models.tables import ModelName

_TOGETHER: Final[dict[str, Callable[[Sequence[float]], Answer]]] = {
    "per_turn": list,
    "last": lambda values: values[-1],
    "min": min,
    "mean": lambda values: math.fsum(values) / len(values),
    "product": math.prod,
    "sum": math.fsum,
}


_NO_PRODUCT: Final = 'together = "product" multiplies probabilities: give activation = "sigmoid"'


class ProcessRewardModelOptions(ComponentOptions):
    """The model, and the use of its numbers."""

    model_config = ConfigDict(
        json_schema_extra={
            "not": {
                "properties": {"together": {"const": "product"}, "activation": {"const": "none"}},
                "required": ["together"],
            },
            "$comment": _NO_PRODUCT,
        }
    )

    model: ModelName
    """The model's name in the service's `GYMFLEET_REWARD_MODELS`; with `gymfleet train` also that of a stage of the
    recipe that trains one."""
    activation: Literal["none", "sigmoid"] = "none"
    """`sigmoid` turns the head's outputs into probabilities, with which `product` and `min` are used."""
    together: Literal["per_turn", "last", "min", "mean", "product", "sum"] = "per_turn"
    """`per_turn`: each number is on the last token of its turn; otherwise the episode has one number, made of all."""

    @model_validator(mode="after")
    def a_product_is_of_probabilities(self) -> Self:
        """Reject a product of logits: its sign depends on the number of turns."""
        if self.together == "product" and self.activation == "none":
            raise ValueError(_NO_PRODUCT)
        return self


class ProcessRewardModel(Component[ProcessRewardModelOptions]):
    """The numbers that a process reward model gives the turns of an episode, each at the token that ends the turn.

    A transcript with more tokens than the model takes has no reward: its first turns could have no numbers.
    """

    Options = ProcessRewardModelOptions
    version = "1"

    def recorded_version(self) -> str:
        """Return the component's version, the model's name here, and the model's origin."""
        return f"{self.version} model={self.models(self.options.model).recorded(self.options.model)}"

    def score_batch(self, episodes: Sequence[Trajectory]) -> Answers:
        """See `Component`."""
        said = self.models(self.options.model).of_turns(self.options.model, episodes)
        version = f"{self.version} model={said.model}"
        return [
            one if isinstance(one, BaseException) else Versioned(self._together(one), version) for one in said.numbers
        ]

    def _together(self, values: Sequence[float]) -> Answer:
        if self.options.activation == "sigmoid":
            values = [_sigmoid(value) for value in values]
        return _TOGETHER[self.options.together](values)


def _sigmoid(value: float) -> float:
    return 0.5 * (1.0 + math.tanh(0.5 * value))  # which does not overflow
