"""Session ids: unguessable, and they name the shard, in which of its lives, of which server."""

import re
import secrets
from typing import Final, NamedTuple

_ID: Final = re.compile(r"([0-9a-f]{12})-(\d{1,3})-(\d{1,9})-[0-9a-f]{32}")
TAIL_CHARS: Final = 33
"""What follows the shard's prefix in an id."""


class Home(NamedTuple):
    """Where a session lives."""

    instance: str
    shard: int
    life: int


def new_instance() -> str:
    """Names one run of the server: ids of an earlier run are recognised as lost."""
    return secrets.token_hex(6)


def prefix(home: Home) -> str:
    """What the ids of a shard's sessions begin with."""
    return f"{home.instance}-{home.shard}-{home.life}"


def home_of(session_id: str) -> Home | None:
    """Where the session lives or lived; None when this was never a session id."""
    match = _ID.fullmatch(session_id)
    return None if match is None else Home(match[1], int(match[2]), int(match[3]))
