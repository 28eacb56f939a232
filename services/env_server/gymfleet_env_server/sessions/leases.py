"""Leases: how long each session is kept, and which runs out next."""

import heapq
from typing import Final

from gymfleet_env_server.sessions.episode import Episode

_SLACK: Final = 1024
"""Number of stale entries that the heap of expiries may hold in addition to one for each session."""


class Lease:
    """A session's episode and the time until which it is kept; never past `ends_at`, however busy it is."""

    __slots__ = ("duration_s", "ends_at", "episode", "expires")

    def __init__(self, episode: Episode, duration_s: float, now: float, ends_at: float) -> None:
        self.episode = episode
        self.duration_s = duration_s
        self.ends_at = ends_at
        self.touch(now)

    def touch(self, now: float) -> None:
        """Restart the lease."""
        self.expires = min(now + self.duration_s, self.ends_at)


class Leases(dict[str, Lease]):
    """The leases by session. Renewals cost nothing: the heap learns of them when the old lease would have run out."""

    def __init__(self) -> None:
        super().__init__()
        self._expiries: list[tuple[float, str]] = []

    def keep(self, lease: Lease) -> None:
        """Add a session."""
        self[lease.episode.session_id] = lease
        self.expect(lease)

    def expect(self, lease: Lease) -> None:
        """Note the end of a lease, if it may come before the last one that was noted for its session."""
        self.look_again(lease.episode.session_id, lease.expires)

    def look_again(self, session_id: str, at: float) -> None:
        """Let `next_due` return the session at that time if its lease has run out by then."""
        heapq.heappush(self._expiries, (at, session_id))
        # Drop the entries of closed sessions: with a long lease they would pile up for its whole duration.
        if len(self._expiries) > 2 * len(self) + _SLACK:
            self._expiries = [(lease.expires, session_id) for session_id, lease in self.items()]
            heapq.heapify(self._expiries)

    def next_due(self, now: float) -> tuple[str, float | None]:
        """Return a session whose lease has run out, and forget when that was.

        If there is none, the session is empty, and the second value is the number of seconds until the next lease may
        run out; None without sessions.
        """
        while self._expiries:
            due, session_id = self._expiries[0]
            if due > now:
                return "", due - now
            heapq.heappop(self._expiries)
            if (lease := self.get(session_id)) is None:
                continue
            if lease.expires <= now:
                return session_id, None
            heapq.heappush(self._expiries, (lease.expires, session_id))  # renewed since
        return "", None
