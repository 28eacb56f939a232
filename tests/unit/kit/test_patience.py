"""Sitting through an absence of Redis."""

from collections.abc import Iterator

import pytest
from gymfleet_kit.streams import Patience
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from structlog.testing import capture_logs


class Flaky:
    """Raises what it was given, one after the other, then answers."""

    def __init__(self, *errors: RedisError) -> None:
        self._errors: Iterator[RedisError] = iter(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        for error in self._errors:
            raise error
        return "answer"


async def test_an_outage_is_waited_out_and_logged_once() -> None:
    flaky = Flaky(RedisConnectionError("gone"), RedisTimeoutError("slow"), BusyLoadingError("reading its file"))

    with capture_logs() as logs:
        patience = Patience(stream="s")
        assert await patience.call(flaky, timeout_s=60) == "answer"
        assert await patience.call(flaky, timeout_s=60) == "answer"

    assert flaky.calls == 5
    assert [(entry["event"], entry["stream"]) for entry in logs] == [("redis.lost", "s"), ("redis.returned", "s")]


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(AuthenticationError("WRONGPASS"), id="refused credentials"),
        pytest.param(ResponseError("WRONGTYPE"), id="a key of the wrong type"),
    ],
)
async def test_what_waiting_cannot_help_is_raised_at_once(error: RedisError) -> None:
    flaky = Flaky(error)

    with pytest.raises(type(error)):
        await Patience().call(flaky, timeout_s=60)

    assert flaky.calls == 1


async def test_patience_ends() -> None:
    flaky = Flaky(*(RedisConnectionError("gone") for _ in range(100)))

    with pytest.raises(RedisConnectionError):
        await Patience().call(flaky, timeout_s=0.2)

    assert flaky.calls < 10, "with pauses, not in a spin"
