"""Retries: their pauses, their end, what they say, and what is not repeated."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat

import pytest
from gymfleet_kit.retries import Retries
from structlog.testing import capture_logs


class Away(Exception):
    """May pass."""

    def __init__(self, text: str = "", *, back_in_s: float | None = None) -> None:
        super().__init__(text)
        self.back_in_s = back_in_s


class Gone(Away):
    """Does not pass."""


class Service:
    """Raises what it was given, one after the other, then answers."""

    def __init__(self, errors: Iterable[BaseException]) -> None:
        self._errors: Iterator[BaseException] = iter(errors)
        self.calls = 0

    async def __call__(self) -> str:
        return self.blocking()

    def blocking(self) -> str:
        self.calls += 1
        for error in self._errors:
            raise error
        return "answer"


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses, which take no time."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note)
    monkeypatch.setattr(time, "sleep", pauses.append)
    return pauses


def longest(_: float, high: float) -> float:
    return high


def shortest(low: float, _: float) -> float:
    return low


async def test_a_success_needs_no_pause(slept: list[float]) -> None:
    assert await Retries("service.away", on=Away).call(Service([])) == "answer"
    assert slept == []


@pytest.mark.parametrize(
    ("draw", "pauses"),
    [
        pytest.param(longest, [0.1, 0.2, 0.4, 0.5, 0.5], id="at most doubling, up to the longest"),
        pytest.param(shortest, [0.05, 0.05, 0.05, 0.05, 0.05], id="at least half of the first"),
    ],
)
async def test_pauses_grow_within_bounds(
    draw: Callable[[float, float], float], pauses: list[float], slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.uniform", draw)
    service = Service([Away()] * 5)

    assert await Retries("service.away", on=Away, first_pause_s=0.1, longest_pause_s=0.5).call(service) == "answer"

    assert slept == pytest.approx(pauses)


async def test_pauses_keep_growing_over_the_calls_of_one_outage(
    slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.uniform", longest)
    retries = Retries("service.away", on=Away, first_pause_s=0.1)
    for _ in range(2):
        with pytest.raises(Away):
            await retries.call(Service(repeat(Away())), attempts=2)
    await retries.call(Service([Away()]))
    await retries.call(Service([Away()]))

    assert slept == pytest.approx([0.1, 0.2, 0.4, 0.1]), "the success in between ended the outage"


async def test_the_error_may_ask_for_a_pause(slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    retries = Retries("service.away", on=Away, asked_s=lambda error: error.back_in_s)
    for draw in (shortest, longest):
        monkeypatch.setattr("random.uniform", draw)
        await retries.call(Service([Away(back_in_s=7.0)]))

    assert slept == pytest.approx([7.0, 7.7]), "never earlier than it asked for"


async def test_a_pause_that_was_asked_for_and_is_too_long_is_not_begun(slept: list[float]) -> None:
    service = Service([Away(back_in_s=7.0)])

    with pytest.raises(Away):
        await Retries("service.away", on=Away, asked_s=lambda error: error.back_in_s).call(service, timeout_s=6.9)

    assert (service.calls, slept) == (1, [])


async def test_tries_end() -> None:
    service = Service(Away(str(number)) for number in range(9))

    with pytest.raises(Away, match="2"):
        await Retries("service.away", on=Away, first_pause_s=0.001).call(service, attempts=3)

    assert service.calls == 3


async def test_time_ends_with_one_more_try() -> None:
    tries: list[float] = []
    began = time.monotonic()

    async def once() -> None:
        tries.append(time.monotonic() - began)
        raise Away

    with pytest.raises(Away):
        await Retries("service.away", on=Away, first_pause_s=0.05, longest_pause_s=30.0).call(once, timeout_s=0.3)

    assert 2 <= len(tries) < 12
    assert 0.29 <= tries[-1] < 0.6, "the last pause was cut, and its try was made"


async def test_the_time_of_the_first_try_counts() -> None:
    async def slow() -> None:
        await asyncio.sleep(0.02)
        raise Away

    with pytest.raises(Away), capture_logs() as logs:
        await Retries("service.away", on=Away).call(slow, timeout_s=0.01)

    assert logs == [], "nothing was repeated"


@pytest.mark.parametrize("error", [Gone("for good"), KeyError("a bug"), asyncio.CancelledError()])
@pytest.mark.parametrize("before", [0, 2])
async def test_other_errors_are_raised_at_once(error: BaseException, before: int, slept: list[float]) -> None:
    service = Service(chain(repeat(Away(), before), [error]))

    with pytest.raises(type(error)) as caught:
        await Retries("service.away", on=Away, unless=Gone).call(service)

    assert caught.value is error
    assert (service.calls, len(slept)) == (before + 1, before)


async def test_a_cancellation_ends_a_pause() -> None:
    service = Service(repeat(Away()))
    task = asyncio.create_task(Retries("service.away", on=Away, first_pause_s=60.0, longest_pause_s=60.0).call(service))
    await asyncio.sleep(0.01)

    task.cancel()
    done, _ = await asyncio.wait([task], timeout=5.0)

    assert done == {task}
    assert task.cancelled()
    assert service.calls == 1


async def test_an_outage_is_logged_once_and_so_is_its_end(slept: list[float]) -> None:
    retries = Retries("service.away", on=Away, ended="service.back", bound={"name": "maze"})

    with capture_logs() as logs:
        with pytest.raises(Away):
            await retries.call(Service(repeat(Away("refused"))), attempts=4)
        await retries.call(Service([Away("still refused")]))
        await retries.call(Service([]))

    lost, back = logs
    assert lost == {
        "event": "service.away", "log_level": "warning", "name": "maze",
        "reason": "refused", "pause_s": round(slept[0], 3),
    }  # fmt: skip
    assert (back["event"], back["name"]) == ("service.back", "maze")
    assert back["away_s"] >= 0


async def test_calls_that_log_their_own_failures_are_not_logged_twice(slept: list[float]) -> None:
    with capture_logs() as logs:
        await Retries(None, on=Away).call(Service([Away()]))

    assert (logs, len(slept)) == ([], 1)


def test_what_blocks_is_repeated_in_the_same_way(slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", longest)
    service = Service([Away("refused"), Away(), Away()])

    with capture_logs() as logs:
        answer = Retries("service.away", on=Away, first_pause_s=0.1).call_blocking(service.blocking, attempts=4)

    assert answer == "answer"
    assert slept == pytest.approx([0.1, 0.2, 0.4])
    assert [(line["event"], line["reason"]) for line in logs] == [("service.away", "refused")]
    with pytest.raises(Away):
        Retries("service.away", on=Away).call_blocking(Service(repeat(Away())).blocking, attempts=2)
