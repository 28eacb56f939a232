"""Records that are the same, word for word."""

import hashlib
import json
from typing import Literal

from gymfleet_contracts.conversation import Conversation, Record

from gymfleet_kit.data.filter import Filter, FilterOptions, actions, dialogue, replies, task_of


class DuplicatesOptions(FilterOptions):
    """When two records count as the same."""

    by: Literal["dialogue", "replies", "actions"] = "dialogue"
    """`dialogue` compares the whole dialogue, `replies` only the learned texts, and `actions` the actions in the same
    task: of two episodes that differ only in their thoughts, the first is enough. A conversation's replies count as its
    actions."""


class Duplicates(Filter[DuplicatesOptions]):
    """Keep the first of records that are the same, word for word."""

    Options = DuplicatesOptions

    def __init__(self, options: DuplicatesOptions) -> None:
        super().__init__(options)
        self._seen: set[bytes] = set()

    def keep(self, record: Record) -> bool:
        """Return whether no earlier record is the same."""
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
