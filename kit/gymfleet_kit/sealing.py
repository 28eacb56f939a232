"""Private data of an environment for the reward service, such as a gold answer, sealed for the service's key.

The rollout service and clients, which carry it, can neither read nor change it. HPKE (RFC 9180) in base mode with
X25519, HKDF-SHA256 and ChaCha20-Poly1305. A seal states its task and its moment of the episode, but not who sealed it:
the public key is no secret. `python -m gymfleet_kit.sealing` prints a new pair of keys.
"""

import base64
import json
import sys
from collections.abc import Mapping
from typing import Any, Final

from gymfleet_contracts.session import MAX_SEALED_CHARS, TaskRef
from pydantic import JsonValue
from pydantic_settings import SettingsError

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives import hpke
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
except ImportError:
    raise SettingsError("sealing needs the package cryptography: install gymfleet[sealing]") from None

_SUITE: Final = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.CHACHA20_POLY1305)
_INFO: Final = b"gymfleet private data 1"
_PADDED_TO: Final = 512
"""The plain text is padded to a multiple of this many bytes, so that its length reveals little."""


class SealError(Exception):
    """The sealed data cannot be opened here. The message gives the reason, and reveals nothing of the data."""


class Sealer:
    """Seals data for one reward service. Raises `SettingsError` for a text that is not a public key."""

    def __init__(self, public_key: str) -> None:
        self._key = X25519PublicKey.from_public_bytes(_key_bytes(public_key))

    def seal(self, task: TaskRef, index: int, data: Mapping[str, JsonValue]) -> str:
        """Seal `data` of a session that has taken `index` steps. Raises ValueError if it is too large."""
        told = {"task": task.model_dump(mode="json"), "index": index, "data": dict(data)}
        text = json.dumps(told, allow_nan=False).encode()
        text += b" " * (-len(text) % _PADDED_TO)
        sealed = base64.urlsafe_b64encode(_SUITE.encrypt(text, self._key, info=_INFO)).decode()
        if len(sealed) > MAX_SEALED_CHARS:
            raise ValueError(f"private data takes {len(sealed)} characters; {MAX_SEALED_CHARS} is the limit")
        return sealed


class Opener:
    """Opens data that was sealed for a private key. Raises `SettingsError` for a text that is not a private key."""

    def __init__(self, private_key: str) -> None:
        self._key = X25519PrivateKey.from_private_bytes(_key_bytes(private_key))

    @property
    def public_key(self) -> str:
        """Return the key to seal with."""
        return _text(self._key.public_key().public_bytes_raw())

    def open(self, sealed: str, task: TaskRef) -> tuple[int, dict[str, Any]]:
        """Return the number of steps taken before the sealing, and the data. Raises `SealError`."""
        try:
            told = json.loads(_SUITE.decrypt(base64.urlsafe_b64decode(sealed), self._key, info=_INFO))
        except (InvalidTag, ValueError, RecursionError):
            raise SealError(
                "it was sealed for another key, or changed on its way: GYMFLEET_ENV_SEAL_KEY of the env servers must "
                "be the public key of GYMFLEET_REWARD_SEAL_KEY"
            ) from None
        try:
            sealed_task, index, data = TaskRef.model_validate(told["task"]), told["index"], told["data"]
        except (ValueError, TypeError, KeyError):
            raise SealError("it holds something else than an env server seals") from None
        if type(index) is not int or index < 0 or not isinstance(data, dict):
            raise SealError("it holds something else than an env server seals")
        if sealed_task != task:
            raise SealError(f"it is of another task than the episode's, {task.env} {task.task_id}")
        return index, data


def new_private_key() -> str:
    """Return a new private key."""
    return _text(X25519PrivateKey.generate().private_bytes_raw())


def private_key_of(secret: bytes) -> str:
    """Return the private key that consists of 32 secret bytes."""
    return _text(X25519PrivateKey.from_private_bytes(secret).private_bytes_raw())


def _text(key: bytes) -> str:
    return base64.urlsafe_b64encode(key).decode()


def _key_bytes(text: str) -> bytes:
    try:
        key = base64.urlsafe_b64decode(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise SettingsError("a key for sealing is 32 bytes in base64: `python -m gymfleet_kit.sealing` prints a pair")
    return key


def main() -> None:
    """Print a new pair of keys as settings."""
    private = new_private_key()
    sys.stdout.write(f"GYMFLEET_REWARD_SEAL_KEY={private}\nGYMFLEET_ENV_SEAL_KEY={Opener(private).public_key}\n")


if __name__ == "__main__":
    main()
