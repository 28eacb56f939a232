"""The loops of the SDK's retries: what is repeated, after which pause, and what ends it."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from gymfleet_client._retries import GrowingPause, repeated, repeated_blocking
from gymfleet_client.errors import DeadlinePassed, TransportError


class Service:
    """Fails with the given errors, then answers."""

    def __init__(self, *errors: BaseException) -> None:
        self._errors = list(errors)
        self.calls = 0

    async def call(self) -> str:
        return self.blocking()

    def blocking(self) -> str:
        self.calls += 1
        if self._errors:
            raise self._errors.pop(0)
        return "answer"


def rule(growing: GrowingPause) -> Callable[[Exception], float | None]:
    return lambda error: None if isinstance(error, DeadlinePassed) else growing.next_s()


async def asynchronously(service: Service, pause_s: Callable[[Exception], float | None]) -> str:
    return await repeated(service.call, pause_s)


async def blocking(service: Service, pause_s: Callable[[Exception], float | None]) -> str:
    return repeated_blocking(service.blocking, pause_s)


EITHER_WAY = pytest.mark.parametrize("call", [asynchronously, blocking])
Way = Callable[[Service, Callable[[Exception], float | None]], Awaitable[str]]


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", note)
    monkeypatch.setattr(time, "sleep", pauses.append)
    return pauses


@EITHER_WAY
async def test_a_call_is_repeated_after_growing_pauses(call: Way, slept: list[float]) -> None:
    service = Service(*[TransportError("lost")] * 5)

    assert await call(service, rule(GrowingPause(0.1, 0.5))) == "answer"

    assert slept == [0.1, 0.2, 0.4, 0.5, 0.5]


@EITHER_WAY
@pytest.mark.parametrize("error", [DeadlinePassed("late"), asyncio.CancelledError()])
async def test_what_the_rule_does_not_repeat_is_raised(call: Way, error: BaseException, slept: list[float]) -> None:
    service = Service(TransportError("lost"), error)

    with pytest.raises(type(error)) as caught:
        await call(service, rule(GrowingPause(0.1, 0.5)))

    assert caught.value is error
    assert (service.calls, len(slept)) == (2, 1)


async def test_a_cancellation_ends_a_pause() -> None:
    service = Service(TransportError("lost"))
    task = asyncio.create_task(repeated(service.call, lambda _: 60.0))
    await asyncio.sleep(0.01)

    task.cancel()
    done, _ = await asyncio.wait([task], timeout=5.0)

    assert done == {task}
    assert task.cancelled()
    assert service.calls == 1
