"""The reward of a record."""

from typing import Literal, Self

from gymfleet_contracts.conversation import Conversation, Record
from gymfleet_contracts.trajectory import Finite
from pydantic import ConfigDict, model_validator

from gymfleet_kit.data.filter import Filter, FilterOptions, Refused, named
from gymfleet_kit.plugins import ASCENDING


class RewardOptions(FilterOptions):
    """The bounds; without a number there is none."""

    model_config = ConfigDict(json_schema_extra={ASCENDING: ["min_reward", "max_reward"]})

    min_reward: Finite | None = None
    """The least reward."""
    max_reward: Finite | None = None
    """The largest reward."""
    unknown: Literal["drop", "keep", "refuse"] = "drop"
    """What to do with a record without a reward; `refuse` ends the run at the first one."""

    @model_validator(mode="after")
    def something_can_be_kept(self) -> Self:
        """Require `min_reward` not to exceed `max_reward`."""
        if self.min_reward is not None and self.max_reward is not None and self.min_reward > self.max_reward:
            raise ValueError(f"min_reward ({self.min_reward}) exceeds max_reward ({self.max_reward})")
        return self


class Reward(Filter[RewardOptions]):
    """Keep records with a reward within bounds."""

    Options = RewardOptions

    def keep(self, record: Record) -> bool:
        """Return whether both bounds hold."""
        options, worth = self.options, _reward(record)
        if worth is None:
            if options.unknown == "refuse":
                raise Refused(f"{named(record)} has no reward; give unknown = 'drop' or 'keep'")
            return options.unknown == "keep"
        enough = options.min_reward is None or worth >= options.min_reward
        return enough and (options.max_reward is None or worth <= options.max_reward)


def _reward(record: Record) -> float | None:
    if isinstance(record, Conversation):
        return record.reward
    return None if record.reward is None else record.reward.total
