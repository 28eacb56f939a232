"""The events of a run: `events.jsonl`, which only ever grows, and `events.idx`, which holds where each event begins.

The index has 8 bytes for each event, the offset of its line, little-endian: a reader finds any event without reading
those before it. One process writes, under the lock of the run directory; any number may read, even while it writes.
"""

import os
import struct
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

from gymfleet_contracts.run import Place, RunEvent
from gymfleet_contracts.trajectory import ScoredTrajectory
from pydantic import JsonValue, ValidationError

EVENTS: Final = "events.jsonl"
INDEX: Final = "events.idx"
_OFFSET: Final = struct.Struct("<Q")
_READ_AT_ONCE: Final = 256


class EventsDamaged(Exception):
    """A line of the file is not the expected event; the message names the file and the line."""


class EventLog:
    """The writer. Opening it cuts off a line that a crash left incomplete."""

    def __init__(self, directory: Path) -> None:
        self._events = directory / EVENTS
        self._index = directory / INDEX
        self._events.touch()
        self._heal()
        self._size = self._events.stat().st_size
        self._number = self._index.stat().st_size // _OFFSET.size

    def append(
        self,
        kind: str,
        *,
        stage: str | None = None,
        data: Mapping[str, JsonValue] | None = None,
        places: Mapping[str, Place] | None = None,
    ) -> None:
        """Write an event."""
        event = RunEvent(
            number=self._number + 1, time=round(time.time(), 3), kind=kind, stage=stage, data=dict(data or {}),
            places=dict(places or {}),
        )  # fmt: skip
        line = event.model_dump_json(exclude_defaults=True).encode() + b"\n"
        with self._events.open("ab") as file:
            file.write(line)
        with self._index.open("ab") as file:  # after the event: an offset is that of a whole line
            file.write(_OFFSET.pack(self._size))
        self._size += len(line)
        self._number += 1

    def _heal(self) -> None:
        """Cut off an incomplete line, and rewrite the index unless it matches the events."""
        offsets = [0]
        with self._events.open("rb") as file:
            offsets += (file.tell() for line in iter(file.readline, b"") if line.endswith(b"\n"))
        os.truncate(self._events, offsets.pop())
        index = b"".join(map(_OFFSET.pack, offsets))
        if not self._index.exists() or self._index.read_bytes() != index:
            temporary = self._index.with_name(f".{INDEX}.tmp")
            temporary.write_bytes(index)
            temporary.replace(self._index)


def num_events(directory: Path) -> int:
    """Return the number of events: 0 if the directory has no index, as that of an older run."""
    try:
        return (directory / INDEX).stat().st_size // _OFFSET.size
    except FileNotFoundError:
        return 0


def read_events(directory: Path, after: int, limit: int) -> list[RunEvent]:
    """Return up to `limit` events after number `after`, and read nothing else. Raises `EventsDamaged`."""
    num_wanted = min(limit, num_events(directory) - after)
    if num_wanted < 1:
        return []
    with (directory / INDEX).open("rb") as file:
        file.seek(after * _OFFSET.size)
        raw = file.read((num_wanted + 1) * _OFFSET.size)
    bounds = [offset for (offset,) in _OFFSET.iter_unpack(raw[: len(raw) // _OFFSET.size * _OFFSET.size])]
    found = []
    with (directory / EVENTS).open("rb") as file:
        file.seek(bounds[0])
        lengths = [end - begin for begin, end in pairwise(bounds)]
        for number in range(after + 1, after + num_wanted + 1):
            length = lengths[number - after - 1] if number - after <= len(lengths) else None
            line = file.readline() if length is None else file.read(length)
            try:
                event = RunEvent.model_validate_json(line)
            except ValidationError:
                event = None
            if event is None or event.number != number:
                raise EventsDamaged(f"{directory / EVENTS}, line {number}: no event, or another one's")
            found.append(event)
    return found


def find_episode(directory: Path, ending: str) -> tuple[str, ScoredTrajectory] | None:
    """Return the last written episode whose trajectory id ends with `ending`, after its file's name; None without one.

    It reads events, from the last one backwards, and one line of an episodes file. Raises `EventsDamaged`.
    """
    last = num_events(directory)
    while last > 0:
        first = max(0, last - _READ_AT_ONCE)
        for event in reversed(read_events(directory, first, last - first)):
            for name, place in reversed(event.places.items()):
                if name.endswith(ending) and (episode := _episode_at(directory, place, name)) is not None:
                    return place.file, episode
        last = first
    return None


def _episode_at(directory: Path, place: Place, name: str) -> ScoredTrajectory | None:
    """Return the episode at a place; None if a resumed run has cut it off."""
    try:
        with (directory / place.file).open("rb") as file:
            file.seek(place.offset)
            episode = ScoredTrajectory.model_validate_json(file.read(place.length))
    except (OSError, ValidationError):
        return None
    return episode if episode.trajectory.trajectory_id == name else None
