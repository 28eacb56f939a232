"""Groups are checked against the description of their environment, without playing anything."""

from typing import Any

import pytest
from gymfleet_client.errors import ClientError, TransportError, Unavailable, UnknownEnvironment
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.rollout import ActionSpace, StrategySpec
from gymfleet_contracts.session import Capabilities, EnvironmentSpec, ForkSupport
from gymfleet_rollout.errors import GatewayFailed, UnknownStrategy, Unsuited
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.player import Player

from tests.unit.rollout.test_episode import CHAT, SPEC, Door, ScriptedPolicy, group

FORKS = Capabilities(deterministic=True, fork=ForkSupport.REPLAY)
TREE = StrategySpec(use="tree_of_thoughts")


class Described:
    """A gateway that describes the environment, or fails to."""

    def __init__(self, error: ClientError | None = None, **changes: Any) -> None:
        self._error = error
        self._spec = SPEC.model_copy(update=changes)

    async def spec(self, _: str) -> EnvironmentSpec:
        if self._error is not None:
            raise self._error
        return self._spec


async def check(described: Described, **changes: Any) -> None:
    policy, door = ScriptedPolicy(), Door()
    player = Player(policy, CHAT, door, described, Formats(), max_episodes=8)  # type: ignore[arg-type]
    try:
        await player.require_suited(group(**changes))
    finally:
        assert (door.opened, policy.calls) == ([], [])


@pytest.mark.parametrize(
    ("described", "changes", "reason"),
    [
        (Described(), {"strategy": TREE}, "door cannot fork, and tree_of_thoughts forks its sessions"),
        (
            Described(capabilities=FORKS.model_copy(update={"irreversible": True})),
            {"strategy": TREE},
            "door has actions that cannot be taken back",
        ),
        (Described(), {"strategy": StrategySpec(use="masked")}, "door does not list the actions that are possible"),
        (Described(), {"strategy": StrategySpec(use="self_play")}, "door is no game"),
        (Described(seats=("x", "o")), {}, "door is a game of x, o"),
        (Described(), {"actions": ActionSpace(shown=True)}, "door does not list its actions"),
        (
            Described(UnknownEnvironment(Problem(title="There is no such environment", status=404))),
            {},
            "There is no such environment",
        ),
    ],
)
async def test_what_an_environment_lacks_is_told(described: Described, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unsuited, match=reason):
        await check(described, **changes)


@pytest.mark.parametrize(
    "error", [TransportError("no connection"), Unavailable(Problem(title="The store is gone", status=503))]
)
async def test_a_gateway_that_does_not_describe_it_is_no_fault_of_the_group(error: ClientError) -> None:
    with pytest.raises(GatewayFailed, match="door: ") as caught:
        await check(Described(error))

    assert caught.value.status == 503


async def test_what_can_be_played_is_let_through() -> None:
    await check(Described(capabilities=FORKS), strategy=TREE)


async def test_what_needs_no_description_is_refused_first() -> None:
    with pytest.raises(UnknownStrategy):
        await check(Described(TransportError("no connection")), strategy=StrategySpec(use="nothing"))
