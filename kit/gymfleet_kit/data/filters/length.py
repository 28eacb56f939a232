"""How many replies a record has, and how long they are."""

from typing import Self

from gymfleet_contracts.conversation import Record
from pydantic import ConfigDict, NonNegativeInt, model_validator

from gymfleet_kit.data.filter import Filter, FilterOptions, replies
from gymfleet_kit.plugins import ASCENDING


class LengthOptions(FilterOptions):
    """The limits; without a number there is none."""

    model_config = ConfigDict(json_schema_extra={ASCENDING: ["min_replies", "max_replies"]})

    min_replies: NonNegativeInt = 1
    """The least number of replies that are learned from."""
    max_replies: NonNegativeInt | None = None
    """The largest number of replies that are learned from."""
    max_chars: NonNegativeInt | None = None
    """The most characters of the longest such reply."""

    @model_validator(mode="after")
    def something_can_be_kept(self) -> Self:
        """Require `min_replies` not to exceed `max_replies`."""
        if self.max_replies is not None and self.min_replies > self.max_replies:
            raise ValueError(f"min_replies ({self.min_replies}) exceeds max_replies ({self.max_replies})")
        return self


class Length(Filter[LengthOptions]):
    """Keep records with a number of replies within bounds, none of them too long."""

    Options = LengthOptions

    def keep(self, record: Record) -> bool:
        """Return whether all limits hold."""
        given, options = replies(record), self.options
        if len(given) < options.min_replies or (options.max_replies is not None and len(given) > options.max_replies):
            return False
        return options.max_chars is None or max(map(len, given), default=0) <= options.max_chars
