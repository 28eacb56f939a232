"""What is sealed for the reward service."""

import base64
import subprocess
import sys
from typing import Any

import pytest
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from gymfleet_contracts.session import MAX_SEALED_CHARS, TaskRef
from gymfleet_kit.sealing import Opener, Sealer, SealError, new_private_key, private_key_of
from pydantic_settings import SettingsError

TASK = TaskRef(env="maze", split="train", level="tiny", task_id="maze.tiny.train.3", seed=7)


@pytest.fixture
def opener() -> Opener:
    return Opener(new_private_key())


@pytest.fixture
def sealer(opener: Opener) -> Sealer:
    return Sealer(opener.public_key)


def test_it_is_opened_by_the_private_key_alone(sealer: Sealer, opener: Opener) -> None:
    data: dict[str, Any] = {"answer": "42", "steps": [1, 2.5, None]}

    sealed = sealer.seal(TASK, 3, data)

    assert opener.open(sealed, TASK) == (3, data)
    assert "42" not in base64.urlsafe_b64decode(sealed).decode("latin-1")
    with pytest.raises(SealError, match="sealed for another key"):
        Opener(new_private_key()).open(sealed, TASK)


def test_it_is_of_one_task(sealer: Sealer, opener: Opener) -> None:
    sealed = sealer.seal(TASK, 0, {"answer": 1})

    for change in ({"task_id": "maze.tiny.train.4"}, {"seed": 8}, {"env": "other"}):
        with pytest.raises(SealError, match="of another task"):
            opener.open(sealed, TASK.model_copy(update=change))


@pytest.mark.parametrize("place", [0, 40, -1])
def test_one_changed_byte_is_noticed(sealer: Sealer, opener: Opener, place: int) -> None:
    raw = bytearray(base64.urlsafe_b64decode(sealer.seal(TASK, 0, {"answer": 1})))
    raw[place] ^= 1

    with pytest.raises(SealError, match="changed on its way"):
        opener.open(base64.urlsafe_b64encode(raw).decode(), TASK)


@pytest.mark.parametrize("text", ["", "no base64 at all!", "AAAA", "A" * 200])
def test_what_was_never_sealed_is_refused(opener: Opener, text: str) -> None:
    with pytest.raises(SealError):
        opener.open(text, TASK)


@pytest.mark.parametrize(
    "text", [b"[]", b"{}", b'{"task": 1, "index": 0, "data": {}}', b"nothing", b"1" * 5000, b"[" * 100_000]
)
def test_what_somebody_else_sealed_is_refused_if_it_is_something_else(opener: Opener, text: bytes) -> None:
    suite = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.CHACHA20_POLY1305)
    key = X25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(opener.public_key))
    sealed = suite.encrypt(text, key, info=b"gymfleet private data 1")

    with pytest.raises(SealError):
        opener.open(base64.urlsafe_b64encode(sealed).decode(), TASK)


def test_its_length_does_not_tell_short_answers_apart(sealer: Sealer) -> None:
    assert len({len(sealer.seal(TASK, 0, {"answer": "x" * length})) for length in range(200)}) == 1


def test_two_seals_of_the_same_differ(sealer: Sealer) -> None:
    assert sealer.seal(TASK, 0, {"answer": 1}) != sealer.seal(TASK, 0, {"answer": 1})


@pytest.mark.parametrize("data", [{"answer": "x" * MAX_SEALED_CHARS}, {"answer": float("nan")}])
def test_what_is_too_large_or_no_json_is_refused(sealer: Sealer, data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"131072 is the limit|not JSON compliant"):
        sealer.seal(TASK, 0, data)


@pytest.mark.parametrize("key", ["", "short", "A" * 100])
def test_a_text_that_is_no_key_is_refused(key: str) -> None:
    for kind in (Sealer, Opener):
        with pytest.raises(SettingsError, match="32 bytes in base64"):
            kind(key)


def test_a_pair_is_printed_as_settings() -> None:
    printed = subprocess.run([sys.executable, "-m", "gymfleet_kit.sealing"], capture_output=True, text=True, check=True)
    settings = dict(line.split("=", 1) for line in printed.stdout.splitlines())

    opener = Opener(settings["GYMFLEET_REWARD_SEAL_KEY"])
    sealed = Sealer(settings["GYMFLEET_ENV_SEAL_KEY"]).seal(TASK, 1, {})

    assert opener.open(sealed, TASK) == (1, {})


def test_the_same_secret_is_the_same_key() -> None:
    assert private_key_of(b"a" * 32) == private_key_of(b"a" * 32) != private_key_of(b"b" * 32)
