"""A row as a task: its prompt, its right answer, and the scorer that compares a reply with it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import JsonValue

from gymfleet_envs.dataset.options import DatasetOptions
from gymfleet_envs.dataset.scorer import AnyScorer, BadGold
from gymfleet_envs.dataset.scoring import Scorers
from gymfleet_envs.tasks import TaskDataError

_ROLES: Final = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}
_PICTURES: Final = ("images", "videos", "audios")
_MAX_PRIVATE_BYTES: Final = 65_536
"""Size of the data sealed for the reward service, as JSON."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a prompt."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Row:
    """A task. Its `repr` leaves out everything that only the reward service and the scorer may know."""

    messages: tuple[Message, ...]
    data_source: str
    scorer: AnyScorer = field(repr=False, compare=False)
    right: Any = field(repr=False, compare=False)
    """The right answer as the scorer takes it."""
    private: Mapping[str, JsonValue] = field(repr=False, compare=False)
    """Data for the reward service: `ground_truth`, `data_source`, and `style` and `extra_info` if there are any."""
    solution: str = field(default="", repr=False, compare=False)

    @property
    def prompt(self) -> str:
        """The messages as one text, which names their roles if there is more than a system and a user message."""
        contents = [message.content for message in self.messages]
        if len(contents) == 1 or [message.role for message in self.messages] == ["system", "user"]:
            return "\n\n".join(contents)
        return "\n\n".join(f"{_ROLES[message.role]}: {message.content}" for message in self.messages)

    @property
    def fingerprint(self) -> str:
        """A text that is equal for rows with the same prompt, however it is spaced."""
        return json.dumps([[message.role, " ".join(message.content.split())] for message in self.messages])


def row_of(record: Mapping[str, Any], place: str, options: DatasetOptions, scorers: Scorers) -> Row:
    """Read a record. Raises `TaskDataError`, which names the record's place and never its right answer."""
    messages = _messages(_at(record, options.prompt_key, place), options, place)
    if pictures := [key for key in _PICTURES if record.get(key)]:
        raise TaskDataError(f"{place}: the row has {pictures[0]}; only texts can be played")
    data_source = _text(record, options.data_source_key, place) or options.data_source
    named = _text(record, options.scorer_key, place)
    scorer = scorers.named(named, place) if named else scorers.of(data_source, place)
    gold = scorer.gold(_at(record, options.ground_truth_key, place))
    try:
        right = scorer.checked(gold)
    except BadGold as error:
        raise TaskDataError(f"{place}: {options.ground_truth_key} does not suit {_name(scorer)}: {error}") from None
    solution = _text(record, options.solution_key, place) if options.solution_key else ""
    private = _private(record, gold, data_source, options, place)
    return Row(messages, data_source, scorer, right, private, solution)


def _messages(told: Any, options: DatasetOptions, place: str) -> tuple[Message, ...]:
    key = options.prompt_key
    listed = [{"role": "user", "content": told}] if isinstance(told, str) else told
    if not isinstance(listed, Sequence) or not listed:
        raise TaskDataError(f"{place}: {key} is neither a text nor a list of messages")
    found = []
    for number, message in enumerate(listed):
        role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        where = f"{place}: {key}.{number}"
        if not isinstance(role, str) or role not in _ROLES:
            raise TaskDataError(f"{where}.role is {str(role)[:40]!r}; known: {', '.join(_ROLES)}")
        if not isinstance(content, str) or not content.strip():
            raise TaskDataError(f"{where}.content is no text, or empty")
        if not _is_unicode(content):
            raise TaskDataError(f"{where}.content has half of a surrogate pair, which is no character")
        found.append(Message(role, content))
    if found[-1].role not in ("user", "tool"):
        raise TaskDataError(f"{place}: {key} ends with the {found[-1].role}'s message; there is nothing to answer")
    if (size := sum(len(message.content) for message in found)) > options.max_prompt_chars:
        raise TaskDataError(f"{place}: {key} has {size} characters; max_prompt_chars is {options.max_prompt_chars}")
    return tuple(found)


def _private(
    record: Mapping[str, Any], gold: JsonValue, data_source: str, options: DatasetOptions, place: str
) -> dict[str, JsonValue]:
    told: dict[str, JsonValue] = {"ground_truth": gold, "data_source": data_source}
    reward_model = record.get("reward_model")
    if isinstance(reward_model, dict) and isinstance(style := reward_model.get("style"), str):
        told["style"] = style
    if options.extra_info_key and (extra := _looked_up(record, options.extra_info_key)) is not None:
        told["extra_info"] = extra
    try:
        size = len(json.dumps(told, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError):
        raise TaskDataError(
            f"{place}: {options.extra_info_key} is no JSON; extra_info_key = '' leaves it out"
        ) from None
    if size > _MAX_PRIVATE_BYTES:
        raise TaskDataError(
            f"{place}: right answer and {options.extra_info_key} have {size} bytes, {_MAX_PRIVATE_BYTES} at most; "
            "extra_info_key = '' leaves the latter out"
        )
    return told


def _at(record: Mapping[str, Any], key: str, place: str) -> Any:
    found = _looked_up(record, key)
    if found is None:
        raise TaskDataError(f"{place}: {key} is missing; the row has {', '.join(map(str, record)) or 'nothing'}"[:400])
    return found


def _text(record: Mapping[str, Any], key: str, place: str) -> str:
    found = _looked_up(record, key)
    if found is not None and not isinstance(found, str):
        raise TaskDataError(f"{place}: {key} is {type(found).__name__}, no text")
    return found or ""


def _looked_up(record: Mapping[str, Any], key: str) -> Any:
    found: Any = record
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _name(scorer: AnyScorer) -> str:
    return type(scorer).__module__.rpartition(".")[2]


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
