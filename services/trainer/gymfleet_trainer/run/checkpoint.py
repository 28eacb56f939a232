"""Checkpoints: directories that are each either complete or absent, with a pointer to the last one.

A checkpoint is written under a temporary name, synced, renamed, and only then
named by `latest`, which is itself replaced atomically. `latest` names a complete
checkpoint whenever a process dies. The checkpoint therefore defines what has
happened: trajectories are acknowledged after it is written, never before.
"""

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from gymfleet_trainer.errors import CheckpointFailed, RunDirectoryError, WorkersFailed, disk_line
from gymfleet_trainer.run.run_directory import sync, sync_tree, write_atomically
from gymfleet_trainer.run.state import RunState

STATE: Final = "state.json"
_LATEST: Final = "latest"
_PREFIX: Final = "checkpoint-"
_TEMPORARY: Final = ".writing-"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Begun:
    """A checkpoint that is being written."""

    temporary: Path
    path: Path
    state: RunState
    """The state as it was at the beginning, except for the versions that were published since."""
    living: RunState


class Checkpoints:
    """The checkpoints of one run directory, used by one process at a time, which the directory's lock ensures."""

    def __init__(self, directory: Path, *, keep: int) -> None:
        self._directory = directory
        self._keep = keep
        self._begun: _Begun | None = None
        self._naming = threading.Lock()
        """Held while a checkpoint gets its name, and whenever its state changes."""

    def latest(self) -> tuple[Path, RunState] | None:
        """Return the last complete checkpoint, or None before the first.

        Raises:
            RunDirectoryError: the pointer or the checkpoint that it names is damaged.
        """
        pointer = self._directory / _LATEST
        if not pointer.exists():
            return None
        path = self._directory / pointer.read_text(encoding="utf-8", errors="replace").strip()
        try:
            return path, RunState.model_validate_json((path / STATE).read_bytes())
        except (OSError, ValueError) as error:
            raise damaged(path, error) from None

    def save(self, state: RunState, write: Callable[[Path], None]) -> Path:
        """Write a checkpoint; `write` stores weights and optimiser in the directory that it is given.

        Blocks. Increments `state.serial`.

        Raises:
            CheckpointFailed: there was no space, or another write failed. The last checkpoint is intact.
            WorkersFailed: the workers that hold the weights died.
        """
        self.begin(state, write)
        return self.commit(lambda: None)

    def begin(self, state: RunState, start: Callable[[Path], None]) -> None:
        """Begin a checkpoint of `state` as it is now; `start` begins to store weights and optimiser in a directory.

        Blocks until `start` returns. The result is no checkpoint before `commit`. Raises as `save` does.
        """
        serial = state.serial + 1
        temporary = self._directory / f"{_TEMPORARY}{serial:06d}"
        path = self._directory / f"{_PREFIX}{serial:06d}"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            start(temporary)
        except Exception as error:
            raise self._given_up(temporary, error) from error
        self._begun = _Begun(temporary, path, state.model_copy(update={"serial": serial}, deep=True), state)

    def commit(self, finish: Callable[[], object]) -> Path:
        """Make the begun checkpoint the last one; `finish` waits until weights and optimiser are stored.

        Blocks. Increments `serial` of the state that it was begun with. Raises as `save` does, and:

        Raises:
            ValueError: no checkpoint was begun, or it was abandoned meanwhile.
        """
        begun = self._begun
        if begun is None:
            raise ValueError("no checkpoint was begun")
        try:
            finish()
            sync_tree(begun.temporary)
            with self._naming:
                abandoned = self._begun is not begun
                if not abandoned:
                    self._name(begun)
                    self._begun = None
        except Exception as error:
            self._begun = None
            raise self._given_up(begun.temporary, error) from error
        if abandoned:
            raise ValueError(f"{begun.path.name} was abandoned")
        begun.living.serial = begun.state.serial
        self._prune(begun.path)
        return begun.path

    def abandon(self) -> None:
        """Ensure that a begun checkpoint never becomes a real one: another process may own the directory soon."""
        with self._naming:
            self._begun = None

    def _name(self, begun: _Begun) -> None:
        _write_state(begun.temporary, begun.state)
        # Only a checkpoint that `latest` never named can exist here: the process died just after renaming it.
        shutil.rmtree(begun.path, ignore_errors=True)
        begun.temporary.rename(begun.path)
        sync(self._directory)
        write_atomically(self._directory / _LATEST, begun.path.name + "\n")

    def _given_up(self, temporary: Path, error: Exception) -> Exception:
        """Remove the leftovers of a failed write, and return the error to raise."""
        shutil.rmtree(temporary, ignore_errors=True)
        return error if isinstance(error, WorkersFailed) else self._failed(error)

    def amend(self, state: RunState) -> None:
        """Replace the state in the last checkpoint, which must have the weights that `state` belongs to.

        Raises:
            CheckpointFailed: as for `save`.
            ValueError: the weights have changed since that checkpoint.
        """
        last = self.latest()
        if last is None or not _same_weights(last[1], state):
            raise ValueError("the last checkpoint holds other weights")
        try:
            _write_state(last[0], state)
        except OSError as error:
            raise self._failed(error) from error

    def holds(self, state: RunState) -> bool:
        """Return whether the last checkpoint has the weights that `state` belongs to."""
        last = self.latest()
        return last is not None and _same_weights(last[1], state)

    def note_version(self, version: int, age: int) -> bool:
        """Record in the last checkpoint, and in a begun one, that its weights were published as `version`.

        Returns False, without writing, if they hold other weights: episodes of
        that version then count as lost after a restart.
        """
        with self._naming:
            begun, last = self._begun, self.latest()
            states = [] if begun is None else [begun.state]
            if last is not None:
                states.append(last[1])
            noted = [state for state in states if state.age == age]
            for state in noted:
                state.ages[version] = age
                state.version = max(state.version, version)
            if last is not None and last[1].age == age:
                try:
                    _write_state(*last)
                except OSError as error:
                    raise self._failed(error) from error
        return bool(noted)

    def sweep(self) -> None:
        """Remove half-written leftovers of a killed process."""
        for leftover in self._directory.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _failed(self, error: Exception) -> CheckpointFailed:
        pointer = self._directory / _LATEST
        last = pointer.read_text(encoding="utf-8").strip() if pointer.exists() else "none yet"
        return CheckpointFailed(
            f"{disk_line(self._directory, error)}; the last checkpoint ({last}) is intact: "
            "make room and run the same command again"
        )

    def _prune(self, newest: Path) -> None:
        older = sorted((path for path in self._directory.glob(f"{_PREFIX}*") if path != newest), reverse=True)
        for path in older[self._keep - 1 :]:
            shutil.rmtree(path, ignore_errors=True)
        log.debug("checkpoint.written", path=newest.name)


def damaged(path: Path, error: Exception) -> RunDirectoryError:
    """Return the error to raise for a checkpoint that cannot be read."""
    pointer = path.parent / _LATEST
    told = next(iter(str(error).splitlines()), "") or type(error).__name__
    return RunDirectoryError(
        f"{pointer} names {path.name}, which cannot be read ({told:.200}); restore it, or write the name of another "
        f"checkpoint of {path.parent} into {pointer}"
    )


def _same_weights(one: RunState, other: RunState) -> bool:
    return one.age == other.age


def _write_state(directory: Path, state: RunState) -> None:
    write_atomically(directory / STATE, state.model_dump_json(indent=1) + "\n")
