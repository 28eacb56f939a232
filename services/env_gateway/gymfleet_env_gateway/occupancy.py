"""How many sessions an env server holds: counted here, corrected by what the server says.

The server's count is a little old, and off by the calls that are on their way: the slots
of tenants could not be shared exactly by it. So what is counted here stands as long as
such calls can explain the difference, and what the server says decides the rest:
sessions of other gateways, those that expired, those that it lost.
"""

import time
from collections import deque
from typing import Final

from gymfleet_contracts.session import ServerLoad

Key = tuple[str, str]
"""Environment and owner."""
# Twice the tenth of a second that an env server's figures may be old, and time for a busy event loop.
_MAX_AGE_S: Final = 0.3


class Occupancy:
    """Open sessions of one env server, by environment and owner."""

    def __init__(self) -> None:
        self._counts: dict[Key, int] = {}
        self._under_way: dict[Key, int] = {}
        self._changed: deque[tuple[float, Key, int]] = deque()
        self._doubt: dict[Key, int] = {}

    @property
    def total(self) -> int:
        """All open sessions."""
        return sum(self._counts.values())

    def counts(self) -> dict[Key, int]:
        """Open sessions by environment and owner."""
        return dict(self._counts)

    def begins(self, env: str, owner: str) -> None:
        """A call that opens or closes a session leaves."""
        key = env, owner
        self._under_way[key] = self._under_way.get(key, 0) + 1
        self._doubt[key] = self._doubt.get(key, 0) + 1

    def ends(self, env: str, owner: str) -> None:
        """It is answered, or given up, and counted."""
        key = env, owner
        self._under_way[key] -= 1
        if not self._under_way[key]:
            del self._under_way[key]

    def add(self, env: str, owner: str, number: int) -> None:
        """So many sessions were opened; closed, when it is negative."""
        key = env, owner
        self._counts[key] = self._counts.get(key, 0) + number
        self._doubt[key] = self._doubt.get(key, 0) + abs(number)
        self._changed.append((time.monotonic(), key, abs(number)))

    def asks(self) -> None:
        """The server is asked for its count now: it may miss what changed lately, and what is under way."""
        oldest = time.monotonic() - _MAX_AGE_S
        while self._changed and self._changed[0][0] < oldest:
            self._changed.popleft()
        self._doubt = dict(self._under_way)
        for _, key, number in self._changed:
            self._doubt[key] = self._doubt.get(key, 0) + number

    def hears(self, load: ServerLoad) -> None:
        """The answer to the last `asks`."""
        said = {(env, owner): number for env, owners in load.sessions.items() for owner, number in owners.items()}
        corrected = {}
        for key in said.keys() | self._counts.keys():
            number, doubt = said.get(key, 0), self._doubt.get(key, 0)
            corrected[key] = max(min(max(self._counts.get(key, 0), number - doubt), number + doubt), 0)
        self._counts = {key: number for key, number in corrected.items() if number}

    def clear(self) -> None:
        """The server died, and everything that it held."""
        self._counts.clear()
