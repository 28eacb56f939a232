"""Names into replicas: several addresses, failures that change nothing, one log line per change."""

import asyncio

import pytest
import structlog
from gymfleet_kit import discovery
from gymfleet_kit.discovery import Discovery

from tests.fixtures.resolver import Resolver

NAME = "http://env.fleet:8110"


@pytest.fixture
async def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    made = Resolver()
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", made)
    return made


def make(*names: str, replicas: tuple[str, ...] = ()) -> Discovery:
    return Discovery(names, fixed=replicas)


async def test_each_address_of_a_name_is_a_replica_in_an_order_of_its_own(resolver: Resolver) -> None:
    resolver.addresses["env.fleet"] = ["10.0.0.2", "10.0.0.1", "10.0.0.2"]

    assert await make(NAME).urls() == ["http://10.0.0.1:8110", "http://10.0.0.2:8110"]


async def test_ipv6_addresses_stand_in_brackets(resolver: Resolver) -> None:
    resolver.addresses["env.fleet"] = ["fd00::2", "10.0.0.1"]

    assert await make(NAME).urls() == ["http://10.0.0.1:8110", "http://[fd00::2]:8110"]


@pytest.mark.parametrize(("url", "port"), [("http://env.fleet", 80), ("https://env.fleet", 443)])
async def test_the_scheme_gives_the_port_where_none_is_named(resolver: Resolver, url: str, port: int) -> None:
    resolver.addresses["env.fleet"] = ["10.0.0.1"]

    assert await make(url).urls() == [f"{url.partition(':')[0]}://10.0.0.1:{port}"]
    assert resolver.asked == [("env.fleet", port)]


async def test_fixed_replicas_come_first_and_nothing_comes_twice(resolver: Resolver) -> None:
    resolver.addresses |= {"env.fleet": ["10.0.0.1"], "other.fleet": ["10.0.0.1", "10.0.0.3"]}
    found = make(NAME, "http://other.fleet:8110", replicas=("http://10.0.0.9:1", "http://10.0.0.3:8110"))

    assert await found.urls() == ["http://10.0.0.9:1", "http://10.0.0.3:8110", "http://10.0.0.1:8110"]


async def test_a_name_that_stops_resolving_keeps_what_it_meant(resolver: Resolver) -> None:
    resolver.addresses["env.fleet"] = ["10.0.0.1", "10.0.0.2"]
    found = make(NAME)
    before = await found.urls()
    resolver.addresses.clear()

    with structlog.testing.capture_logs() as lines:
        assert [await found.urls() for _ in range(3)] == [before] * 3

    assert [(line["event"], line["kept"]) for line in lines] == [("discovery.failed", 2)], "told once, not each time"
    assert "not known" in lines[0]["reason"]


async def test_a_resolver_that_hangs_is_given_up(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_RESOLVE_TIMEOUT_S", 0.05)
    resolver.addresses["env.fleet"] = ["10.0.0.1"]
    found = make(NAME, replicas=("http://10.0.0.9:1",))
    await found.urls()
    resolver.hangs = True

    with structlog.testing.capture_logs() as lines:
        assert await found.urls() == ["http://10.0.0.9:1", "http://10.0.0.1:8110"]
    assert lines[0]["reason"] == "no answer within 0.05 s"


async def test_a_failing_name_does_not_hold_up_another(resolver: Resolver) -> None:
    resolver.addresses["other.fleet"] = ["10.0.0.3"]

    assert await make(NAME, "http://other.fleet:8110").urls() == ["http://10.0.0.3:8110"]


async def test_a_change_is_taken_over_and_told_once(resolver: Resolver) -> None:
    found = make(NAME)
    with structlog.testing.capture_logs() as lines:
        for addresses in (["10.0.0.1"], ["10.0.0.1"], ["10.0.0.2", "10.0.0.1"], ["10.0.0.2"], [], ["10.0.0.2"]):
            resolver.addresses["env.fleet"] = addresses
            urls = await found.urls()

    assert urls == ["http://10.0.0.2:8110"]
    told = [(line["event"], line.get("before"), line.get("replicas")) for line in lines]
    assert told == [
        ("discovery.changed", 0, 1),
        ("discovery.changed", 1, 2),
        ("discovery.changed", 2, 1),
        ("discovery.failed", None, None),
    ]


async def test_a_name_that_fails_again_after_a_return_is_told_again(resolver: Resolver) -> None:
    found = make(NAME)
    with structlog.testing.capture_logs() as lines:
        for addresses in ([], ["10.0.0.1"], []):
            resolver.addresses["env.fleet"] = addresses
            await found.urls()

    assert [line["event"] for line in lines] == ["discovery.failed", "discovery.changed", "discovery.failed"]
