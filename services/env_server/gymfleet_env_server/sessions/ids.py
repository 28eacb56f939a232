"""Session ids, which are unguessable and name the server, the shard, the shard's life and the number of slots.

The front counts the slots that sessions take, and knows nothing else of a session.
"""

import re
import secrets
from typing import Final, NamedTuple

_SLOTS: Final = re.compile(r"[0-9a-f]{2}")
_ID: Final = re.compile(r"([0-9a-f]{12})-(\d{1,3})-(\d{1,9})-[0-9a-f]{32}")
TAIL_CHARS: Final = 33
"""Number of characters after the shard's prefix in an id."""
_SLOTS_CHARS: Final = 2
_RANDOM_BYTES: Final = 15


class ShardId(NamedTuple):
    """The shard that a session lives on, and which of the shard's lives."""

    instance: str
    shard: int
    life: int


def new_instance() -> str:
    """Return a name for one run of the server: ids of an earlier run are recognised as lost."""
    return secrets.token_hex(6)


def new_id(shard_prefix: str, slots: int) -> str:
    """Return an id for a session of the shard that takes `slots` slots, at most `MAX_SLOTS`."""
    return f"{shard_prefix}-{slots:0{_SLOTS_CHARS}x}{secrets.token_hex(_RANDOM_BYTES)}"


def slots_of(session_id: str) -> int:
    """Return the number of slots that the session takes; 1 when this was never a session id."""
    digits = session_id[1 - TAIL_CHARS :][:_SLOTS_CHARS]
    return max(int(digits, 16), 1) if _SLOTS.fullmatch(digits) else 1


def prefix(shard: ShardId) -> str:
    """Return the prefix of the ids of a shard's sessions."""
    return f"{shard.instance}-{shard.shard}-{shard.life}"


def shard_of(session_id: str) -> ShardId | None:
    """Return the shard where the session lives or lived; None when this was never a session id."""
    match = _ID.fullmatch(session_id)
    return None if match is None else ShardId(match[1], int(match[2]), int(match[3]))
