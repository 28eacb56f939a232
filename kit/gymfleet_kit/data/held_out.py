"""The tasks of a test split, from published and our own files, and the records that belong to one of them."""

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from gymfleet_contracts.conversation import Record

from gymfleet_kit.data.converter import UnusableRecord
from gymfleet_kit.data.converters._images import shown_in
from gymfleet_kit.data.filter import opening
from gymfleet_kit.data.reading import DataError, records

_MESSAGES: Final = ("messages", "conversations", "conversation", "prompt")
_IDS: Final = ("item_id", "task_id", "id")
_ENVIRONMENTS: Final = ("env", "env_name", "data_source")


class HeldOutTasks:
    """Ids and openings of tasks. An opening shared by several tasks identifies none, and is left out."""

    def __init__(self, paths: Iterable[Path], env: str = "") -> None:
        """Read files. Rows that do not name their environment count for `env`. Raises `DataError`."""
        self._ids: set[tuple[str, str]] = set()
        seen: dict[bytes, str] = {}
        shared: set[bytes] = set()
        for number, (place, row) in enumerate(_rows(paths)):
            named, task_id, text = _facts(row)
            if not task_id and not text:
                raise DataError(
                    f"{place}: neither a task's id ({', '.join(_IDS)}) nor messages ({', '.join(_MESSAGES)})"
                )
            if task_id:
                self._ids.add(_key(named or env, task_id))
                if named and task_id.startswith(
                    f"{named}_"
                ):  # it is said in full, whatever the environment is called here
                    self._ids.add(("", task_id))
            if text:
                digest, task = _digest(text), task_id or f"#{number}"
                if seen.setdefault(digest, task) != task:
                    shared.add(digest)
        self._openings = set(seen) - shared

    def has_id(self, env: str, task_id: str) -> bool:
        """Return whether a task of this environment is one of them; `babyai_12` is the same as `12` of babyai."""
        key = _key(env, task_id)
        return key in self._ids or ("", task_id) in self._ids or ("", f"{env}_{key[1]}") in self._ids

    def has_opening(self, record: Record) -> bool:
        """Return whether a record begins like one of them, ignoring upper case and blanks."""
        text = opening(record)
        return bool(text.strip()) and _digest(text) in self._openings


def _rows(paths: Iterable[Path]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path in paths:
        yield from records(path)


def _facts(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return environment, task id and opening of a row; empty if it does not give them."""
    if isinstance(played := row.get("trajectory"), dict):
        return (*_task(played.get("task")), _first_observation(played))
    env, task_id = _task(row.get("task"))
    env, task_id = env or _text(row, _ENVIRONMENTS), task_id or _text(row, _IDS)
    return env, task_id, _opening(row) or _first_observation(row)  # an episode of a table has its turns in the row


def _task(given: object) -> tuple[str, str]:
    return (_text(given, ("env",)), _text(given, ("task_id",))) if isinstance(given, dict) else ("", "")


def _text(row: Mapping[str, Any], keys: Iterable[str]) -> str:
    found = (row.get(key) for key in keys)
    return next((str(value) for value in found if isinstance(value, str | int) and str(value).strip()), "")


def _opening(row: Mapping[str, Any]) -> str:
    """Return the user's last message before the first reply that is learned from; a prompt may be a plain text."""
    last = ""
    messages: list[Any] = next((row[key] for key in _MESSAGES if isinstance(row.get(key), list) and row[key]), [])
    for message in messages:
        if not isinstance(message, dict):
            break
        role, text = message.get("role", message.get("from")), _said(message.get("content", message.get("value")))
        passed_over = message.get("learned") is False or message.get("loss") is False or message.get("weight") == 0
        if role in ("assistant", "gpt") and not passed_over:
            break
        if role in ("user", "human") and text is not None:
            last = text
    return last if messages else _text(row, ("prompt",))


def _said(content: object) -> str | None:
    """Return a content as converted records have it, which may be of parts; None if it is none."""
    if isinstance(content, list):
        with suppress(UnusableRecord):
            return shown_in(content)[0]
    return content if isinstance(content, str) else None


def _first_observation(episode: Mapping[str, Any]) -> str:
    turns = episode.get("turns")
    first = turns[0].get("observation") if isinstance(turns, list) and turns and isinstance(turns[0], dict) else ""
    return first if isinstance(first, str) else ""


def _key(env: str, task_id: str) -> tuple[str, str]:
    return env, task_id.removeprefix(f"{env}_") if env else task_id


def _digest(text: str) -> bytes:
    return hashlib.sha256(" ".join(unicodedata.normalize("NFKC", text).casefold().split()).encode()).digest()[:16]
