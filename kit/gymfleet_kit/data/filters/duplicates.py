"""Records that say the same, word for word."""

import hashlib
import json
from typing import Literal

from gymfleet_contracts.conversation import Conversation, Record

from gymfleet_kit.data.filter import Filter, FilterOptions, actions, dialogue, replies, task_of


class DuplicatesOptions(FilterOptions):
    """When two records are the same."""

    by: Literal["dialogue", "replies", "actions"] = "dialogue"
    """`dialogue` compares all that is said, `replies` only what is learned from, and `actions` what was done, in the
    same task: of two episodes with other thoughts the first is enough. A conversation's replies are its actions."""


class Duplicates(Filter[DuplicatesOptions]):
    """Keep the first of the records that say the same, word for word."""

    Options = DuplicatesOptions

    def __init__(self, options: DuplicatesOptions) -> None:
        super().__init__(options)
        self._seen: set[bytes] = set()

    def keep(self, record: Record) -> bool:
        """Return whether none before it says the same."""
        key = hashlib.sha256(json.dumps(self._compared(record)).encode()).digest()
        new = key not in self._seen
        self._seen.add(key)
        return new

    def _compared(self, record: Record) -> object:
        if self.options.by == "dialogue":
            return dialogue(record)
        if self.options.by == "replies":
            return replies(record)
        return task_of(record), replies(record) if isinstance(record, Conversation) else actions(record)
