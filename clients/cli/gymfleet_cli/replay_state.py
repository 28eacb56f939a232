"""The progress of `gymfleet data augment`, from which a killed command goes on."""

import hashlib
import time
from collections import Counter
from collections.abc import Iterable
from typing import Final

from gymfleet_contracts.rollout import Move
from gymfleet_contracts.trajectory import Trajectory
from gymfleet_kit.data.chunks import DataError
from gymfleet_kit.data.outputs import Output
from pydantic import BaseModel, ValidationError

_SAVE_EVERY_S: Final = 1.0

Change = tuple[str, Trajectory, tuple[Move, ...]]
"""An augmenter's name, the episode that it changed, and the moves to play."""


class _Saved(BaseModel):
    changes: str
    """A hash of all changes to play."""
    played: int
    size: int
    """Bytes written."""
    counts: dict[str, int]


class ReplayState:
    """The output of a command and, next to it, its progress; both are written to disk about once a second."""

    def __init__(self, output: Output, changes: Iterable[Change], reply_format: str) -> None:
        digest = hashlib.sha256(reply_format.encode())
        for name, episode, moves in changes:
            digest.update(repr((name, episode.task, moves)).encode())
        self._changes = digest.hexdigest()
        self._output = output
        self._path = output.path.with_name(f"{output.path.name}.state.json")
        self._saved_at = time.monotonic()
        self.played = 0
        self.counts: Counter[str] = Counter()

    def begin(self, *, anew: bool) -> None:
        """Open the output where a killed command left it. Raises `DataError` if that command played other changes."""
        saved = None if anew else self._left()
        if saved is not None and saved.changes != self._changes:
            raise DataError(
                f"{self._output.path}: the command that was killed played other changes (its episodes, augmenters, "
                "options or format were not these); --force begins again"
            )
        if saved is not None:
            self.played, self.counts = saved.played, Counter(saved.counts)
        self._output.begin(0 if saved is None else saved.size)

    def note(self, name: str, line: bytes | None) -> None:
        """Note that a change of this augmenter was played, and the line kept of it, if any."""
        self.played += 1
        self.counts[f"{name}: played"] += 1
        if line is not None:
            self.counts[f"{name}: solved the task"] += 1
            self._output.append(line)
        if time.monotonic() - self._saved_at > _SAVE_EVERY_S:
            self._save()

    def stop(self) -> None:
        """Save the state for the command that goes on."""
        self._save()
        self._output.close()

    def finish(self) -> None:
        """Put the output in its place, or remove it if nothing was kept. Raises `DataError` for the latter."""
        if self._output.size:
            self._output.finish()
        else:
            self._output.close()
            self._output.partial.unlink()
        self._path.unlink(missing_ok=True)
        if not self._output.size:
            raise DataError(f"none of {self.played} changes solves its task")

    def _left(self) -> _Saved | None:
        try:
            return _Saved.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError):
            raise DataError(f"{self._path} cannot be read; --force begins again") from None

    def _save(self) -> None:
        self._output.sync()
        saved = _Saved(changes=self._changes, played=self.played, size=self._output.size, counts=dict(self.counts))
        temporary = self._path.with_name(f"{self._path.name}.new")
        temporary.write_text(saved.model_dump_json())
        temporary.replace(self._path)
        self._saved_at = time.monotonic()
