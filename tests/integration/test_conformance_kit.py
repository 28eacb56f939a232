"""The conformance kit: ours passes it, and each broken server is caught by the checks that are meant for it."""

import asyncio
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from gymfleet_cli.examination import listing
from gymfleet_conformance import (
    Check,
    Options,
    Protocol,
    Section,
    Severity,
    Verdict,
    checks_of,
    every_check,
    examine,
)
from gymfleet_conformance.check import Suite
from gymfleet_conformance.detect import find_protocol, find_targets
from gymfleet_conformance.openenv.sample import smallest
from gymfleet_conformance.run import MAX_SILENT
from gymfleet_conformance.server_under_test import Failed, NotApplicable, ServerUnderTest, Target

from tests.fixtures import broken_servers, gateway_fleet, peers
from tests.fixtures.broken_servers import BROKEN
from tests.fixtures.corridor_server import Server, serving
from tests.fixtures.paths import ROOT
from tests.fixtures.ports import free_port

OURS = ("maze", "textcraft", "wordle", "babyai")
ECHO = ROOT / "tests" / "peers" / "openenv_echo_server.py"
HEAVY = ("bodies.huge", "batch.too-many", "stream.flood", "stream.oversized-frame", "sessions.close-frees")
"""Large bodies and many sessions: tried on the sound servers alone."""


@dataclass(frozen=True)
class Caught:
    """What must fail, and what else may: the rest must hold."""

    by: frozenset[str]
    perhaps: re.Pattern[str] = re.compile("(?!)")


def by(text: str, perhaps: str = "(?!)") -> Caught:
    return Caught(frozenset(text.split()), re.compile(perhaps))


ACTION_LISTS = {
    "declared.actions-change-nothing",
    "declared.actions-are-understood",
    "declared.no-actions-after-the-end",
}
REPEATS = """
    steps.repeat-returns-stored-result steps.repeat-with-another-action-is-refused steps.repeat-executes-nothing
    steps.concurrent-duplicates-run-once steps.concurrent-rivals-one-wins batch.duplicate-runs-once
    stream.gap-and-repeat stream.closed-socket-leaves-the-session stream.and-rest-are-one
    stream.duplicates-on-two-sockets forks.child-keeps-the-stored-result
"""
FRESH = """
    sessions.unknown-id sessions.altered-id sessions.hostile-ids sessions.closed-is-gone batch.problem-per-item
    stream.whole-session-api stream.answers-match-by-id stream.array-of-frames stream.unknown-session
    leases.reaped-in-time leases.reaped-is-gone-for-good leases.shortened-is-reaped
"""
GARBAGE = """
    sessions.unknown-split sessions.one-selector sessions.surplus-field sessions.out-of-range
    steps.malformed-is-refused steps.huge-index-is-refused steps.lone-surrogates-elsewhere forks.count-is-bounded
    leases.bounds bodies.garbage bodies.wrong-media-type bodies.compressed-garbage
    declared.state-keys-are-asked-for-by-a-bool declared.wrong-tool-calls-are-refused
"""
RANDOM = """
    sessions.same-task-same-start steps.repeat-executes-nothing steps.same-actions-same-episode
    isolation.interleaved-equals-alone isolation.many-at-once batch.equals-single-steps stream.sessions-stay-apart
    answers.expert-solves declared.actions-change-nothing
"""
ENDLESS = """
    steps.end-is-final steps.turn-limit steps.limit-is-truncation isolation.end-of-one-leaves-the-other
    forks.after-the-end answers.no-expert-after-the-end declared.no-actions-after-the-end
"""
CAUGHT: dict[type[Server], Caught] = {
    broken_servers.ExecutesRepeats: by(REPEATS, perhaps=r"steps\.abandoned-request|stream\.abandoned-socket"),
    broken_servers.IgnoresTheAction: by(
        "steps.repeat-with-another-action-is-refused steps.concurrent-rivals-one-wins stream.gap-and-repeat"
    ),
    broken_servers.FreshForUnknown: by(FRESH),
    # Checks that run at the same time meet in the shared world: which of these notice is chance.
    broken_servers.SharedEnvironment: by(
        "steps.same-actions-same-episode isolation.interleaved-equals-alone isolation.many-at-once",
        perhaps=r"(steps|isolation|batch|stream|forks|answers|declared)\.",
    ),
    broken_servers.IgnoresGaps: by(
        "steps.gap-is-refused steps.first-index-is-zero steps.huge-index-is-refused batch.problem-per-item "
        "stream.gap-and-repeat declared.irreversible-takes-no-step"
    ),
    broken_servers.NeverReaps: by("leases.reaped-in-time leases.reaped-is-gone-for-good leases.shortened-is-reaped"),
    broken_servers.LookingRenews: by("leases.reaped-in-time"),
    broken_servers.ReapsTheBusy: by(
        "leases.step-extends leases.renewal-extends leases.renewal-changes-the-lease leases.shortened-is-reaped"
    ),
    broken_servers.LeaksTheAnswer: by("answers.not-in-info"),
    broken_servers.CrashesOnGarbage: by(GARBAGE),
    broken_servers.CountsItsIds: by("sessions.ids-are-unguessable", perhaps=r"sessions\.altered-id"),
    broken_servers.ExpertForAll: by("answers.no-expert-outside-train answers.no-expert-by-the-back-door"),
    broken_servers.BelievesTheSplit: by("sessions.task-keeps-its-split answers.no-expert-by-the-back-door"),
    broken_servers.ShallowForks: by("forks.child-plays-like-the-parent forks.children-are-independent"),
    broken_servers.TasksModulo: by("sessions.index-outside"),
    broken_servers.TakesAnyLength: by("steps.oversized-action batch.problem-per-item"),
    broken_servers.NeverEnds: by(ENDLESS),
    broken_servers.GoesOnAfterTheEnd: by("steps.end-is-final forks.after-the-end"),
    broken_servers.SecretlyRandom: by(RANDOM),
    broken_servers.ShufflesBatches: by("batch.order-is-kept batch.problem-per-item batch.same-session-in-order"),
    broken_servers.ClosesOnGarbage: by(
        "stream.garbage-frames stream.text-frames stream.bad-bodies stream.bad-bodies-of-other-ops"
    ),
    broken_servers.MixesAnswersUp: by("stream.whole-session-api stream.answers-match-by-id", perhaps=r"stream\."),
    broken_servers.KeysForAll: by("declared.no-state-keys-unless-asked"),
    broken_servers.KeysByChance: by(
        "declared.state-keys-are-shown declared.state-keys-are-repeatable declared.state-keys-of-forks"
    ),
    broken_servers.OneKeyForAll: by("declared.state-keys-tell-states-apart declared.state-keys-differ-between-tasks"),
    broken_servers.ForgetsTheKeys: by("declared.state-keys-of-forks"),
    broken_servers.ListingPlays: by("declared.actions-change-nothing"),
    broken_servers.ListsAnything: by("declared.actions-are-understood declared.no-actions-after-the-end"),
    broken_servers.AskingPlays: by("declared.irreversible-takes-no-step"),
    broken_servers.TakesAnyTool: by("declared.wrong-tool-calls-are-refused"),
    broken_servers.ScoresBeyondOne: by("steps.results-are-sound answers.expert-solves"),
}


MOST_TELLING = {
    broken_servers.ExecutesRepeats,
    broken_servers.FreshForUnknown,
    broken_servers.SharedEnvironment,
    broken_servers.NeverReaps,
    broken_servers.LeaksTheAnswer,
    broken_servers.CrashesOnGarbage,
    broken_servers.GoesOnAfterTheEnd,
    broken_servers.MixesAnswersUp,
}


async def examined(
    url: str, protocol: Protocol, env: str = "", *, without: Sequence[str] = (), options: Options | None = None
) -> Section:
    checks = [check for check in checks_of(protocol) if not check.id.startswith(tuple(without))]
    async with ServerUnderTest.at(url) as site:
        [(name, target)] = await find_targets(site, protocol, [env] if env else [])
        return await examine(name, checks, target, options)


def failures(section: Section) -> dict[str, str]:
    return {one.id: one.seen for one in section.results if one.verdict is Verdict.FAILS}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An env server with all of ours, and a gateway over it."""
    logs = tmp_path_factory.mktemp("fleet")
    server = gateway_fleet.env_server(logs, *OURS)
    gateway = gateway_fleet.gateway(logs, [server.url])
    with gateway_fleet.running(server, gateway):
        yield {"env server": server.url, "gateway": gateway.url}


async def found_in(kind: type[Server]) -> Section:
    with serving(kind()) as url:
        return await examined(url, Protocol.NATIVE, without=HEAVY)


@pytest.fixture(scope="module")
def sections(request: pytest.FixtureRequest) -> dict[type[Server], Section]:
    """What the kit finds in each broken server that is asked for; at once: most of the time is waiting for leases."""
    name = test_broken_server_is_caught_by_the_checks_meant_for_it.__name__
    asked = [one for one in request.session.items if isinstance(one, pytest.Function) and one.originalname == name]
    kinds: list[type[Server]] = [cast("type[Server]", one.callspec.params["kind"]) for one in asked]

    async def one(kind: type[Server], slots: asyncio.Semaphore) -> Section:
        async with slots:
            return await found_in(kind)

    async def every() -> list[Section]:
        slots = asyncio.Semaphore(2)  # more of them wait for each other, and checks have deadlines
        return await asyncio.gather(*(one(kind, slots) for kind in kinds))

    return dict(zip(kinds, asyncio.run(every()), strict=True))


@pytest.mark.parametrize("where", ["env server", "gateway"])
@pytest.mark.parametrize("env", OURS)
async def test_ours_keeps_every_promise_of_the_session_api(fleet: dict[str, str], where: str, env: str) -> None:
    section = await examined(fleet[where], Protocol.NATIVE, env)

    assert failures(section) == {}
    skipped = {one.id for one in section.results if one.verdict is Verdict.NOT_APPLICABLE}
    lists_actions = env in {"maze", "babyai"}
    inapplicable = {"declared.unknown-actions-say-so"} if lists_actions else ACTION_LISTS
    of_games = {check.id for check in checks_of(Protocol.NATIVE) if check.group == "games"}
    of_games -= {"games.no-seats-says-so"} if where == "gateway" else set()
    assert skipped == {"forks.unsupported-says-so", "answers.no-expert-says-so", *inapplicable, *of_games}, (
        "ours can fork and has experts"
    )


@pytest.mark.parametrize("env", OURS)
@pytest.mark.parametrize("protocol", [Protocol.AGENTGYM, Protocol.OPENENV])
async def test_our_fronts_keep_every_promise_of_others(fleet: dict[str, str], protocol: Protocol, env: str) -> None:
    url = f"{fleet['gateway']}/{protocol}/{env}"
    async with ServerUnderTest.at(url) as site:
        assert await find_protocol(site) is protocol

    section = await examined(url, protocol)

    assert failures(section) == {}
    assert section.count(Verdict.HOLDS) >= (23 if protocol is Protocol.AGENTGYM else 35)


async def test_another_implementation_of_the_session_api_passes_too() -> None:
    with serving(Server()) as url:
        section = await examined(url, Protocol.NATIVE)

    assert failures(section) == {}
    assert section.count(Verdict.HOLDS) >= 120


def test_every_broken_server_has_its_checks() -> None:
    assert set(CAUGHT) == set(BROKEN)
    known = {check.id for check in checks_of(Protocol.NATIVE)}
    assert {check_id for caught in CAUGHT.values() for check_id in caught.by} <= known


@pytest.mark.timeout(480)
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind in MOST_TELLING else [pytest.mark.long], id=kind.__name__) for kind in BROKEN],
)
def test_broken_server_is_caught_by_the_checks_meant_for_it(
    kind: type[Server], sections: dict[type[Server], Section]
) -> None:
    seen, caught = failures(sections[kind]), CAUGHT[kind]
    if not caught.by <= seen.keys():  # on a busy machine a check of leases may learn nothing: once more, alone
        seen = failures(asyncio.run(found_in(kind)))

    assert caught.by <= seen.keys()
    assert {name: why for name, why in seen.items() if name not in caught.by and not caught.perhaps.match(name)} == {}
    assert all(seen.values()), "every failure says what was seen"


@pytest.fixture
def reference(tmp_path: Path) -> Iterator[str]:
    """OpenEnv's own server with an echoing environment, in the peers' Python."""
    port, log = free_port(), tmp_path / "openenv.log"
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        peer = subprocess.Popen([peers.command("python"), str(ECHO), str(port)], stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 60
        while not _answers(f"{url}/health"):
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(0.1)
        yield url
    finally:
        peer.terminate()
        peer.wait(timeout=20)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).is_success
    except httpx.TransportError:
        return False


@pytest.mark.peers
async def test_reference_openenv_server(reference: str) -> None:
    assert set(failures(await examined(reference, Protocol.OPENENV))) == {
        "openenv.http-step-needs-an-episode",
        "openenv.not-an-object",
        "openenv.deeply-nested",
        "openenv.bad-seed",
        "openenv.step-before-reset-is-an-error",
        "openenv.lost-connection-is-told",
    }


class NoTarget(Target):
    """For checks that need no server."""

    def __init__(self) -> None:
        self.released = False

    async def release(self) -> None:
        self.released = True


def suite_of(*bodies: Any, deadline_s: float = 5.0) -> list[Check[Any]]:
    suite: Suite[Any] = Suite(Protocol.NATIVE)
    for number, body in enumerate(bodies):
        suite.must(f"test.{number}", deadline_s=deadline_s)(body)
    return suite.checks


async def _hangs(_: Target) -> None:
    """Never ends."""
    await asyncio.Event().wait()


async def _holds(_: Target) -> None:
    """Holds."""


async def _fails(_: Target) -> None:
    """Fails."""
    raise Failed("seen this; that would be right")


async def _silent_on_it(_: Target) -> None:
    """Does not apply."""
    raise NotApplicable("no such thing here")


async def _stumbles(_: Target) -> None:
    """Meets an answer that nobody thought of."""
    raise KeyError("session_id")


async def test_hanging_server_fails_its_checks_and_does_not_hang_the_kit() -> None:
    targets: list[NoTarget] = []

    def target() -> NoTarget:
        targets.append(NoTarget())
        return targets[-1]

    section = await examine("", suite_of(_holds, _hangs, _fails, _silent_on_it, _stumbles, deadline_s=0.1), target)

    assert [one.verdict.value for one in section.results] == ["holds", "fails", "fails", "not applicable", "fails"]
    assert "no answer in time" in section.results[1].seen
    assert section.results[2].seen == "seen this; that would be right"
    assert "session_id" in section.results[4].seen
    assert all(one.released for one in targets)


async def test_dead_server_is_not_asked_for_ever() -> None:
    checks = suite_of(*[_hangs] * (3 * MAX_SILENT), deadline_s=0.05)

    section = await examine("", checks, NoTarget)

    not_tried = [one for one in section.results if one.seen.startswith("not tried")]
    assert section.count(Verdict.FAILS) == 3 * MAX_SILENT
    assert len(not_tried) == 2 * MAX_SILENT


def test_ids_are_unique_and_every_promise_is_one_line() -> None:
    checks = every_check()

    assert len({check.id for check in checks}) == len(checks)
    assert len(checks_of(Protocol.NATIVE)) >= 60
    for check in checks:
        assert re.fullmatch(r"[a-z]+\.[a-z0-9-]+", check.id)
        assert "\n" not in check.promise
        assert "|" not in check.promise, "it stands in a table"


def test_documented_checks_are_the_checks() -> None:
    text = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    table = text.partition("<!-- checks -->\n")[2].partition("\n<!-- /checks -->")[0]

    assert table == listing(every_check())


def test_smallest_action_of_a_schema() -> None:
    schema = {
        "type": "object",
        "required": ["kind", "count", "text", "nested"],
        "properties": {
            "kind": {"enum": ["go", "stay"]},
            "count": {"type": "integer", "minimum": 3},
            "text": {"type": "string", "maxLength": 2},
            "nested": {"$ref": "#/$defs/Nested"},
            "optional": {"type": "string"},
        },
        "$defs": {"Nested": {"type": "object", "required": ["flag"], "properties": {"flag": {"type": "boolean"}}}},
    }

    assert smallest(schema) == {"kind": "go", "count": 3, "text": "lo", "nested": {"flag": False}}
    assert smallest({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}) == {}, "a loop ends"


def test_shoulds_are_few() -> None:
    shoulds = [check.id for check in every_check() if check.severity is Severity.SHOULD]

    assert len(shoulds) * 8 < len(every_check())
