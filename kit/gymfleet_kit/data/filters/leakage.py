"""Records of tasks that are used for testing."""

from pathlib import Path
from typing import Annotated, Final, Literal

from gymfleet_contracts.conversation import Conversation, Record
from gymfleet_contracts.session import Split
from pydantic import Field

from gymfleet_kit.data.filter import Filter, FilterOptions, Refused, named
from gymfleet_kit.data.held_out import HeldOutTasks

_NAMED: Final = 5


class LeakageOptions(FilterOptions):
    """The tasks used for testing."""

    against: str | tuple[str, ...] = ()
    """Files of test tasks, in any form: episodes, conversations, or rows with only an id."""
    env: Annotated[str, Field(max_length=64)] = ""
    """The environment of the tasks, if their rows do not name it; ids count only for that environment."""
    by: tuple[Literal["task_id", "opening"], ...] = ("task_id", "opening")
    """What makes two tasks the same: their ids, or the message that the first reply answers, ignoring upper case and
    blanks. An opening shared by several test tasks identifies none of them."""
    splits: tuple[Split, ...] = ("test",)
    """Splits of environments that are used for testing: a record marked as one of them has leaked."""
    unknown: Literal["keep", "drop"] = "keep"
    """What to do with a conversation that has neither a task nor an id, if only ids are compared."""
    action: Literal["drop", "refuse"] = "drop"
    """`drop` leaves out leaked records; `refuse` ends the run with a line that names them."""


class Leakage(Filter[LeakageOptions]):
    """Leave out records of tasks that are used for testing, or refuse the data because of them."""

    Options = LeakageOptions

    def __init__(self, options: LeakageOptions) -> None:
        super().__init__(options)
        paths = [options.against] if isinstance(options.against, str) else options.against
        self._tests = HeldOutTasks(map(Path, paths), options.env)
        self._leaks: list[str] = []
        self._num_leaks = 0

    def note(self, record: Record) -> None:
        """Collect the names of records to refuse, for one message with all of them."""
        if self.options.action == "refuse" and self._has_leaked(record):
            self._num_leaks += 1
            if len(self._leaks) < _NAMED:
                self._leaks.append(named(record))

    def keep(self, record: Record) -> bool:
        """Return whether the record belongs to no test task."""
        if self._num_leaks:
            more = f" and {self._num_leaks - len(self._leaks)} more" if self._num_leaks > len(self._leaks) else ""
            raise Refused(f"test tasks are in the training data: {', '.join(self._leaks)}{more}")
        names_no_task = isinstance(record, Conversation) and record.task is None and not record.id
        if names_no_task and "opening" not in self.options.by and self.options.unknown == "drop":
            return False
        return not self._has_leaked(record)

    def _has_leaked(self, record: Record) -> bool:
        task = record.task if isinstance(record, Conversation) else record.trajectory.task
        if task is not None:
            if task.split in self.options.splits:
                return True
            if "task_id" in self.options.by and self._tests.has_id(task.env, task.task_id):
                return True
        elif isinstance(record, Conversation) and "task_id" in self.options.by and self._tests.has_id("", record.id):
            return True
        return "opening" in self.options.by and self._tests.has_opening(record)
