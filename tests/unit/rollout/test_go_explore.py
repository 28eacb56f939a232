"""Go-Explore: where it goes back to, what it keeps of a state, and what it hands in."""

from collections import Counter
from typing import Any

import pytest
from gymfleet_contracts.rollout import Budget, Sampling
from gymfleet_contracts.session import (
    AdmissibleActions,
    Capabilities,
    EnvironmentSpec,
    ForkSupport,
    OpenSession,
    Session,
    StepResult,
)
from gymfleet_contracts.trajectory import EXPERT
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.player import Player
from gymfleet_rollout.strategy_checks import examine

from tests.fixtures.searches import Path, Played, actions
from tests.unit.rollout.test_episode import CHAT, SPEC, Door, ScriptedPolicy

GOAL = 4


class Line(Door):
    """A line of places: `up` and `down` move, `wait` does not; the far end is the goal, and places have keys."""

    def __init__(self, *, listed: bool = True) -> None:
        super().__init__()
        self.places: dict[str, int] = {}
        self.listed = listed
        self.asked = Counter[int]()

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
        place = max(0, self.places[session_id] + {"up": 1, "down": -1, "wait": 0}[action])
        self.places[session_id] = place
        self.actions.append((session_id, index, action))
        return StepResult(
            index=index, observation=f"Step {index}.", reward=float(place == GOAL), terminated=place == GOAL,
            truncated=False, score=float(place == GOAL), action_valid=True, info={}, state_key=str(place),
        )  # fmt: skip

    async def admissible_actions(
        self, session_id: str, *, index: int | None = None, timeout_s: float = 0
    ) -> AdmissibleActions:
        self.asked[self.places[session_id]] += 1
        return AdmissibleActions(actions=["up", "down", "wait"], complete=self.listed)


class Specs:
    async def spec(self, _: str) -> EnvironmentSpec:
        can = Capabilities(deterministic=True, fork=ForkSupport.NATIVE, admissible_actions=True)
        return SPEC.model_copy(update={"capabilities": can})


def places(path: Path) -> list[int]:
    """Where a path leads."""
    found = [0]
    for action in path:
        found.append(max(0, found[-1] + {"up": 1, "down": -1, "wait": 0}[str(action)]))
    return found


def reached(path: Path) -> float:
    """1 at the goal."""
    return float(places(path)[-1] == GOAL)


class Explored(Played):
    """A group that it has played on a line."""

    def __init__(self, *, max_turns: int = 8, listed: bool = True) -> None:
        super().__init__("go_explore", worth=reached, max_turns=max_turns)
        self.door, self.policy = Line(listed=listed), ScriptedPolicy()
        made: Any = self.door, Specs(), Formats()
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
    assert any(action != "up" for _, _, action in played.door.actions), "there were some"


async def test_of_two_ways_to_a_state_the_shorter_is_kept() -> None:
    played = Explored(max_turns=6)

    found = await played.play({"explorations": 400, "actions": 1, "enough": None}, num_samples=3)

    assert actions(found[0]) == ("up",) * GOAL, "of equal values the shortest"
    assert [len(one.turns) for one in found] == sorted(len(one.turns) for one in found)


async def test_what_was_seldom_seen_is_gone_back_to_more_often() -> None:
    # With one action an exploration, places other than the first are only reached by going back to those before them.
    played = Explored(max_turns=32)

    await played.play({"explorations": 100, "actions": 1, "enough": None})

    assert isinstance(played.door, Line)
    tries = [played.door.asked[place] for place in range(GOAL)]
    assert min(tries) > 10
    # The first place is found at once and seen most: chosen evenly it would take half of all.
    assert tries[0] < 50


async def test_exploration_ends_with_enough_and_with_the_budget() -> None:
    enough, spent = Explored(), Explored()

    await enough.play({"explorations": 1000})
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


async def test_without_a_list_of_actions_there_is_nothing_to_do() -> None:
    played = Explored(listed=False)

    await played.play({"explorations": 3})

    assert played.door.actions == []
    assert played.trees[0].counts == {"states whose actions are not listed": 3}


@pytest.mark.parametrize("option", ["explorations", "actions"])
async def test_it_explores_at_least_once(option: str) -> None:
    (found,) = await Explored().play({option: 0})

    assert f"rollout.strategy.{option}: Input should be greater than or equal to 1" in str(found.error)
