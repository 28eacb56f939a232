"""Records that say the same, word for word."""

import hashlib
import json
from typing import Literal

from gymfleet_contracts.conversation import Record

from gymfleet_kit.data.filter import Filter, FilterOptions, dialogue, replies


class DuplicatesOptions(FilterOptions):
    """When two records are the same."""

    by: Literal["dialogue", "replies"] = "dialogue"
    """`dialogue` compares all that is said, `replies` only what is learned from."""


class Duplicates(Filter[DuplicatesOptions]):
    """Keep the first of the records that say the same, word for word."""

    Options = DuplicatesOptions

    def __init__(self, options: DuplicatesOptions) -> None:
        super().__init__(options)
        self._seen: set[bytes] = set()

    def keep(self, record: Record) -> bool:
        """Return whether none before it says the same."""
        said = dialogue(record) if self.options.by == "dialogue" else replies(record)
        key = hashlib.sha256(json.dumps(said).encode()).digest()
        new = key not in self._seen
        self._seen.add(key)
        return new
