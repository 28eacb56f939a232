"""Whether the replies follow a reply format."""

from typing import Annotated

from gymfleet_contracts.conversation import Record
from gymfleet_contracts.reply_format import FormatSection
from pydantic import Field, JsonValue

from gymfleet_kit.data.filter import Filter, FilterOptions, replies
from gymfleet_kit.formats import format_of


class FormatFilterOptions(FilterOptions):
    """Which format, and how closely it is followed."""

    format: str | dict[str, JsonValue] = "react"
    """The reply format: its name, or a table with `use` and its options, as in `[rollout.format]`."""
    min_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The share of the replies that are learned from which follow it, at least."""
    strict: bool = True
    """A reply follows the format to the letter; with `false` it is enough that an action is found in it."""


class FormatFilter(Filter[FormatFilterOptions]):
    """Keep what has replies, of which a share follows a reply format."""

    Options = FormatFilterOptions

    def __init__(self, options: FormatFilterOptions) -> None:
        super().__init__(options)
        given = {"use": options.format} if isinstance(options.format, str) else options.format
        self._format = format_of(FormatSection.model_validate(given))

    def keep(self, record: Record) -> bool:
        """Return whether enough of them do."""
        given = replies(record)
        return bool(given) and sum(map(self._follows, given)) >= self.options.min_share * len(given)

    def _follows(self, reply: str) -> bool:
        parsed = self._format.parse(reply)
        return parsed.well_formed if self.options.strict else parsed.action is not None
