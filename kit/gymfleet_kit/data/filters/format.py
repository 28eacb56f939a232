"""Whether the replies follow a reply format."""

from typing import Annotated

from gymfleet_contracts.conversation import Record
from gymfleet_contracts.reply_format import FormatSection
from pydantic import Field, JsonValue

from gymfleet_kit.data.filter import Filter, FilterOptions, replies
from gymfleet_kit.formats import format_of


class FormatFilterOptions(FilterOptions):
    """The format, and how closely replies must follow it."""

    format: str | dict[str, JsonValue] = "react"
    """The reply format: its name, or a table with `use` and its options, as in `[rollout.format]`."""
    min_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The least share of the learned replies that must follow it."""
    strict: bool = True
    """Require a reply to follow the format to the letter; with `false`, it need only contain an action."""


class FormatFilter(Filter[FormatFilterOptions]):
    """Keep records with replies, of which a minimum share follows a reply format."""

    Options = FormatFilterOptions

    def __init__(self, options: FormatFilterOptions) -> None:
        super().__init__(options)
        given = {"use": options.format} if isinstance(options.format, str) else options.format
        self._format = format_of(FormatSection.model_validate(given))

    def keep(self, record: Record) -> bool:
        """Return whether enough of the replies follow the format."""
        given = replies(record)
        return bool(given) and sum(map(self._follows, given)) >= self.options.min_share * len(given)

    def _follows(self, reply: str) -> bool:
        parsed = self._format.parse(reply)
        return parsed.well_formed if self.options.strict else parsed.action is not None
