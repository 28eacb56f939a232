"""The run directory: its files, the process that may write them, and the leftovers of an interrupted run."""

import fcntl
import hashlib
import json
import math
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from gymfleet_contracts.conversation import RECORDS, Record
from gymfleet_contracts.recipe import LATEST_REWARD_MODELS, MODEL_INIT, Recipe
from gymfleet_contracts.run import Place, RunProgress
from gymfleet_contracts.search import SearchTree
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.run_events import EventLog
from pydantic import JsonValue, ValidationError

from gymfleet_trainer.errors import RunDirectoryError

METRICS: Final = "metrics.jsonl"
SUMMARY: Final = "summary.json"
_LOCK_S: Final = 10.0
_LOCK_POLL_S: Final = 0.1


def recipe_hash(recipe: Recipe) -> str:
    """Return a hash of a recipe's meaning; its layout and the tables `trainer`, `scale`, `placement` do not count."""
    text = json.dumps(recipe.model_dump(mode="json", exclude={"trainer", "scale", "placement"}), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_atomically(path: Path, text: str) -> None:
    """Replace a file atomically: a reader sees, and a crash leaves, either the old file or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Make the content of a file durable, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(directory: Path) -> None:
    """Make all files below a directory durable, with their names."""
    for root, _, files in os.walk(directory):
        for name in files:
            sync(Path(root) / name)
        sync(Path(root))


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class RunDirectory:
    """One run's files, locked against a second trainer while entered, or from `lock` to the end of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.checkpoints = self.path / "checkpoints"
        self.weights = self.path / "weights"
        self.model_init = self.path / MODEL_INIT
        self.model = self.path / "model"
        self.models = self.path / "models"
        self.references = self.path / "references"
        self._lock: int | None = None
        self._events: EventLog | None = None

    def __enter__(self) -> Self:
        self.lock()
        return self

    def lock(self) -> None:
        """Keep other trainers out, until the entered context is left or all threads of the process have ended.

        Blocks for a moment if another process has the lock: one that was killed keeps it while its last write ends.

        Raises:
            RunDirectoryError: another process keeps the lock.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        ends_at = time.monotonic() + _LOCK_S
        while not _locked(descriptor):
            if time.monotonic() > ends_at:
                os.close(descriptor)
                raise RunDirectoryError(
                    f"another process is training in {self.path}; stop it or use another run directory"
                )
            time.sleep(_LOCK_POLL_S)
        self._lock = descriptor

    def __exit__(self, *_: object) -> None:
        self._events = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def claim(self, recipe: Recipe, recipe_path: Path) -> str:
        """Bind the directory to a recipe when it is first used, and return the run's id.

        Raises:
            RunDirectoryError: the directory holds a run of another recipe.
        """
        digest = recipe_hash(recipe)
        identity = self.path / "run.json"
        if identity.exists():
            known = _read_json(identity)
            if known.get("recipe_hash") != digest:
                raise RunDirectoryError(
                    f"{self.path} holds a run of another recipe ({known.get('recipe')}, "
                    f"hash {known.get('recipe_hash')}, not {digest}); "
                    "give the recipe it was started with, or another run directory"
                )
            return str(known["run_id"])
        # Each directory gets a fresh id, because the sets of produced samples in Redis outlive a deleted run.
        run_id = f"{recipe.name}-{secrets.token_hex(4)}"
        shutil.copyfile(recipe_path, self.path / "recipe.toml")
        write_atomically(identity, json.dumps({"run_id": run_id, "recipe": recipe.name, "recipe_hash": digest}))
        return run_id

    def pin(self, sources: Mapping[str, str]) -> None:
        """Note the plug-ins' files and their hashes when the run starts, since all of a run must use the same code.

        Raises RunDirectoryError if one of them has changed since then.
        """
        pinned = self.path / "plugins.json"
        if not pinned.exists():
            write_atomically(pinned, json.dumps(dict(sources)))
            return
        known = _read_json(pinned)
        if changed := sorted(path for path, digest in sources.items() if known.get(path) != digest):
            raise RunDirectoryError(
                f"{', '.join(changed)} changed since the run in {self.path} was started; put it back as it was, or "
                "start another run directory"
            )

    @property
    def finished(self) -> bool:
        """Return whether the run is finished."""
        return (self.path / SUMMARY).exists()

    def event(
        self,
        kind: str,
        data: Mapping[str, JsonValue] | None = None,
        *,
        stage: str | None = None,
        places: Mapping[str, Place] | None = None,
    ) -> None:
        """Append to `events.jsonl`, which, unlike the other files, is never cut."""
        if self._events is None:
            self._events = EventLog(self.path)
        self._events.append(kind, stage=stage, data=data, places=places)

    def metric(self, kind: str, *, stage: str | None = None, **fields: Any) -> None:
        """Append one line to `metrics.jsonl`. A number that is not finite becomes null, because JSON has no NaN."""
        told = {name: _finite(value) for name, value in fields.items()}
        line = {"kind": kind, "time": round(time.time(), 3), **({} if stage is None else {"stage": stage}), **told}
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
        self.event(kind, json.loads(json.dumps(told)), stage=stage)

    def trajectories(self, name: str, items: Iterable[Record]) -> None:
        """Append to `trajectories/NAME.jsonl`, one `ScoredTrajectory` or `Conversation` per line, and note the place
        of each episode.
        """
        path = self.episodes(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        places: dict[str, Place] = {}
        with path.open("ab") as file:
            offset = file.tell()
            for item in items:
                line = item.model_dump_json().encode() + b"\n"
                file.write(line)
                if isinstance(item, ScoredTrajectory):
                    places[item.trajectory.trajectory_id] = Place(
                        file=self.relative(path), offset=offset, length=len(line)
                    )
                offset += len(line)
        if places:
            self.event("episodes", stage=name, places=places)

    def search_tree(self, tree: SearchTree) -> None:
        """Append to `trees/STAGE.jsonl`, under the stage that requested the group."""
        path = self.path / "trees" / f"{tree.group_id.rpartition('.')[0]}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(tree.model_dump_json().encode() + b"\n")

    def save_model(self, path: Path, write: Callable[[Path], None]) -> None:
        """Replace a model's directory by the files that `write` puts into the directory that it is given."""
        temporary = path.with_name(f".{path.name}.writing")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        write(temporary)
        sync_tree(temporary)  # the state that says that it is there is synced, too
        shutil.rmtree(path, ignore_errors=True)
        temporary.rename(path)
        sync(path.parent)

    def link_reward_model(self, model: Path) -> None:
        """Point the reward service's link at a model that a stage left, instead of at that of an earlier round."""
        links = self.path / LATEST_REWARD_MODELS
        links.mkdir(exist_ok=True)
        title = model.name.rpartition(".")[2]
        temporary = links / f".{title}.tmp"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(Path("..") / self.relative(model))
        temporary.replace(links / title)
        sync(links)

    def episodes(self, stage: str) -> Path:
        """Return the file with the episodes that a stage left."""
        return self.path / "trajectories" / f"{stage}.jsonl"

    def read_records(self, path: Path) -> list[Record]:
        """Read episodes and conversations. Raises RunDirectoryError, which names the file and the line."""
        found: list[Record] = []
        try:
            with path.open(encoding="utf-8") as file:
                for line in file:
                    found.append(RECORDS.validate_json(line))  # noqa: PERF401 - its length tells the line
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            form, *parts = first["loc"] or ("episode",)
            where = ": ".join([f"no {form} of ours", *([".".join(map(str, parts))] if parts else [])])
            raise RunDirectoryError(
                f"{path}, line {len(found) + 1}: {where}: {first['msg']}; a file of another form needs a converter"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise RunDirectoryError(f"the records in {path} cannot be read: {error}") from None
        return found

    def relative(self, path: Path) -> str:
        """Return a path in the form used in the run's files."""
        return str(path.relative_to(self.path))

    def stages(self, left: list[dict[str, Any]]) -> None:
        """Replace `stages.json`, the results of each finished stage."""
        write_atomically(self.path / "stages.json", json.dumps(left, indent=2) + "\n")

    def offsets(self) -> dict[str, int]:
        """Return the lengths of the append-only files, in bytes."""
        kept = (path for name in ("trajectories", "trees") for path in sorted((self.path / name).glob("*.jsonl")))
        files = [self.path / METRICS, *kept]
        return {str(path.relative_to(self.path)): path.stat().st_size for path in files if path.exists()}

    def truncate(self, offsets: dict[str, int]) -> None:
        """Cut off everything written after the restored checkpoint, because it is written again."""
        for name, size in self.offsets().items():
            # After a power cut the file may be shorter than at the checkpoint; it must not be padded with zeros.
            os.truncate(self.path / name, min(size, offsets.get(name, 0)))

    def progress(self, progress: RunProgress) -> None:
        """Replace `progress.json`. It is not synced, because a lost one is written again within a second."""
        temporary = self.path / ".progress.json.tmp"
        temporary.write_text(progress.model_dump_json(), encoding="utf-8")
        temporary.replace(self.path / "progress.json")

    def summary(self, summary: dict[str, Any]) -> None:
        """Write `summary.json`, which marks the run as finished."""
        write_atomically(self.path / SUMMARY, json.dumps(summary, indent=2) + "\n")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{path} cannot be read: {error}; restore it or use another run directory") from None
    if not isinstance(document, dict):
        raise RunDirectoryError(f"{path} holds no JSON object; restore it or use another run directory")
    return document
