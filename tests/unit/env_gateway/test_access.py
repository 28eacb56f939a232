"""Keys, tenants and scopes: who gets in, who does not, and what the file of tenants must look like."""

import base64
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from gymfleet_contracts.keys import Scope, key_digest, key_id, new_key
from gymfleet_env_gateway import access as module
from gymfleet_env_gateway.access import LOCAL, Access
from gymfleet_env_gateway.errors import Forbidden, Unauthorized
from gymfleet_env_gateway.store import MemoryStore
from gymfleet_env_gateway.tenants import DEFAULT, read_tenants
from gymfleet_env_gateway.tickets import Tickets
from gymfleet_kit.access import is_local_page
from pydantic import SecretStr
from starlette.requests import HTTPConnection

from tests.fixtures.standing_clock import StandingClock, stop_time

ALICE, BOB, CAROL = new_key("a1"), new_key("b1"), new_key("c-1")
TENANTS = f"""
[tenants.alice]
weight = 3
max_sessions = 10
steps_per_s = 100
opens_per_s = 0.5
environments = ["maze"]
[[tenants.alice.keys]]
id = "a1"
sha256 = "{key_digest(ALICE)}"
scopes = ["play"]

[tenants.bob]
[[tenants.bob.keys]]
id = "b1"
sha256 = "{key_digest(BOB)}"
scopes = ["read"]
"""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    return stop_time(module, monkeypatch)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tenants.toml"
    path.write_text(TENANTS)
    return path


def caller(authorization: str | None = None) -> HTTPConnection:
    headers = [] if authorization is None else [(b"authorization", authorization.encode("latin-1"))]
    return HTTPConnection({"type": "http", "headers": headers})


def bearer(key: str) -> HTTPConnection:
    return caller(f"Bearer {key}")


def basic(user: str, password: str) -> HTTPConnection:
    return caller("Basic " + base64.b64encode(f"{user}:{password}".encode()).decode())


def test_a_key_says_its_id_and_is_never_the_same_twice() -> None:
    assert key_id(ALICE) == "a1"
    assert key_id(new_key("with-dashes-1")) == "with-dashes-1"
    assert new_key("a1") != ALICE
    assert len(ALICE) == len("gf_a1_") + 43


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a" * 33, "a\n"])
def test_an_id_that_no_key_can_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a key's id is"):
        new_key(name)


def test_without_keys_everybody_is_local() -> None:
    assert Access(None).tenant(caller("Bearer whatever")) is LOCAL


@pytest.mark.parametrize("connection", [bearer(ALICE), caller(f"bearer  {ALICE} "), basic("any", ALICE)])
def test_a_key_opens_its_tenants_door(file: Path, connection: HTTPConnection) -> None:
    tenant = Access(None, file).tenant(connection)

    assert (tenant.name, tenant.weight, tenant.max_sessions) == ("alice", 3, 10)
    assert (tenant.steps_per_s, tenant.opens_per_s) == (100, 0.5)
    assert tenant.may_play("maze")
    assert not tenant.may_play("textcraft")


@pytest.mark.parametrize(
    "connection",
    [
        caller(),
        caller(""),
        caller("Bearer"),
        caller("Bearer "),
        caller(ALICE),
        bearer(CAROL),
        bearer(ALICE[:-1]),
        bearer(ALICE + "x"),
        bearer(ALICE.replace("gf_a1_", "gf_b1_")),
        bearer(key_digest(ALICE)),
        caller("Basic !!!"),
        caller("Basic " + base64.b64encode(b"\xff\xff").decode()),
        basic(ALICE, ""),
        caller("Bearer \xe9\xff"),
        caller("Digest " + ALICE),
    ],
)
def test_anything_else_does_not(file: Path, connection: HTTPConnection) -> None:
    for access in (Access(None, file), Access(SecretStr("open sesame"))):
        with pytest.raises(Unauthorized, match="send a valid key"):
            access.tenant(connection)


def test_the_single_key_is_a_tenant_with_every_scope() -> None:
    access = Access(SecretStr("open sesame"))

    for connection in (bearer("open sesame"), basic("any", "open sesame")):
        assert access.tenant(connection, Scope.PLAY).name == "default"
        assert access.tenant(connection, Scope.READ).name == "default"


def test_a_scope_is_enforced_and_play_includes_read(file: Path) -> None:
    access = Access(None, file)

    assert access.tenant(bearer(ALICE), Scope.READ).name == "alice"
    assert access.tenant(bearer(BOB), Scope.READ).name == "bob"
    with pytest.raises(Forbidden, match="no scope 'play'"):
        access.tenant(bearer(BOB))


def test_keys_come_and_go_without_a_restart(file: Path, clock: StandingClock) -> None:
    access = Access(None, file)
    before = access.generation
    file.write_text(TENANTS.replace('"b1"', '"c-1"').replace(key_digest(BOB), key_digest(CAROL)))

    clock.now += 0.9
    assert access.tenant(bearer(BOB), Scope.READ).name == "bob", "looked at once a second at most"
    clock.now += 0.2

    assert access.tenant(bearer(CAROL), Scope.READ).name == "bob"
    assert access.generation == before + 1
    with pytest.raises(Unauthorized):
        access.tenant(bearer(BOB), Scope.READ)


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda path: path.write_text("[tenants"), lambda path: path.write_text("")]
)
def test_a_file_that_cannot_be_read_changes_nothing_and_is_told_once(
    file: Path, clock: StandingClock, damage: Callable[[Path], object]
) -> None:
    access = Access(None, file)
    damage(file)

    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            clock.now += 2
            assert access.tenant(bearer(ALICE)).name == "alice"

    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("tenants.unreadable", "error")]
    assert "tenants.toml" in logs[0]["reason"]
    assert access.generation == 0

    file.write_text(TENANTS.replace("weight = 3", "weight = 4"))
    clock.now += 2
    assert access.tenant(bearer(ALICE)).weight == 4


def test_a_file_that_another_takes_the_name_of_is_read(file: Path, clock: StandingClock) -> None:
    access = Access(None, file)
    other = file.with_name("new")
    other.write_text(TENANTS.replace("weight = 3", "weight = 5"))
    stat = file.stat()
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.rename(file)
    clock.now += 2

    assert access.tenant(bearer(ALICE)).weight == 5


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[tenants", "Expected ']'"),
        ("", "tenants: Field required"),
        ("[tenants]", "tenants: Dictionary should have at least 1 item"),
        ("[tenants.a]\nweigth = 1", r"tenants\.a\.weigth: Extra inputs"),
        ("[tenants.a]\nweight = 0", r"tenants\.a\.weight: Input should be greater than 0"),
        ("[tenants.a]\nsteps_per_s = inf", r"tenants\.a\.steps_per_s: Input should be a finite number"),
        ("[tenants.a]\nenvironments = []", r"tenants\.a\.environments: "),
        ("[tenants.A]", r"tenants\.A\.\[key\]: String should match"),
        ("[[tenants.a.keys]]\nid = 'x'", r"tenants\.a\.keys\.0\.sha256: Field required"),
        (f"[[tenants.a.keys]]\nid = 'x'\nsha256 = '{'k' * 50}'", r"tenants\.a\.keys\.0\.sha256: String should match"),
        (f"[[tenants.a.keys]]\nid = 'x'\nsha256 = '{'0' * 64}'\nscopes = ['fly']", "scopes.*'read' or 'play'"),
        (f"[[tenants.a.keys]]\nid = 'x'\nsha256 = '{'0' * 64}'\nscopes = []", "scopes"),
        (
            "".join(f"[[tenants.{name}.keys]]\nid = 'x'\nsha256 = '{'0' * 64}'\n" for name in "ab"),
            "key id 'x' of tenant 'b' is taken by tenant 'a'",
        ),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_place_and_without_its_text(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(text)

    with pytest.raises(ValueError, match=complaint) as caught:
        read_tenants(path)

    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert ALICE not in str(caught.value), "somebody may have pasted the key"


def test_bytes_that_are_no_text_are_a_mistake_too(tmp_path: Path) -> None:
    (tmp_path / "tenants.toml").write_bytes(b"\xff\xfe")

    with pytest.raises(ValueError, match=r"tenants\.toml: .*utf-8"):
        read_tenants(tmp_path / "tenants.toml")


@pytest.mark.parametrize("origin", ["http://evil.example", "http://[", "null", ""])
def test_a_page_that_is_not_of_this_machine_is_told_from_one_that_is(origin: str) -> None:
    assert not is_local_page(origin)
    assert is_local_page("http://localhost:3000")
    assert is_local_page("http://[::1]:3000")


def withdraw_keys(file: Path) -> None:
    file.write_text("[tenants.alice]\n", encoding="utf-8")


def with_ticket(ticket: str) -> HTTPConnection:
    return HTTPConnection({"type": "websocket", "headers": [], "query_string": f"ticket={ticket}".encode()})


async def test_a_ticket_opens_one_socket_in_its_holders_name(file: Path) -> None:
    access = Access(None, file)
    ticket = await access.issue_ticket(bearer(ALICE))

    socket = with_ticket(ticket)
    assert (await access.admit(socket)).name == "alice"
    assert access.tenant(socket).name == "alice", "it stands for the key as long as the socket is open"
    with pytest.raises(Unauthorized, match="used or ran out"):
        await access.admit(with_ticket(ticket))


async def test_a_ticket_is_worth_no_more_than_its_key_is(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access(None, file)
    used, unused = [await access.issue_ticket(bearer(ALICE)) for _ in range(2)]
    socket = with_ticket(used)
    await access.admit(socket)

    withdraw_keys(file)
    monkeypatch.setattr(access, "_check_at", 0.0)

    with pytest.raises(Unauthorized):
        access.tenant(socket)
    with pytest.raises(Unauthorized):
        await access.admit(with_ticket(unused))


async def test_a_ticket_runs_out(file: Path) -> None:
    now = 0.0
    access = Access(None, file, Tickets(MemoryStore(lambda: now)))
    ticket = await access.issue_ticket(bearer(ALICE))

    now = 31.0

    with pytest.raises(Unauthorized, match="ran out"):
        await access.admit(with_ticket(ticket))


async def test_nobody_gets_a_ticket_without_a_key_that_may_play(file: Path) -> None:
    access = Access(None, file)

    for stranger in (caller(), bearer(CAROL), with_ticket("x")):
        with pytest.raises(Unauthorized):
            await access.issue_ticket(stranger)
    with pytest.raises(Unauthorized):
        await access.admit(with_ticket(""))


async def test_the_holder_of_the_one_key_gets_tickets_too() -> None:
    access = Access(SecretStr("open sesame"))
    ticket = await access.issue_ticket(bearer("open sesame"))

    assert await access.admit(with_ticket(ticket)) is DEFAULT
    assert await Access(None).admit(with_ticket("whatever")) is LOCAL, "where no keys are asked for, none is needed"
