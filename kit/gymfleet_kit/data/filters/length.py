"""How many replies a record has, and how long they are."""

from typing import Self

from gymfleet_contracts.conversation import Record
from pydantic import ConfigDict, NonNegativeInt, model_validator

from gymfleet_kit.data.filter import Filter, FilterOptions, replies
from gymfleet_kit.plugins import ASCENDING


class LengthOptions(FilterOptions):
    """Without a number there is no limit."""

    model_config = ConfigDict(json_schema_extra={ASCENDING: ["min_replies", "max_replies"]})

    min_replies: NonNegativeInt = 1
    """Replies that are learned from, at least."""
    max_replies: NonNegativeInt | None = None
    """Replies that are learned from, at most."""
    max_chars: NonNegativeInt | None = None
    """Characters of the longest of them, at most."""

    @model_validator(mode="after")
    def something_can_be_kept(self) -> Self:
        """No more replies are asked for than are allowed."""
        if self.max_replies is not None and self.min_replies > self.max_replies:
            raise ValueError(f"min_replies ({self.min_replies}) exceeds max_replies ({self.max_replies})")
        return self


class Length(Filter[LengthOptions]):
    """Keep what has as many replies as wanted, none of them too long."""

    Options = LengthOptions

    def keep(self, record: Record) -> bool:
        """Return whether all limits hold."""
        given, options = replies(record), self.options
        if len(given) < options.min_replies or (options.max_replies is not None and len(given) > options.max_replies):
            return False
        return options.max_chars is None or max(map(len, given), default=0) <= options.max_chars
