"""How many sessions an env server holds: counted here and corrected by the server's own count.

The server's count is slightly old, and differs by the calls that are on their way: it does not
suffice to share slots among tenants exactly. So the count made here holds as long as
such calls can explain the difference, and the server's count decides the rest:
sessions of other gateways, expired sessions and sessions that it lost.
"""

import time
from collections import deque
from collections.abc import Mapping
from typing import Final

from gymfleet_contracts.session import EnvironmentSpec, ServerLoad

Key = tuple[str, str]
"""Environment and owner."""
# Twice the tenth of a second by which an env server's figures may be old, plus time for a busy event loop.
_MAX_AGE_S: Final = 0.3


class Occupancy:
    """Open sessions of one env server, by environment and owner."""

    def __init__(self) -> None:
        self._counts: dict[Key, int] = {}
        self._under_way: dict[Key, int] = {}
        self._changed: deque[tuple[float, Key, int]] = deque()
        self._doubt: dict[Key, int] = {}

    def slots(self, specs: Mapping[str, EnvironmentSpec]) -> int:
        """Return the number of slots that all open sessions take."""
        return sum(number * specs[env].slots if env in specs else number for (env, _), number in self._counts.items())

    def counts(self) -> dict[Key, int]:
        """Return the number of open sessions by environment and owner."""
        return dict(self._counts)

    def begins(self, env: str, owner: str) -> None:
        """Note that a call which opens or closes a session is being sent."""
        key = env, owner
        self._under_way[key] = self._under_way.get(key, 0) + 1
        self._doubt[key] = self._doubt.get(key, 0) + 1

    def ends(self, env: str, owner: str) -> None:
        """Note that such a call was answered and counted, or given up."""
        key = env, owner
        self._under_way[key] -= 1
        if not self._under_way[key]:
            del self._under_way[key]

    def add(self, env: str, owner: str, number: int) -> None:
        """Count `number` sessions as opened, or as closed if it is negative."""
        key = env, owner
        self._counts[key] = self._counts.get(key, 0) + number
        self._doubt[key] = self._doubt.get(key, 0) + abs(number)
        self._changed.append((time.monotonic(), key, abs(number)))

    def asks(self) -> None:
        """Note that the server is asked for its count now: it may miss recent changes and calls under way."""
        oldest = time.monotonic() - _MAX_AGE_S
        while self._changed and self._changed[0][0] < oldest:
            self._changed.popleft()
        self._doubt = dict(self._under_way)
        for _, key, number in self._changed:
            self._doubt[key] = self._doubt.get(key, 0) + number

    def hears(self, load: ServerLoad) -> None:
        """Correct the counts by the server's answer to the request that the last `asks` noted."""
        said = {(env, owner): number for env, owners in load.sessions.items() for owner, number in owners.items()}
        corrected = {}
        for key in said.keys() | self._counts.keys():
            number, doubt = said.get(key, 0), self._doubt.get(key, 0)
            corrected[key] = max(min(max(self._counts.get(key, 0), number - doubt), number + doubt), 0)
        self._counts = {key: number for key, number in corrected.items() if number}

    def clear(self) -> None:
        """Drop all counts: the server died, and its sessions with it."""
        self._counts.clear()
