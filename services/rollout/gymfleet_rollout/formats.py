"""The reply formats that requests may name, each resolved once."""

import json
from collections.abc import Collection
from functools import lru_cache
from typing import Final

from gymfleet_contracts.reply_format import FormatSection
from gymfleet_kit.formats import CheckedFormat, format_of
from gymfleet_kit.plugins import PluginError

from gymfleet_rollout.errors import UnknownFormat

_MAX_KNOWN: Final = 64
"""Requests choose the options: without a bound, each choice would be kept for ever."""


class Formats:
    """The formats that requests may name: those that are installed here, and the operator's `more`."""

    def __init__(self, more: Collection[str] = ()) -> None:
        self._more = more
        self._known = lru_cache(_MAX_KNOWN)(self._resolved)

    def get(self, section: FormatSection) -> CheckedFormat:
        """Return the format. Raises UnknownFormat."""
        # Looked up by its text, since options may be lists. Its module is imported once, even if its file changes.
        return self._known(json.dumps(section.model_dump(mode="json"), sort_keys=True))

    def version(self, section: FormatSection) -> int:
        """Return the format's version; 0 for one that cannot be used."""
        try:
            return self.get(section).version
        except UnknownFormat:
            return 0

    def _resolved(self, key: str) -> CheckedFormat:
        section = FormatSection.model_validate_json(key)
        try:
            return format_of(section, offered=self._more)
        except PluginError as error:
            raise UnknownFormat(str(error)) from None
