"""Counting sessions from two sides: what is explained by calls on their way stands, the rest is the server's word."""

import pytest
from gymfleet_contracts.session import ServerLoad
from gymfleet_env_gateway import occupancy as module
from gymfleet_env_gateway.occupancy import Occupancy

from tests.fixtures.standing_clock import StandingClock, stop_time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    return stop_time(module, monkeypatch)


def load(**owners: int) -> ServerLoad:
    return ServerLoad(max_sessions=9, sessions={"maze": owners})


def opened(occupancy: Occupancy, owner: str = "a") -> None:
    occupancy.begins("maze", owner)
    occupancy.add("maze", owner, 1)
    occupancy.ends("maze", owner)


def counted(occupancy: Occupancy, owner: str = "a") -> int:
    return occupancy.counts().get(("maze", owner), 0)


def test_a_quiet_server_is_believed(clock: StandingClock) -> None:
    occupancy = Occupancy()
    opened(occupancy)
    clock.now += 1

    occupancy.asks()
    occupancy.hears(load(b=3))  # the lease of a's ran out; another gateway opened three for b

    assert (counted(occupancy), counted(occupancy, "b"), occupancy.slots({})) == (0, 3, 3)


@pytest.mark.parametrize("said", [0, 1, 2])
def test_what_calls_on_their_way_explain_stands(clock: StandingClock, said: int) -> None:
    occupancy = Occupancy()
    opened(occupancy)
    clock.now += 1
    occupancy.begins("maze", "a")  # a close, or another open: the server may have carried it out

    occupancy.asks()
    occupancy.hears(load(a=said))

    assert counted(occupancy) == 1
    occupancy.ends("maze", "a")


def test_what_began_while_the_answer_was_on_its_way_is_in_doubt_too(clock: StandingClock) -> None:
    occupancy = Occupancy()
    opened(occupancy)
    clock.now += 1

    occupancy.asks()
    occupancy.begins("maze", "a")
    occupancy.add("maze", "a", -1)
    occupancy.ends("maze", "a")
    occupancy.hears(load(a=1))

    assert counted(occupancy) == 0


def test_the_servers_figures_may_be_a_tenth_of_a_second_old(clock: StandingClock) -> None:
    occupancy = Occupancy()
    opened(occupancy)
    clock.now += 0.1

    occupancy.asks()
    occupancy.hears(load())

    assert counted(occupancy) == 1


def test_more_than_the_doubt_explains_is_the_servers_word(clock: StandingClock) -> None:
    occupancy = Occupancy()
    clock.now += 1
    occupancy.begins("maze", "a")

    occupancy.asks()
    occupancy.hears(load(a=5))

    assert counted(occupancy) == 4, "five, of which one may be the open that is under way"


def test_a_dead_server_holds_nothing() -> None:
    occupancy = Occupancy()
    opened(occupancy)

    occupancy.clear()

    assert occupancy.slots({}) == 0
