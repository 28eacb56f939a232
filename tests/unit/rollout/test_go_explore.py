"""Go-Explore: where it goes back to, what it keeps of a state, and what it hands in."""

import random
from typing import Any

import pytest
from gymfleet_contracts.rollout import Budget, EpisodeLimits, Sampling
from gymfleet_contracts.session import (
    AdmissibleActions,
    Capabilities,
    EnvironmentSpec,
    ForkSupport,
    OpenSession,
    Session,
    StepResult,
)
from gymfleet_contracts.trajectory import EXPERT, Status
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.player import Player
from gymfleet_rollout.strategies.go_explore import GoExplore, GoExploreOptions, _Cell
from gymfleet_rollout.strategy_checks import examine

from tests.fixtures.searches import Path, Played, actions
from tests.unit.rollout.test_episode import CHAT, SPEC, Door, ScriptedPolicy

GOAL = 4


def moved(place: int, action: str) -> int:
    """Where an action leads: the line has a short cut from its first place to its third."""
    if action == "jump":
        return 2 if place == 0 else place
    return max(0, place + {"up": 1, "down": -1, "wait": 0}[action])


class Line(Door):
    """A line of places, which have keys; the far end is the goal."""

    def __init__(self, *, listed: bool, possible: tuple[str, ...]) -> None:
        super().__init__()
        self.places: dict[str, int] = {}
        self.listed, self.possible = listed, possible

    async def open(self, request: OpenSession, *, timeout_s: float = 0) -> Session:
        assert request.state_keys
        session = await super().open(request, timeout_s=timeout_s)
        self.places[session.session_id] = 0
        return session.model_copy(update={"state_key": "0"})

    async def fork(
        self, session_id: str, count: int = 1, *, index: int | None = None, timeout_s: float = 0
    ) -> list[Session]:
        children = await super().fork(session_id, count, index=index, timeout_s=timeout_s)
        self.places |= {child.session_id: self.places[session_id] for child in children}
        return children

    async def step(self, session_id: str, index: int, action: str, *, timeout_s: float = 0) -> StepResult:
        place = moved(self.places[session_id], action)
        self.places[session_id] = place
        self.actions.append((session_id, index, action))
        return StepResult(
            index=index, observation=f"Step {index}.", reward=float(place == GOAL), terminated=place == GOAL,
            truncated=False, score=float(place == GOAL), action_valid=True, info={}, state_key=str(place),
        )  # fmt: skip

    async def admissible_actions(
        self, session_id: str, *, index: int | None = None, timeout_s: float = 0
    ) -> AdmissibleActions:
        return AdmissibleActions(actions=[*self.possible], complete=self.listed)


class Specs:
    def __init__(self, *, capable: bool) -> None:
        self.capable = capable

    async def spec(self, _: str) -> EnvironmentSpec:
        can = Capabilities(deterministic=True, fork=ForkSupport.NATIVE, admissible_actions=self.capable)
        return SPEC.model_copy(update={"capabilities": can})


def places(path: Path) -> list[int]:
    """Where a path leads."""
    found = [0]
    for action in path:
        found.append(moved(found[-1], str(action)))
    return found


def reached(path: Path) -> float:
    """1 at the goal."""
    return float(places(path)[-1] == GOAL)


class Explored(Played):
    """A group that it has played on a line."""

    def __init__(
        self,
        *,
        max_turns: int = 8,
        capable: bool = True,
        listed: bool = True,
        possible: tuple[str, ...] = ("up", "down", "wait", "jump"),
    ) -> None:
        super().__init__("go_explore", worth=reached, max_turns=max_turns)
        self.door, self.policy = Line(listed=listed, possible=possible), ScriptedPolicy()
        made: Any = self.door, Specs(capable=capable), Formats()
        self.player = Player(self.policy, CHAT, *made, max_episodes=64, evaluator=self.scores)


def test_it_keeps_what_a_strategy_promises() -> None:
    assert examine("go_explore") == []


async def test_what_ends_well_is_handed_in_and_nobody_asked_the_policy() -> None:
    played = Explored()

    (found,) = await played.play({"explorations": 200, "actions": 2})

    assert reached(actions(found)) == 1.0
    assert (found.success, found.selected, found.policy.model) == (True, True, EXPERT)
    assert all(turn.response_logprobs is None and turn.format_valid for turn in found.turns)
    assert played.policy.calls == []
    (tree,) = played.trees
    assert tree.valued_by == ("goal",)
    assert tree.spent.env_steps == len(played.door.actions)


async def test_what_is_handed_in_has_no_detours() -> None:
    played = Explored(max_turns=64)

    found = await played.play({"explorations": 40, "actions": 16, "enough": None}, num_samples=4)

    assert all(len({*places(actions(one))}) == len(one.turns) + 1 for one in found)
    assert any(action in ("down", "wait") for _, _, action in played.door.actions), "there were some"


@pytest.mark.parametrize("seed", range(6))
async def test_of_two_ways_to_a_state_the_shorter_is_kept(seed: int) -> None:
    played = Explored(max_turns=6)
    options = {"explorations": 100, "actions": 1, "enough": None}

    found = await played.play(options, num_samples=3, sampling=Sampling(seed=seed))

    assert actions(found[0]) == ("jump", "up", "up"), "of equal values the shortest"
    assert [len(one.turns) for one in found] == sorted(len(one.turns) for one in found)


async def test_the_shortest_of_those_that_end_well_are_handed_in() -> None:
    longer = 0
    for seed in range(12):
        played = Explored(max_turns=16)
        options = {"explorations": 12, "actions": 16, "enough": None}

        found = await played.play(options, num_samples=3, sampling=Sampling(seed=seed))

        assert [len(one.turns) for one in found] == [3, 3, 3]
        longer += any(len(path) > 3 for path in played.scores.asked if reached(path))
    assert longer, "some came by the longer way first"


async def test_a_state_is_seen_when_it_is_come_by_and_when_it_is_returned_to() -> None:
    played = Explored()

    await played.play({"explorations": 30, "enough": None})

    (tree,) = played.trees
    visits = [node.visits for node in tree.nodes if node.visits is not None and node.parent is not None]
    assert visits
    assert min(visits) >= 2


def test_what_was_seldom_seen_is_gone_back_to_more_often() -> None:
    class Draw(random.Random):
        def choices(self, population: Any, weights: Any = None, **_: Any) -> Any:
            self.weights = weights
            return [population[1]]

    strategy, draw = GoExplore(GoExploreOptions()), Draw()
    node: Any = None
    strategy._cells = {"a": _Cell(node, seen=3), "b": _Cell(node, seen=0), "c": _Cell(node, seen=8)}

    chosen = strategy._returned_to(draw)

    assert draw.weights == [1 / 2, 1, 1 / 3]
    assert chosen is strategy._cells["b"]
    assert chosen.seen == 1


async def test_exploration_ends_with_enough_and_with_the_budget() -> None:
    enough, spent = Explored(), Explored()

    await enough.play({"explorations": 1000})
    assert [reached(path) for path in enough.scores.asked].count(1.0) == 1
    (found,) = await spent.play({"explorations": 1000}, budget=Budget(env_steps=3))

    assert len(enough.door.actions) < 1000
    assert len(spent.door.actions) == 3
    assert not found.success


@pytest.mark.parametrize(
    ("changes", "alike"),
    [
        ({}, True),
        ({"run_id": "another"}, True),
        ({"group_id": "another"}, False),
        ({"sampling": Sampling(seed=2)}, False),
        ({"sampling": Sampling()}, False),
    ],
)
async def test_the_same_seed_explores_in_the_same_way(changes: dict[str, Any], alike: bool) -> None:
    one, other = Explored(), Explored()

    await one.play()
    await other.play(**changes)

    assert (one.door.actions == other.door.actions) == alike


async def test_without_a_seed_every_run_explores_in_its_own_way() -> None:
    one, same, other = Explored(), Explored(), Explored()

    for played, run_id in ((one, "run"), (same, "run"), (other, "another")):
        await played.play(sampling=Sampling(), run_id=run_id)

    assert one.door.actions == same.door.actions != other.door.actions


async def test_without_a_list_of_actions_it_is_refused_before_anything_is_played() -> None:
    played = Explored(capable=False)

    (found,) = await played.play()

    assert played.door.opened == []
    assert found.status is Status.POLICY_ERROR
    assert "door does not list the actions that are possible, and go_explore chooses by the list" in str(found.error)


@pytest.mark.parametrize(
    ("listing", "reason"),
    [
        ({"listed": False}, "door does not know all actions that are possible at the beginning"),
        ({"possible": ()}, "door lists no action that is possible at the beginning"),
    ],
)
async def test_without_actions_at_the_beginning_it_is_refused_with_the_reason(
    listing: dict[str, Any], reason: str
) -> None:
    played = Explored(**listing)

    (found,) = await played.play()

    assert played.door.actions == []
    assert found.status is Status.POLICY_ERROR
    assert reason in str(found.error)


async def test_what_is_handed_in_has_turns_even_if_nothing_ended_and_it_came_back_to_the_beginning() -> None:
    played = Explored(possible=("wait",))

    (found,) = await played.play({"explorations": 2, "actions": 1})

    assert (actions(found), found.status) == (("wait",), Status.TRUNCATED)


async def test_replies_that_do_not_fit_are_told() -> None:
    limits = EpisodeLimits(max_response_tokens=2, max_attempts=1)

    (found,) = await Explored().play({"explorations": 2}, limits=limits)

    assert found.status is Status.POLICY_ERROR
    assert "none of its replies to the beginning fits limits.max_response_tokens" in str(found.error)


@pytest.mark.parametrize("option", ["explorations", "actions"])
async def test_it_explores_at_least_once(option: str) -> None:
    (found,) = await Explored().play({option: 0})

    assert f"rollout.strategy.{option}: Input should be greater than or equal to 1" in str(found.error)
