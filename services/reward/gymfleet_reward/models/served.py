"""Reward models behind vLLM's server, which is sent tokens: `/classify` for episodes, `/pooling` for turns.

The server is not trusted: answers are bounded in size and time, and must contain a number for each token or text that
was sent. The key appears in the request's header and nowhere else.
"""

import time
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import httpx
import msgspec
from gymfleet_kit.chat.transcripts import Transcript
from gymfleet_kit.chat_endpoint import KeyUnreadable, read_key

from gymfleet_reward.component import ComponentError
from gymfleet_reward.models.embedded import Values
from gymfleet_reward.models.tables import ServedTable, UnusableModel

T = TypeVar("T", bound=msgspec.Struct)
_OK: Final = 200
_PASSING: Final = frozenset({408, 409, 425, 429, *range(500, 600)})
"""Statuses after which another attempt may succeed."""
_ANSWER_BYTES: Final = 1 << 20
_BYTES_PER_TOKEN: Final = 64


class ServerFailed(Exception):
    """No usable answer; another attempt may bring one."""


class _Class(msgspec.Struct):
    index: int
    probs: list[float]


class _Classes(msgspec.Struct):
    data: list[_Class]


class _Tokens(msgspec.Struct):
    index: int
    data: list[list[float]]


class _Pooled(msgspec.Struct):
    data: list[_Tokens]


class ServedModel:
    """A model on a server.

    Args:
        name: for messages.
        table: what the operator set.

    Raises:
        UnusableModel: its key cannot be read.
    """

    def __init__(self, name: str, table: ServedTable) -> None:
        self._name = name
        self._table = table
        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if table.key_file is not None:
            try:
                headers["Authorization"] = f"Bearer {read_key(table.key_file)}"
            except KeyUnreadable as error:
                raise UnusableModel(f"key_file {error}") from None
        self._client = httpx.Client(
            base_url=str(table.url),
            headers=headers,
            timeout=table.timeout_s,
            limits=httpx.Limits(max_connections=table.concurrency),
            follow_redirects=False,  # the key is for this host alone
            trust_env=False,
        )

    def start(self) -> None:
        """Do nothing: the server is asked nothing before there is an episode."""

    def loading(self) -> bool:
        """Return False: loading the model is the server's business."""
        return False

    def lack(self) -> str | None:
        """Return None: a server that is away fails only the episodes that need it."""
        return None

    def values(self, transcripts: Sequence[Transcript]) -> list[Values | BaseException]:
        """Return the numbers of each transcript, or why there are none; blocks."""
        found: list[Values | BaseException] = []
        for start in range(0, len(transcripts), self._table.batch_size):
            batch = transcripts[start : start + self._table.batch_size]
            try:
                found += self._by_turns(batch) if self._table.scores == "turns" else self._whole(batch)
            except (ServerFailed, ComponentError) as error:
                found += [error] * len(batch)
        return found

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _whole(self, batch: Sequence[Transcript]) -> list[Values]:
        rows = self._asked("/classify", {}, batch, _Classes).data
        self._require(len(batch), [row.index for row in rows], {len(row.probs) for row in rows})
        return [tuple(row.probs) for row in sorted(rows, key=lambda row: row.index)]

    def _by_turns(self, batch: Sequence[Transcript]) -> list[Values]:
        rows = self._asked("/pooling", {"task": "token_classify"}, batch, _Pooled).data
        self._require(len(batch), [row.index for row in rows], {len(token) for row in rows for token in row.data})
        found: list[Values] = []
        for one, row in zip(batch, sorted(rows, key=lambda row: row.index), strict=True):
            if len(row.data) != len(one.ids):
                raise ServerFailed(
                    f"the server of {self._name!r} answered for {len(row.data)} of {len(one.ids)} tokens"
                )
            found.append(tuple(row.data[end][0] for end in one.ends))
        return found

    def _require(self, num_asked: int, indices: list[int], labels: set[int]) -> None:
        if sorted(indices) != list(range(num_asked)):
            raise ServerFailed(f"the server of {self._name!r} answered for {len(indices)} of {num_asked} transcripts")
        if labels - {1}:
            raise ComponentError(
                f"the reward model {self._name!r} has {max(labels)} labels: a reward model has a head with one"
            )

    def _asked(self, path: str, more: dict[str, Any], batch: Sequence[Transcript], form: type[T]) -> T:
        # `use_activation`: the head's own numbers, which vLLM would otherwise put through a sigmoid.
        body = {"model": self._table.model, "input": [list(one.ids) for one in batch], "use_activation": False, **more}
        limit = _ANSWER_BYTES + _BYTES_PER_TOKEN * sum(len(one.ids) for one in batch)
        deadline = time.monotonic() + self._table.timeout_s
        try:
            with self._client.stream("POST", path, content=msgspec.json.encode(body)) as response:
                answer = bytearray()
                for piece in response.iter_raw():
                    answer += piece
                    if len(answer) > limit:
                        raise ServerFailed(f"the server of {self._name!r} answered more than {limit} bytes")
                    if time.monotonic() > deadline:
                        raise ServerFailed(f"the server of {self._name!r} took longer than {self._table.timeout_s:g} s")
        except httpx.HTTPError as error:  # its text may hold what the other side sent
            raise ServerFailed(f"the server of {self._name!r} is away: {type(error).__name__}") from None
        if response.status_code != _OK:
            kind = ServerFailed if response.status_code in _PASSING else ComponentError
            raise kind(f"the server of {self._name!r} answered {response.status_code}")
        try:
            return msgspec.json.decode(answer, type=form)
        except (msgspec.DecodeError, RecursionError):  # NaN is no JSON
            raise ServerFailed(f"the server of {self._name!r} answered no numbers") from None
