"""API keys: `gf_<id>_<secret>`. Whoever checks a key stores only the SHA-256 of the whole key.

The secret is 256 random bits, too many to try out. A slow password hash would therefore protect nothing that SHA-256
does not, and would cost time at every request.
"""

import hashlib
import re
import secrets
from enum import StrEnum
from typing import Final

KEY_ID_PATTERN: Final = r"^[a-z0-9][a-z0-9-]{0,31}$"
_SECRET_BYTES: Final = 32
_KEY: Final = re.compile(r"gf_([a-z0-9][a-z0-9-]{0,31})_[A-Za-z0-9_-]{43}")


class Scope(StrEnum):
    """What a key may be used for."""

    READ = "read"
    """Ask which environments there are."""
    PLAY = "play"
    """Open sessions, play and close them; includes `read`."""


def new_key(key_id: str) -> str:
    """Return a fresh key. Raises ValueError for an id that no key can have."""
    if re.fullmatch(KEY_ID_PATTERN, key_id) is None:
        raise ValueError(f"a key's id is 1 to 32 of a-z, 0-9 and -, and begins with no -; not {key_id[:64]!r}")
    return f"gf_{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def key_id(key: str) -> str | None:
    """Return the id in a key; None for a text that is not a key."""
    found = _KEY.fullmatch(key)
    return found[1] if found else None


def key_digest(key: str) -> str:
    """Return the SHA-256, in hex, that stands for the key."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()
