"""How trajectories are scored: the recipe's `[reward]` table, and `POST /v1/scores`."""

import re
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import ConfigDict, Field, StrictBool, model_validator

from gymfleet_contracts._model import WireModel
from gymfleet_contracts.numbers import NUMBER
from gymfleet_contracts.trajectory import ScoredTrajectory, Trajectory

Allocation = Literal["last_token", "uniform_positive", "discounted", "discounted_normalised"]

Discount = Annotated[float, Field(ge=0, le=1), NUMBER]

_LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ComponentTable(WireModel):
    """One term of the reward. Keys that are not named here are options of the component, which checks them."""

    model_config = ConfigDict(extra="allow")

    use: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """The component; by default the one named like the table."""
    enabled: StrictBool = True
    """Whether the component counts."""

    @property
    def options(self) -> dict[str, Any]:
        """The component's options, unchecked."""
        return {"enabled": self.enabled, **(self.model_extra or {})}


class RewardTerms(WireModel):
    """The components by their labels, and how the total is spread over tokens.

    Every key that is not named here is a label with its table.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra={"propertyNames": {"pattern": f"^{_LABEL.pattern}$"}})
    __pydantic_extra__: dict[str, ComponentTable] = Field(init=False)

    _goal: ClassVar[ComponentTable] = ComponentTable()
    """The table of `goal` if none is given."""

    allocation: Allocation = "last_token"
    """How the total is spread over tokens: last_token, uniform_positive, discounted, discounted_normalised."""

    @model_validator(mode="after")
    def labels_are_names(self) -> Self:
        """Require that a label is a short name."""
        for label in self.__pydantic_extra__:
            if _LABEL.fullmatch(label) is None:
                raise ValueError(f"{label[:80]!r} is no label: give up to 64 letters, digits, `_` and `-`")
        return self

    @property
    def components(self) -> dict[str, ComponentTable]:
        """Return the tables by label, `goal` first; `goal` has a table even if none is given."""
        return {"goal": self._goal} | self.__pydantic_extra__

    @property
    def used(self) -> dict[str, str]:
        """Return the references of the components that count, by label."""
        return {label: table.use or label for label, table in self.components.items() if table.enabled}

    def terms(self) -> dict[str, Any]:
        """Return the allocation and every component by its label, with no component left to a default."""
        return {"allocation": self.allocation, **self.components}


class _NamedTerms(RewardTerms):
    """Values of nodes: a component counts only if it is named, even `goal`, the environment's own score."""

    _goal: ClassVar[ComponentTable] = ComponentTable(enabled=False)

    @model_validator(mode="after")
    def something_values(self) -> Self:
        """Require that at least one component counts."""
        if not self.used:
            raise ValueError(
                "no component values the nodes: name one, such as `judge` or `process_reward_model`; `goal = {}` has "
                "them valued by the environment's own score"
            )
        return self


class RewardSection(RewardTerms):
    """How episodes are scored. Every other key is a table: one component, under a label."""

    gamma: Discount | None = None
    """Discount per token, for the discounted allocations; by default the algorithm's own: `critic.gamma` for ppo, 1 for
    grpo and rloo."""

    @model_validator(mode="before")
    @classmethod
    def other_keys_are_tables(cls, given: Any) -> Any:
        """Refuse a key that is neither known nor a table, so that a misspelt key does not pass for a component."""
        for key, value in given.items() if isinstance(given, dict) else ():
            if key not in cls.model_fields and not isinstance(value, dict | ComponentTable):
                raise ValueError(f"{key}: unknown; known: {', '.join(cls.model_fields)}, and tables of components")
        return given


class EvaluatorSection(_NamedTerms, RewardSection):
    """How nodes are valued: a reward that includes `goal` only if it is named."""


class RewardSpec(RewardTerms):
    """The terms and their discount, in the form for the wire."""

    gamma: Discount = 1.0
    """Discount per token, for the discounted allocations."""


class EvaluatorSpec(_NamedTerms, RewardSpec):
    """How nodes are valued, in the form for the wire; `goal` counts only if it is named."""

    def reward(self) -> RewardSpec:
        """Return the reward by which an episode up to a node is scored."""
        return RewardSpec.model_validate({**self.terms(), "gamma": self.gamma})


class ScoreRequest(WireModel):
    """A message of the raw stream, and the body of `POST /v1/scores`."""

    trajectory: Trajectory
    reward: RewardSpec = RewardSpec()
    num_samples: Annotated[int, Field(ge=1, le=1024), NUMBER] | None = None
    """Number of episodes in the trajectory's group, for components that compare them."""


class ScoreBatch(WireModel):
    """Several requests at once. Components that compare the episodes of a group need all of it in one batch."""

    items: Annotated[tuple[ScoreRequest, ...], Field(min_length=1, max_length=1024)]


class ScoredBatch(WireModel):
    """The scored trajectories, in the order of the request."""

    items: tuple[ScoredTrajectory, ...]
