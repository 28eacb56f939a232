"""The rows of files as tasks: which file belongs to which split, and a check that no row is in two splits."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from gymfleet_contracts.session import Split

from gymfleet_envs.dataset.options import DatasetOptions
from gymfleet_envs.dataset.row import Row, row_of
from gymfleet_envs.dataset.scoring import Scorers
from gymfleet_envs.records import SUFFIXES, records
from gymfleet_envs.tasks import SPLITS, ListedTasks, Task, TaskDataError

LEVEL: Final = "rows"
_SPLIT_OF_NAME: Final[Mapping[str, Split]] = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
    "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip
_OF_ROWS: Final = (".parquet", ".jsonl")
"""What holds rows even where no name says so: a .json may describe the others."""
_MAX_ROWS: Final = 2_000_000


def row_tasks(path: Path, options: DatasetOptions) -> ListedTasks[Row]:
    """Return the rows of a file, or of the files of a directory. Task ids are `FILE.NUMBER`, from 0.

    Raises `TaskDataError` for anything unreadable, a data source without a scorer, and a row in two splits.
    """
    files = split_files(path)
    scorers = Scorers(options.scorers)
    shares: dict[Split, float] = {
        "validation": 0.0 if "validation" in files else options.validation_share,
        "test": 0.0 if "test" in files else options.test_share,
    }
    tasks: list[Task[Row]] = []
    first_seen: dict[bytes, tuple[Split, str]] = {}
    for split, file in _in_order(files):
        for number, (place, row) in enumerate(_rows(file, options, scorers)):
            digest = hashlib.sha256(row.fingerprint.encode(errors="surrogatepass")).digest()
            in_split = _dealt(digest, shares) if split == "train" else split
            known, where = first_seen.setdefault(digest, (in_split, place))
            if known != in_split:
                raise TaskDataError(f"{place}: the same prompt stands in {where}: a {in_split} row is in {known}")
            tasks.append(Task(task_id=f"{file.stem}.{number}", split=in_split, level=LEVEL, data=row))
            if len(tasks) > _MAX_ROWS:
                raise TaskDataError(f"{path}: more than {_MAX_ROWS} rows, which are held in memory")
    if not tasks:
        raise TaskDataError(f"{path}: the files hold no row")
    return ListedTasks("dataset", "rows", tasks)


def split_files(path: Path) -> dict[Split, list[Path]]:
    """Return the files of each split, by their names: `train.parquet`, `data/test-00000-of-00002.parquet`.

    A file, or the .parquet and .jsonl files of a directory in which no name means a split, are for training unless
    the name means another split. Raises `TaskDataError`.
    """
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise TaskDataError(f"{path}: rows are {', '.join(SUFFIXES)}")
        return {_split_of(path) or "train": [path]}
    if not path.is_dir():
        raise TaskDataError(f"{path}: there is no such file or directory")
    folders = [folder for folder in (path, path / "data") if folder.is_dir()]
    files = [file for folder in folders for file in sorted(folder.iterdir()) if file.suffix in SUFFIXES]
    unnamed: Split | None = None
    if not any(map(_split_of, files)):  # then all are for training, as the hub's own library reads them
        unnamed, files = "train", [file for file in files if file.suffix in _OF_ROWS]
    found: dict[Split, list[Path]] = {}
    names: dict[str, Path] = {}
    for file in files:
        if (split := _split_of(file) or unnamed) is None or not file.is_file():
            continue
        if (other := names.setdefault(file.stem, file)) != file:
            raise TaskDataError(f"{file}: {other} has the same name; keep one of them")
        found.setdefault(split, []).append(file)
    if not found:
        raise TaskDataError(
            f"{path} holds no rows: no {', '.join(SUFFIXES)} for train, validation or test, here or in data; give the "
            "folder that holds them, of a hub's data set as hub_folder"
        )
    return found


def _split_of(file: Path) -> Split | None:
    return _SPLIT_OF_NAME.get(file.stem.partition("-")[0].partition("_")[0].partition(".")[0].lower())


def _in_order(files: Mapping[Split, list[Path]]) -> Iterator[tuple[Split, Path]]:
    for split in SPLITS:
        for file in files.get(split, ()):
            yield split, file


def _rows(file: Path, options: DatasetOptions, scorers: Scorers) -> Iterator[tuple[str, Row]]:
    for place, record in records(file):
        yield place, row_of(record, place, options, scorers)


def _dealt(digest: bytes, shares: Mapping[Split, float]) -> Split:
    """Return the split of a train row by its prompt: splits without a file of their own take their `shares`."""
    point = int.from_bytes(digest[:8], "big") / 2**64
    if point < shares["test"]:
        return "test"
    return "validation" if point < shares["test"] + shares["validation"] else "train"
