"""Games that TextWorld saved: `NAME.json`, which `tw-make` writes next to `NAME.z8`."""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from gymfleet_contracts.session import Split

from gymfleet_envs.tasks import ListedTasks, Task, TaskDataError, split_of
from gymfleet_envs.textworld.game import Game, read_game
from gymfleet_envs.textworld.package import logic_for, package

_LEVEL: Final = "games"
_MAX_BYTES: Final = 32 << 20
_MOST_TURNS: Final = 100
_CACHED_GAMES: Final = 64
_FOLDERS: Final[Mapping[str, Split]] = {
    "train": "train", "valid": "validation", "validation": "validation", "test": "test",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GameFile:
    """A game that is read only when it is played."""

    path: Path

    @property
    def game(self) -> Game:
        """The game. Raises `TaskDataError` with the file and the fault."""
        return _read(self.path)

    @property
    def turn_limit(self) -> int:
        """The most commands that may be given."""
        return _MOST_TURNS


def saved_games(data: Path) -> ListedTasks[GameFile]:
    """Return the games of a directory; a game's id is its path without the suffix.

    A game's split is that of its folder `train`, `valid` or `validation`, or `test`, else that of its file's hash.

    Raises:
        TaskDataError: if there is no game.
    """
    package()
    tasks = [
        Task(path.relative_to(data).with_suffix("").as_posix(), _split(path, data), _LEVEL, GameFile(path))
        for path in _walk(data)
    ]
    return ListedTasks("textworld", "textworld games", tasks)


def copy_games(source: Path, target: Path) -> None:
    """Check the games of a directory and copy them into a folder for each split. Raises `TaskDataError`."""
    for path in _walk(source):
        _read(path)
        copy = target / _split(path, source) / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def _walk(data: Path) -> Iterator[Path]:
    if not data.is_dir():
        raise TaskDataError(f"{data} is no directory")
    paths = sorted(data.rglob("*.json"))
    if not paths:
        raise TaskDataError(
            f"{data} has no games of TextWorld (**/*.json): a .z8 file alone does not say what its rules are"
        )
    yield from paths


def _split(path: Path, data: Path) -> Split:
    folders = path.relative_to(data).parts[:-1]
    named = next((_FOLDERS[folder] for folder in folders if folder in _FOLDERS), None)
    return named or split_of(_bytes(path).hex())


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise TaskDataError(f"{path} cannot be read: {error}") from None
    if len(content) > _MAX_BYTES:
        raise TaskDataError(f"{path} has more than {_MAX_BYTES} bytes")
    return content


@lru_cache(maxsize=_CACHED_GAMES)
def _read(path: Path) -> Game:
    try:
        data = json.loads(_bytes(path))
    except (ValueError, RecursionError) as error:
        raise TaskDataError(f"{path} is not JSON: {error}") from None
    knowledge = data.get("KB") if isinstance(data, dict) else None
    if not isinstance(knowledge, dict):
        raise TaskDataError(f"{path} is no game of TextWorld: it lacks 'KB', its rules")
    try:
        return read_game(data, logic_for(knowledge.get("logic")))
    except TaskDataError as error:
        raise TaskDataError(f"{path}: {error}") from None
