"""Session ids: they are unguessable, and name the server, the shard and which of the shard's lives they belong to."""

import re
import secrets
from typing import Final, NamedTuple

_ID: Final = re.compile(r"([0-9a-f]{12})-(\d{1,3})-(\d{1,9})-[0-9a-f]{32}")
TAIL_CHARS: Final = 33
"""Number of characters after the shard's prefix in an id."""


class ShardId(NamedTuple):
    """The shard that a session lives on, and which of the shard's lives."""

    instance: str
    shard: int
    life: int


def new_instance() -> str:
    """Return a name for one run of the server: ids of an earlier run are recognised as lost."""
    return secrets.token_hex(6)


def prefix(shard: ShardId) -> str:
    """Return the prefix of the ids of a shard's sessions."""
    return f"{shard.instance}-{shard.shard}-{shard.life}"


def shard_of(session_id: str) -> ShardId | None:
    """Return the shard where the session lives or lived; None when this was never a session id."""
    match = _ID.fullmatch(session_id)
    return None if match is None else ShardId(match[1], int(match[2]), int(match[3]))
