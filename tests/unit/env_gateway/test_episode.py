"""What a front may conclude from the answer to a step, and what it must not."""

from typing import Any, cast

import msgspec
import pytest
from gymfleet_contracts import problems
from gymfleet_contracts.frames import Op
from gymfleet_contracts.problems import Problem
from gymfleet_env_gateway.access import LOCAL
from gymfleet_env_gateway.fronts.episode import Episode, NoEpisode, OutcomeUnknown, intent
from gymfleet_env_gateway.session_proxy import SessionProxy
from gymfleet_kit.problems import RelayedProblem, ServiceError
from gymfleet_kit.session_problems import InvalidRequest


class ScriptedRelay:
    """Answers each step with what was put in, and notes what it was asked."""

    def __init__(self) -> None:
        self.answers: list[str | None] = []  # a problem's type, or None for a result
        self.calls: list[tuple[str, int | None, str | None]] = []

    async def call(self, _tenant: object, op: str, _session_id: str, body: msgspec.Raw) -> msgspec.Raw:
        request = msgspec.msgpack.decode(body)
        self.calls.append((op, request.get("index"), request.get("action")))
        kind = self.answers.pop(0) if op == Op.STEP else None
        if kind is not None:
            raise RelayedProblem(Problem(type=kind, title="", status=500))
        result = {"observation": "seen", "reward": 0.5, "terminated": False, "truncated": False}
        return msgspec.Raw(msgspec.msgpack.encode(result))


class Table:
    """An episode, its relay and what was saved."""

    def __init__(self, *answers: str | None) -> None:
        self.proxy = ScriptedRelay()
        self.proxy.answers = list(answers)
        self.episode = Episode(session_id="s", index=3)

    async def step(self, action: str) -> dict[str, Any]:
        return await self.episode.step(cast(SessionProxy, self.proxy), LOCAL, action)


async def test_an_action_is_forgotten_with_its_answer() -> None:
    table = Table(None)

    await table.step("up")

    assert table.episode.pending is None
    assert (table.episode.index, table.episode.total_reward, table.episode.observation) == (4, 0.5, "seen")


@pytest.mark.parametrize("kind", [problems.UNAVAILABLE, problems.UPSTREAM_TIMEOUT])
async def test_after_an_answer_that_did_not_come_only_the_same_action_goes_out(kind: str) -> None:
    table = Table(kind, None)
    with pytest.raises(ServiceError):
        await table.step("up")

    with pytest.raises(OutcomeUnknown):
        await table.step("down")
    await table.step("up")

    assert table.proxy.calls == [(Op.STEP, 3, "up"), (Op.STEP, 3, "up")], "under the same index: played once"
    assert table.episode.index == 4


async def test_what_another_gateway_left_pending_counts_too() -> None:
    noted, died = Table(), Table()
    noted.episode = msgspec.msgpack.decode(
        msgspec.msgpack.encode(Episode(session_id="s", index=3, pending="up")), type=Episode
    )
    died.episode.recover(intent("up"))

    for table in (noted, died):
        with pytest.raises(OutcomeUnknown):
            await table.step("down")
        assert table.proxy.calls == []


async def test_what_was_left_from_before_the_episode_does_not_count() -> None:
    table = Table(None)
    table.episode.recover(b"")
    ended = Episode()
    ended.recover(intent("up"))

    await table.step("down")

    assert ended.pending is None


def test_what_is_no_text_is_refused_before_it_is_noted() -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        intent("\ud800")


@pytest.mark.parametrize(
    "kind", [problems.ACTION_TOO_LARGE, problems.PAYLOAD_TOO_LARGE, problems.RATE_LIMITED, problems.EPISODE_OVER]
)
async def test_what_was_not_played_leaves_the_episode_as_it_was(kind: str) -> None:
    table = Table(kind, None)
    with pytest.raises(ServiceError):
        await table.step("up")

    await table.step("down")
    assert table.proxy.calls[-1] == (Op.STEP, 3, "down")


@pytest.mark.parametrize(
    ("kind", "closes"),
    [
        (problems.SESSION_LOST, False),
        (problems.UNKNOWN_SESSION, False),
        (problems.ENVIRONMENT_FAILED, False),
        (problems.STEP_OUT_OF_ORDER, False),
        (problems.INTERNAL, True),
    ],
)
async def test_a_lost_session_is_not_gone_on_with(kind: str, closes: bool) -> None:
    table = Table(kind)
    with pytest.raises(ServiceError):
        await table.step("up")

    with pytest.raises(NoEpisode):
        await table.step("up")
    assert ((Op.CLOSE, None, None) in table.proxy.calls) == closes, "what another one plays is not closed"
