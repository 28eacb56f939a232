"""Session ids that route themselves: signed, so that no gateway needs a table to trust them."""

import base64
import hashlib
import hmac
from dataclasses import dataclass
from typing import Final

from gymfleet_contracts.session import MAX_SESSION_ID_CHARS
from gymfleet_kit.recent import Recent
from gymfleet_kit.session_problems import UnknownSession

_PURPOSE: Final = b"gymfleet session id, version 1"
_TAG_BYTES: Final = 16
_TAG_CHARS: Final = 22
_SEPARATOR: Final = "."
_SEAT: Final = "~"
"""Between a game's session and a seat; neither has it in its name."""


@dataclass(frozen=True, slots=True)
class SessionRef:
    """The contents of a session id: the environment, the replica, and the session's id on that replica."""

    env: str
    replica: str
    upstream: str
    seat: str = ""
    """The player of a game to whom the id was given; empty where it stands for the whole session."""
    session_id: str = ""
    """The id of the whole session, in the id of a seat."""


class SessionIds:
    """Makes and reads ids `env.replica.upstream.tag` and, for one player of a game, `env.replica.upstream~seat.tag`.

    `tag` is HMAC-SHA256 over the tenant's name and the rest, cut to 128 bits, compared
    in constant time: an id that was issued to one tenant does not exist for another.

    Args:
        secret: signs new ids.
        previous: older secrets whose ids are still accepted.
    """

    def __init__(self, secret: str, *previous: str) -> None:
        self._key, *self._other_keys = (hmac.digest(text.encode(), _PURPOSE, "sha256") for text in (secret, *previous))
        # Ids with a verified signature: a session's next step need not verify it again.
        self._known: Recent[tuple[str, str], SessionRef] = Recent(max_size=16_384)

    def issue(self, env: str, replica: str, upstream: str, tenant: str) -> str:
        """Return the id of a session that `replica` calls `upstream`. Raises ValueError where it cannot."""
        if _SEAT in upstream:
            raise ValueError(f"the env server's session id {upstream!r} holds {_SEAT!r}, which stands before a seat")
        body = _SEPARATOR.join((env, replica, upstream))
        session_id = f"{body}{_SEPARATOR}{_tag(self._key, body, tenant)}"
        if len(session_id) > MAX_SESSION_ID_CHARS:
            raise ValueError(
                f"the env server's session id is {len(upstream)} characters long; there is no room to sign it"
            )
        return session_id

    def seat(self, session_id: str, seat: str, tenant: str) -> str:
        """Return the id by which a player of a game knows its session: it gives no access to the whole session.

        Raises `UnknownSession`.
        """
        whole, _, tag = session_id.rpartition(_SEPARATOR)
        key = self._signed(whole, tag, tenant)  # the same, so that the session's id follows from the seat's
        if key is None:
            raise UnknownSession("this session id was not issued here")
        body = f"{whole}{_SEAT}{seat}"
        return f"{body}{_SEPARATOR}{_tag(key, body, tenant)}"

    def read(self, session_id: str, tenant: str) -> SessionRef:
        """Read an id. Raises `UnknownSession` if it was not signed with one of the secrets for this tenant."""
        if (known := self._known.get((session_id, tenant))) is not None:
            return known
        body, _, tag = session_id.rpartition(_SEPARATOR)
        key = None if len(session_id) > MAX_SESSION_ID_CHARS else self._signed(body, tag, tenant)
        if key is None:
            raise UnknownSession("this session id was not issued here; open a session and use the id as it is given")
        env, replica, upstream = body.split(_SEPARATOR, 2)
        ref = SessionRef(env=env, replica=replica, upstream=upstream)
        if _SEAT in upstream:
            whole, _, seat = body.rpartition(_SEAT)
            ref = SessionRef(env, replica, upstream, seat, f"{whole}{_SEPARATOR}{_tag(key, whole, tenant)}")
        self._known[session_id, tenant] = ref
        return ref

    def forget(self, session_id: str, tenant: str) -> None:
        """Drop the id of a session that is over from the cache."""
        self._known.pop((session_id, tenant), None)

    def _signed(self, body: str, tag: str, tenant: str) -> bytes | None:
        """Return the key that the body was signed with; None if it was none of these."""
        given = tag.encode()
        keys = (self._key, *self._other_keys)
        return next((key for key in keys if hmac.compare_digest(given, _tag(key, body, tenant).encode())), None)


def label(session_id: str) -> str:
    """Return the id for logs and traces: without its signature it gives no access."""
    return session_id.rpartition(_SEPARATOR)[0]


def replica_key(url: str) -> str:
    """Return a replica's name in session ids: the same in every gateway that is configured with the same URL."""
    digest = hashlib.sha256(url.rstrip("/").encode()).digest()
    return base64.urlsafe_b64encode(digest[:6]).decode()


def _tag(key: bytes, body: str, tenant: str) -> str:
    signed = f"{tenant}\n{body}"
    digest = hmac.digest(key, signed.encode(errors="surrogatepass"), "sha256")
    return base64.urlsafe_b64encode(digest[:_TAG_BYTES]).decode()[:_TAG_CHARS]
