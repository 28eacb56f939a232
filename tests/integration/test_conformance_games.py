"""The kit's checks of games: ours keeps them, and each gateway that goes wrong is caught by those meant for it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pytest
from gymfleet_conformance import Options, Protocol, Section, Verdict, checks_of, examine
from gymfleet_conformance.detect import find_targets
from gymfleet_conformance.server_under_test import ServerUnderTest
from gymfleet_env_gateway import session_proxy, session_seats
from gymfleet_env_gateway.app import build_app
from gymfleet_env_gateway.session_ids import SessionIds
from gymfleet_env_gateway.settings import GatewaySettings
from prometheus_client import CollectorRegistry

from tests.fixtures import gateway_fleet
from tests.fixtures.served_app import serving

CARDS: Final = "tests.fixtures.game_environments:Cards"
OURS: Final = {
    "cards": CARDS,
    "card_game_self_play": "gymfleet_envs.card_game.self_play:CardGameSelfPlay",
    "textarena_two_players": "gymfleet_envs.textarena.two_players:TextArenaTwoPlayers",
}
"""Games of two seats, by what they are called."""
GAMES: Final = [check.id for check in checks_of(Protocol.NATIVE) if check.group == "games"]
FOR_GAMES: Final = sorted({*GAMES} - {"games.no-seats-says-so"})


async def examined(url: str, env: str, *patterns: str) -> Section:
    async with ServerUnderTest.at(url) as site:
        [(name, target)] = await find_targets(site, Protocol.NATIVE, [env])
        return await examine(name, checks_of(Protocol.NATIVE), target, Options(patterns=patterns))


def told(section: Section, verdict: Verdict) -> dict[str, str]:
    return {one.id: one.seen for one in section.results if one.verdict is verdict}


@dataclass(frozen=True)
class Fleet:
    server: str
    gateway: str


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    logs = tmp_path_factory.mktemp("fleet")
    server = gateway_fleet.env_server(logs, "maze", *OURS.values())
    gateway = gateway_fleet.gateway(logs, [server.url])
    with gateway_fleet.running(server, gateway):
        yield Fleet(server.url, gateway.url)


@pytest.mark.parametrize("env", OURS)
async def test_ours_keeps_what_is_promised_of_games(fleet: Fleet, env: str) -> None:
    section = await examined(fleet.gateway, env, "games", "declared.game-says-what-its-seats-see", "forks", "steps")

    assert told(section, Verdict.FAILS) == {}
    assert set(FOR_GAMES) <= set(told(section, Verdict.HOLDS))


async def test_where_there_are_no_seats_it_says_why(fleet: Fleet) -> None:
    one_player = await examined(fleet.gateway, "maze", "games")
    no_gateway = await examined(fleet.server, "cards", "games")

    assert set(told(one_player, Verdict.HOLDS)) == {"games.no-seats-says-so"}
    assert set(told(no_gateway, Verdict.NOT_APPLICABLE)) == set(GAMES)
    assert told(no_gateway, Verdict.NOT_APPLICABLE)[FOR_GAMES[0]].startswith("seats are given by a gateway")


def shows_all(answer: dict[str, Any], seat: str) -> dict[str, Any]:
    """A player is shown the cards of the other."""
    del seat
    return answer


def takes_any_turn(session: dict[str, Any], seat: str, step: msgspec.Raw | None) -> None:
    """Whoever sends a step is to move."""


async def is_the_opener(call: Any, op: str, session_id: str, ref: object, body: msgspec.Raw) -> msgspec.Raw:
    """A seat's id is as good as the game's."""
    answer: msgspec.Raw = await call(op, body)
    return answer


def one_for_all(self: SessionIds, session_id: str, seat: str, tenant: str) -> str:
    """All players get the id of the game."""
    del self, seat, tenant
    return session_id


def believes(self: SessionIds, body: str, tag: str, tenant: str) -> bytes:
    """Signatures are not looked at."""
    del body, tag, tenant
    return self._key


Place = tuple[object, str]
BROKEN: Final[dict[Callable[..., Any], tuple[Place, set[str]]]] = {
    shows_all: ((session_seats, "_seen"), {"games.a-seat-sees-itself-alone", "games.players-play-it-to-its-end"}),
    takes_any_turn: ((session_seats, "_require_turn"), {"games.out-of-turn-is-refused"}),
    is_the_opener: (
        (session_proxy, "call_from_seat"),
        {*FOR_GAMES} - {"games.seats-have-ids-of-their-own", "games.a-seat-opens-no-other"},
    ),
    one_for_all: ((SessionIds, "seat"), {*FOR_GAMES} - {"games.a-seat-opens-no-other"}),
    believes: ((SessionIds, "_signed"), {"games.a-seat-opens-no-other"}),
}


@pytest.fixture(scope="module")
def own_gateway(fleet: Fleet) -> Iterator[str]:
    """A gateway in this process."""
    settings = GatewaySettings.model_validate({"replicas": [fleet.server], "secret": gateway_fleet.SECRET})
    with serving(build_app(settings, registry=CollectorRegistry()), ws="none") as url:
        yield url


@pytest.mark.parametrize("fault", BROKEN, ids=lambda fault: fault.__name__)
async def test_a_gateway_that_goes_wrong_is_caught(
    fault: Callable[..., Any], own_gateway: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place, name), by = BROKEN[fault]
    monkeypatch.setattr(place, name, fault)

    section = await examined(own_gateway, "textarena_two_players", "games")

    assert set(told(section, Verdict.FAILS)) == by
    assert all(told(section, Verdict.FAILS).values()), "every failure says what was seen"
