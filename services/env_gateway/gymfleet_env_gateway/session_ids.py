"""Session ids that route themselves: signed, so that no gateway needs a table to trust them."""

import base64
import hashlib
import hmac
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from gymfleet_contracts.session import MAX_SESSION_ID_CHARS
from gymfleet_kit.session_problems import UnknownSession

_PURPOSE: Final = b"gymfleet session id, version 1"
_TAG_BYTES: Final = 16
_TAG_CHARS: Final = 22
_SEPARATOR: Final = "."
_MAX_KNOWN: Final = 16_384
"""Ids whose signature was found good are remembered, the latest: a session's next step need not compute it again."""


@dataclass(frozen=True, slots=True)
class SessionRef:
    """What a session id says: which environment it plays, where it lives, and under which name there."""

    env: str
    replica: str
    upstream: str


class SessionIds:
    """Makes and reads ids `env.replica.upstream.tag`.

    `tag` is HMAC-SHA256 over the tenant's name and the rest, cut to 128 bits, compared
    in constant time: what was issued to one tenant does not exist for another.

    Args:
        secret: signs what is issued.
        previous: secrets whose ids are read as well.
    """

    def __init__(self, secret: str, *previous: str) -> None:
        self._key, *self._other_keys = (hmac.digest(text.encode(), _PURPOSE, "sha256") for text in (secret, *previous))
        self._known: OrderedDict[tuple[str, str], SessionRef] = OrderedDict()

    def issue(self, env: str, replica: str, upstream: str, tenant: str) -> str:
        """The id of a session that `replica` calls `upstream`. ValueError when that is too long."""
        body = _SEPARATOR.join((env, replica, upstream))
        session_id = f"{body}{_SEPARATOR}{_tag(self._key, body, tenant)}"
        if len(session_id) > MAX_SESSION_ID_CHARS:
            raise ValueError(
                f"the env server's session id is {len(upstream)} characters long; there is no room to sign it"
            )
        return session_id

    def read(self, session_id: str, tenant: str) -> SessionRef:
        """Raises `UnknownSession` for an id that was not signed with a secret of ours for this tenant."""
        if (known := self._known.get((session_id, tenant))) is not None:
            return known
        body, _, tag = session_id.rpartition(_SEPARATOR)
        if len(session_id) > MAX_SESSION_ID_CHARS or not self._signed(body, tag, tenant):
            raise UnknownSession("this session id was not issued here; open a session and use the id as it is given")
        env, replica, upstream = body.split(_SEPARATOR, 2)
        ref = SessionRef(env=env, replica=replica, upstream=upstream)
        self._known[session_id, tenant] = ref
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)  # most likely of a session that was abandoned
        return ref

    def forget(self, session_id: str, tenant: str) -> None:
        """The session is over: its id need not be remembered."""
        self._known.pop((session_id, tenant), None)

    def _signed(self, body: str, tag: str, tenant: str) -> bool:
        given = tag.encode()
        return any(
            hmac.compare_digest(given, _tag(key, body, tenant).encode()) for key in (self._key, *self._other_keys)
        )


def label(session_id: str) -> str:
    """The id for logs and traces: without its signature it opens nothing here."""
    return session_id.rpartition(_SEPARATOR)[0]


def replica_key(url: str) -> str:
    """A replica's name in session ids: the same in every gateway that is configured with the same URL."""
    digest = hashlib.sha256(url.rstrip("/").encode()).digest()
    return base64.urlsafe_b64encode(digest[:6]).decode()


def _tag(key: bytes, body: str, tenant: str) -> str:
    signed = f"{tenant}\n{body}"
    digest = hmac.digest(key, signed.encode(errors="surrogatepass"), "sha256")
    return base64.urlsafe_b64encode(digest[:_TAG_BYTES]).decode()[:_TAG_CHARS]
