"""One reward model of a service: the part that writes its transcripts, and the part that computes its numbers."""

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import structlog
from gymfleet_kit.chat.transcripts import Transcripts, UnusableTranscripts

from gymfleet_reward.component import ComponentError
from gymfleet_reward.models.embedded import EmbeddedModel
from gymfleet_reward.models.served import ServedModel
from gymfleet_reward.models.tables import EmbeddedTable, ModelAway, ModelTable, UnusableModel

log = structlog.get_logger()
_DIGITS: Final = 12
_CLOSE_S: Final = 5.0
_Files: TypeAlias = frozenset[tuple[str, int, int, int]]
"""Name, inode, time of change in nanoseconds, and bytes of each file."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A model that can be asked as long as the service runs."""

    table: ModelTable
    transcripts: Transcripts
    model: EmbeddedModel | ServedModel
    recorded: str
    """The model's identity, for records."""

    @contextmanager
    def held(self) -> Iterator["Entry"]:
        """Yield the entry that answers now."""
        yield self

    def start(self) -> None:
        """Begin to load the model."""
        self.model.start()

    def loading(self) -> bool:
        """Return whether the model is still being loaded."""
        return self.model.loading()

    def lack(self) -> str | None:
        """Return why the model does not answer yet, or not at all."""
        return self.model.lack()

    def close(self) -> None:
        """Close the model."""
        self.model.close()


def entry_of(name: str, table: ModelTable) -> "Entry | ReloadedEntry":
    """Return the model that a table describes. Raises `UnusableModel` with its name if it can never be asked."""
    try:
        if not isinstance(table, EmbeddedTable):
            transcripts = Transcripts(table.tokenizer, table.step_tag)
            return Entry(table, transcripts, ServedModel(name, table), f"{name}:{table.model}")
        if table.reload:
            return ReloadedEntry(name, table)
        transcripts = Transcripts(table.path, table.step_tag)
        model = EmbeddedModel(name, table, transcripts.vocab_size)
        return Entry(table, transcripts, model, f"{name}:{table.path.name}")
    except (UnusableModel, UnusableTranscripts) as error:
        raise UnusableModel(f"the reward model {name!r}: {error}") from None


class _Found(NamedTuple):
    """The contents of the model's directory; equal contents are the same model."""

    directory: Path
    """The directory, with links resolved."""
    files: _Files


class ReloadedEntry:
    """A model whose directory may be written, and replaced, while the service runs.

    The directory is looked at before each batch. While other files are loaded, callers wait: no batch is scored by
    weights that were replaced before the batch was requested, and one model at a time is in memory. Files that cannot
    be used are an error until they change again, whatever was there before.
    """

    def __init__(self, name: str, table: EmbeddedTable) -> None:
        self.table = table
        self._name = name
        self._turn = threading.Condition()
        self._num_users = 0
        self._loaded: tuple[_Found, Entry] | None = None
        self._refused: tuple[_Found, str] | None = None

    @property
    def recorded(self) -> str:
        """Return the model's identity, for records; the entries that it holds also identify the weights."""
        return f"{self._name}:{self.table.path.name}"

    @contextmanager
    def held(self) -> Iterator[Entry]:
        """Yield the model of the files that are there now, loaded; it is not closed before the block ends.

        Raises:
            ModelAway: there is no model, or it is being replaced.
            ComponentError: the model cannot be used, for the reason given.
        """
        with self._turn:
            entry = self._current()
            self._num_users += 1
        try:
            yield entry
        finally:
            with self._turn:
                self._num_users -= 1
                self._turn.notify_all()

    def start(self) -> None:
        """Do nothing: no model is loaded before there is an episode."""

    def loading(self) -> bool:
        """Return False: only the episodes that need the model wait for it."""
        return False

    def lack(self) -> str | None:
        """Return None: without the model, only the episodes that need it fail."""
        return None

    def close(self) -> None:
        """Close the model. One that is still being loaded ends with the process."""
        if self._turn.acquire(timeout=_CLOSE_S):
            try:
                self._drop()
            finally:
                self._turn.release()

    def _current(self) -> Entry:
        while True:
            found = self._found()
            if self._loaded is not None and self._loaded[0] == found:
                return self._loaded[1]
            if self._refused is not None and self._refused[0] == found:
                raise ComponentError(self._refused[1])
            if self._num_users == 0:
                return self._load(found)
            self._turn.wait()

    def _load(self, found: _Found) -> Entry:
        self._drop()
        try:
            entry = self._made(found.directory)
        except (UnusableModel, OSError) as error:
            self._require_unchanged(found)
            reason = str(error) if isinstance(error, UnusableModel) else f"{self._name!r}: {error}"
            self._refused = (found, reason)
            log.error("reward_model.unusable", model=self._name, error=reason)
            raise ComponentError(reason) from None
        try:
            self._require_unchanged(found)
        except ModelAway:
            entry.close()
            raise
        self._loaded = (found, entry)
        log.info("reward_model.reloaded", model=self._name, weights=entry.recorded)
        return entry

    def _made(self, directory: Path) -> Entry:
        """Return the model in a directory, loaded. Raises `UnusableModel`, or `OSError` if it cannot be read."""
        table = self.table.model_copy(update={"path": directory})
        try:
            transcripts = Transcripts(directory, table.step_tag)
        except UnusableTranscripts as error:
            raise UnusableModel(f"the reward model {self._name!r}: {error}") from None
        recorded = f"{self._name}:{directory.name}@{_digest(directory)}"
        model = EmbeddedModel(self._name, table, transcripts.vocab_size)
        model.start()
        if (fault := model.fault()) is not None:
            model.close()
            raise UnusableModel(fault)
        return Entry(table, transcripts, model, recorded)

    def _require_unchanged(self, found: _Found) -> None:
        if self._found() != found:
            raise ModelAway(f"the reward model {self._name!r} was replaced while it was being loaded")

    def _drop(self) -> None:
        if self._loaded is not None:
            self._loaded[1].close()
        self._loaded = self._refused = None

    def _found(self) -> _Found:
        path = self.table.path
        try:
            # All that belongs to one model is read from one directory, even if a link to it is changed meanwhile.
            directory = Path(os.path.realpath(path, strict=True))
            with os.scandir(directory) as entries:
                files = frozenset(
                    (one.name, told.st_ino, told.st_mtime_ns, told.st_size)
                    for one, told in ((one, one.stat()) for one in entries)
                )
        except OSError as error:
            raise ModelAway(f"the reward model {self._name!r} is not there: {path}: {error.strerror}") from None
        return _Found(directory, files)


def _digest(directory: Path) -> str:
    """Return a digest that identifies the weights, however they came there."""
    found = hashlib.sha256()
    for path in sorted(directory.glob("*.safetensors")):
        with path.open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()[:_DIGITS]
