"""Commands over data files: streamed, resumed where they were killed, and without losing any rejected record."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gymfleet_contracts.data_records import Form
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from gymfleet_kit.data.chunks import Chunk, DataError, Position, chunks
from gymfleet_kit.data.outputs import Output
from gymfleet_kit.data.parallel import ordered
from gymfleet_kit.data.work import Done, Rejected, Work

REJECTED: Final = "rejected"
"""The name of the output with unusable records."""
_SAVE_EVERY_S: Final = 1.0
PARALLEL_BYTES: Final = 1 << 25
"""Below this size, starting processes takes longer than the work."""


class _Input(BaseModel):
    model_config = ConfigDict(frozen=True)

    path: str
    size_bytes: int
    modified_ns: int


class _State(BaseModel):
    """The point at which a killed job goes on. Everything recorded here is on disk."""

    job: dict[str, JsonValue]
    inputs: list[_Input]
    place: int = 0
    """The place of the input that is being read."""
    offset: int = 0
    number: int = 0
    sizes: dict[str, int] = {}
    """Bytes of each output."""
    counts: dict[str, int] = {}


@dataclass
class Job:
    """Work over files, and the files that it writes."""

    inputs: Sequence[Path]
    outputs: Mapping[str, Path]
    """The files to write, by the names in `Done.parts`. The state and rejected records are named after the first."""
    work: Work
    told: dict[str, JsonValue]
    """The arguments of the command: with any others, it is not resumed."""
    form: Form | None = None
    """The form of a table without rows."""
    workers: int = 1
    strict: bool = False
    """Whether the first unusable record ends the job."""
    force: bool = False
    """Whether existing outputs are replaced, and the state of a killed job is discarded."""
    on_progress: Callable[[int, int, Counter[str]], None] = lambda *_: None
    """Called with the bytes done, the total bytes, and the counts."""
    on_rejected: Callable[[Rejected], None] = lambda _: None
    counts: Counter[str] = field(default_factory=Counter)
    resumed: bool = False

    @property
    def main(self) -> Path:
        """Return the output after which the others are named."""
        return next(iter(self.outputs.values()))

    @property
    def rejected_path(self) -> Path:
        """Return the file of unusable records."""
        return self.main.with_name(f"{self.main.name}.rejected.jsonl")

    @property
    def state_path(self) -> Path:
        """Return the file with the point at which a killed job goes on."""
        return self.main.with_name(f"{self.main.name}.state.json")

    def run(self) -> Counter[str]:
        """Do all the work, and return the counts: `read`, `written`, `rejected` and those of the work.

        Raises:
            DataError: a file cannot be read or written, a killed job's files belong to another command, or, if
                `strict`, a record cannot be used.
            PluginError: a plug-in is at fault.
        """
        state = self._begun()
        outputs = {name: Output(path) for name, path in {**self.outputs, REJECTED: self.rejected_path}.items()}
        if state.place == len(self.inputs):  # it was killed when all was read: some outputs may be in their places
            outputs = {name: output for name, output in outputs.items() if output.partial.exists()}
        for name, output in outputs.items():
            output.begin(state.sizes.get(name, 0))
        try:
            self._read(state, outputs)
        except BaseException as error:
            for output in outputs.values():
                output.close()
            if self.strict and isinstance(error, DataError):
                self._discard(outputs)
            raise
        self._finish(outputs)
        return self.counts

    def _finish(self, outputs: Mapping[str, Output]) -> None:
        try:
            for output in outputs.values():
                output.finish(self.form)
        finally:
            for output in outputs.values():
                output.close()
        if not self.counts["rejected"]:
            self.rejected_path.unlink(missing_ok=True)
        self.state_path.unlink()

    def _read(self, state: _State, outputs: Mapping[str, Output]) -> None:
        saved_at = time.monotonic()
        try:
            for place in range(state.place, len(self.inputs)):
                start = Position(state.offset, state.number) if place == state.place else Position()
                for chunk, done in self._of_input(place, start):
                    self._keep(done, outputs)
                    if chunk is not None:
                        state.place, state.offset, state.number = place, chunk.end.offset, chunk.end.number
                        self._tell(state, chunk.passed_bytes)
                    if time.monotonic() - saved_at > _SAVE_EVERY_S:
                        self._save(state, outputs)
                        saved_at = time.monotonic()
                state.place, state.offset, state.number = place + 1, 0, 0
        finally:
            self._save(state, outputs)

    def _of_input(self, place: int, start: Position) -> Iterator[tuple[Chunk | None, Done]]:
        """Yield the results for an input. The part of it that cannot be read is one rejected record."""
        path = self.inputs[place]
        workers = self.workers if path.stat().st_size >= PARALLEL_BYTES else 1
        try:
            yield from ordered(self.work, chunks(path, start), workers)
        except DataError as error:
            if not str(error).startswith(str(path)):  # a process was killed
                raise
            head, _, reason = str(error).partition(": ")
            yield None, Done(rejected=[Rejected(head, reason)])

    def _keep(self, done: Done, outputs: Mapping[str, Output]) -> None:
        self.counts += done.counts
        self.counts["rejected"] += len(done.rejected)
        for one in done.rejected:
            if self.strict:
                raise DataError(f"{one.place}: {one.reason}")
            self.on_rejected(one)
            outputs[REJECTED].append(one.line)
        for name, part in done.parts.items():
            outputs[name].append(part)

    def _tell(self, state: _State, passed_bytes: int) -> None:
        sizes = [one.size_bytes for one in state.inputs]
        self.on_progress(sum(sizes[: state.place]) + passed_bytes, sum(sizes), self.counts)

    def _begun(self) -> _State:
        """Return where to begin. Raises `DataError`."""
        if not self.inputs:
            raise DataError("no input file is named")
        inputs = [_described(path) for path in self.inputs]
        taken = {path.resolve() for path in self.inputs} & {path.resolve() for path in self.outputs.values()}
        if taken:
            raise DataError(f"{next(iter(taken))}: it is read and written; give what is written another name")
        state = _State(job=self.told, inputs=inputs)
        if self.force:
            return state
        left = self._left()
        if left is not None:
            self._require_same(left, state)
            self.counts, self.resumed = Counter(left.counts), True
            return left
        for path in self.outputs.values():
            if path.exists():
                raise DataError(f"{path} exists; give another name, or --force to replace it")
        return state

    def _left(self) -> _State | None:
        try:
            return _State.model_validate_json(self.state_path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError):
            raise DataError(f"{self.state_path} cannot be read; --force begins again") from None

    def _require_same(self, left: _State, now: _State) -> None:
        for name in left.job.keys() | now.job.keys():
            if (was := left.job.get(name)) != (said := now.job.get(name)):
                raise DataError(
                    f"{self.main}: the command that was killed had {name} = {_shown(was)}, and this one has "
                    f"{_shown(said)}; --force begins again"
                )
        for was_input, is_input in zip(left.inputs, now.inputs, strict=False):
            if was_input != is_input:
                raise DataError(
                    f"{is_input.path}: it is not as it was when the command was killed; --force begins again"
                )
        if len(left.inputs) != len(now.inputs):
            raise DataError(f"{self.main}: the command that was killed read other files; --force begins again")

    def _save(self, state: _State, outputs: Mapping[str, Output]) -> None:
        for output in outputs.values():
            output.sync()
        state.sizes = {name: output.size for name, output in outputs.items()}
        state.counts = dict(self.counts)
        temporary = self.state_path.with_name(f"{self.state_path.name}.new")
        temporary.write_text(state.model_dump_json())
        temporary.replace(self.state_path)

    def _discard(self, outputs: Mapping[str, Output]) -> None:
        for output in outputs.values():
            output.partial.unlink(missing_ok=True)
        self.state_path.unlink(missing_ok=True)


def _described(path: Path) -> _Input:
    try:
        found = path.stat()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    return _Input(path=str(path), size_bytes=found.st_size, modified_ns=found.st_mtime_ns)


def _shown(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value)[:80]
