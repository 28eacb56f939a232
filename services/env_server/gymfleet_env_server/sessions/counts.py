"""A shard's counts of its sessions between two reports to the front."""

from collections.abc import Mapping

from gymfleet_env_server.catalogue import Entry
from gymfleet_env_server.metrics import new_tally
from gymfleet_env_server.sessions.episode import Episode
from gymfleet_env_server.shards.channel import Tally


class Counts:
    """Tallies by environment, and the slots that the open sessions take."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = entries
        self._tallies = {name: new_tally() for name in entries}
        self._open: dict[str, dict[str, int]] = {name: {} for name in entries}
        self._changed: set[str] = set()
        self.slots = 0

    @property
    def has_news(self) -> bool:
        """Whether `take` would return anything."""
        return bool(self._changed)

    def of(self, env: str) -> Tally:
        """Return the environment's tally, to be changed."""
        self._changed.add(env)
        return self._tallies[env]

    def opened(self, episode: Episode) -> None:
        """Count a session that is open from now on."""
        env, owners = episode.name, self._open[episode.name]
        owners[episode.owner] = owners.get(episode.owner, 0) + 1
        self.slots += episode.entry.spec.slots
        self.of(env).opened += 1

    def closed(self, episode: Episode) -> None:
        """Stop counting a session that was open."""
        self.slots -= episode.entry.spec.slots
        owners = self._open[episode.name]
        owners[episode.owner] -= 1
        if not owners[episode.owner]:
            del owners[episode.owner]
        self._changed.add(episode.name)

    def take(self) -> dict[str, Tally]:
        """Return the counts since the last call, for the environments in which something happened."""
        taken = {}
        for name in self._changed:
            tally = self._tallies[name]
            tally.open = dict(self._open[name])
            tally.model_calls, tally.model_failures = self._entries[name].asked.take()
            taken[name] = tally
            self._tallies[name] = new_tally()
        self._changed.clear()
        return taken
