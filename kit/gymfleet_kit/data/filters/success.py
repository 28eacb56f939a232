"""Whether a record solved its task."""

from typing import Literal

from gymfleet_contracts.conversation import Conversation, Record

from gymfleet_kit.data.filter import Filter, FilterOptions, Refused, named


class SuccessOptions(FilterOptions):
    """The wanted outcome."""

    success: bool = True
    """Keep records that solved their task; with `false`, those that did not."""
    unknown: Literal["drop", "keep", "refuse"] = "drop"
    """What to do with a conversation that does not give its outcome, and with an episode that failed for technical
    reasons; `refuse` ends the run at the first one."""


class Success(Filter[SuccessOptions]):
    """Keep records that solved their task, or those that did not."""

    Options = SuccessOptions

    def keep(self, record: Record) -> bool:
        """Return whether the record ended as wanted."""
        success = outcome(record)
        if success is not None:
            return success is self.options.success
        if self.options.unknown == "refuse":
            raise Refused(f"{named(record)} does not say whether the task was solved; give unknown = 'drop' or 'keep'")
        return self.options.unknown == "keep"


def outcome(record: Record) -> bool | None:
    """Return whether the task was solved; None if it is unknown."""
    if isinstance(record, Conversation):
        return record.success
    return record.trajectory.success if record.trajectory.status.trainable else None
