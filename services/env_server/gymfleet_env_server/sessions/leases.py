"""Leases: how long a session is kept."""

from gymfleet_env_server.sessions.episode import Episode


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
