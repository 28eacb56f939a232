"""Searches that keep few sessions: others are closed, and made again by the actions that led to their nodes."""

import asyncio
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from gymfleet_client.errors import EnvironmentFailed, EnvironmentFull
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.rollout import EpisodeLimits
from gymfleet_contracts.session import Capabilities, EnvironmentSpec, ForkSupport, OpenSession, StepResult
from gymfleet_contracts.trajectory import Status, sampled_by
from gymfleet_rollout import group_sessions
from gymfleet_rollout.inference.base import Generation
from gymfleet_rollout.seen import Prompted
from gymfleet_rollout.tree import Node

from tests.fixtures.searches import RIGHT, Path, Played, Specs, actions
from tests.unit.rollout.test_episode import CHAT, LEFT, SPEC, Door, ScriptedPolicy, group

MIB = 1 << 20


def worth(path: Path) -> float:
    """Of a deep tree, in which no two paths are worth the same."""
    return random.Random("/".join(map(str, path))).random()


class Counting(Door):
    """Knows where each session is, and how many are open."""

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[str, list[str]] = {}
        self.most = 0

    async def open(self, request: OpenSession, *, timeout_s: float = 0) -> Any:
        session = await super().open(request)
        self._is_at(session.session_id, [])
        return session

    async def fork(
        self, session_id: str, count: int = 1, *, index: int | None = None, timeout_s: float = 0
    ) -> list[Any]:
        assert session_id not in self.closed, "it was closed"
        assert index == len(self.states[session_id])
        children = await super().fork(session_id, count, index=index)
        for child in children:
            self._is_at(child.session_id, [*self.states[session_id]])
        return children

    async def step(self, session_id: str, index: int, action: str, *, timeout_s: float = 0) -> StepResult:
        assert session_id not in self.closed, "it was closed"
        assert index == len(self.states[session_id])
        self.states[session_id].append(action)
        result = await super().step(session_id, index, action)
        return result.model_copy(update={"observation": f"You did {', '.join(self.states[session_id])}."})

    def _is_at(self, session_id: str, state: list[str]) -> None:
        self.states[session_id] = state
        self.most = max(self.most, len(self.states) - len(self.closed))


class Small(Counting):
    """Has room for a few sessions."""

    slots = 12

    async def open(self, request: OpenSession, *, timeout_s: float = 0) -> Any:
        self._require_room(1)
        return await super().open(request)

    async def fork(
        self, session_id: str, count: int = 1, *, index: int | None = None, timeout_s: float = 0
    ) -> list[Any]:
        self._require_room(count)
        return await super().fork(session_id, count, index=index)

    def _require_room(self, count: int) -> None:
        if len(self.states) - len(self.closed) + count > self.slots:
            raise EnvironmentFull(Problem(title="All slots are taken", status=429))


class Leaning(ScriptedPolicy):
    """Goes left or right as the seed of the reply says, and remembers nothing."""

    ways = (CHAT.reply(LEFT), CHAT.reply(RIGHT))

    async def generate(self, prompt_token_ids: Any, *, sampling: Any, **others: Any) -> Generation:
        del prompt_token_ids, others
        await asyncio.sleep(0)
        ids = random.Random(sampling.seed).choice(self.ways)
        return Generation(ids, (-0.5,) * len(ids), "stop", sampled_by(3, len(ids)))


class Known(Specs):
    """A description with these capabilities."""

    def __init__(self, capabilities: dict[str, Any]) -> None:
        can = {"deterministic": True, "fork": ForkSupport.NATIVE, **capabilities}
        self.known = SPEC.model_copy(update={"capabilities": Capabilities(**can)})

    async def spec(self, _: str) -> EnvironmentSpec:
        return self.known


class Deep(Played):
    """A deep tree."""

    door: Counting

    def __init__(self, kind: type[Counting] = Counting, **capabilities: Any) -> None:
        super().__init__("mcts", worth=worth, max_turns=12)
        self.door = kind()
        self.player._sessions = self.door  # type: ignore[assignment]
        self.policy = Leaning(LEFT)
        self.player._policy = self.policy
        self.player._environments = Known(capabilities)  # type: ignore[assignment]


DEEP = {"simulations": 60, "children": 1, "value": "evaluator"}


async def test_a_search_does_not_wait_for_slots_that_it_holds_itself() -> None:
    free, crowded = Deep(), Deep(Small)
    (found,) = await free.play(DEEP)
    limits = EpisodeLimits(max_turns=12, max_attempts=1, episode_timeout_s=60)
    (again,) = await crowded.play(DEEP, limits=limits)

    assert again.error is None
    assert actions(again) == actions(found)
    assert crowded.noted() == free.noted()
    assert free.door.most > Small.slots >= crowded.door.most


async def test_a_search_that_waited_for_its_first_slot_keeps_as_many_sessions_as_others() -> None:
    class Late(Counting):
        refused = False

        async def open(self, request: OpenSession, *, timeout_s: float = 0) -> Any:
            if not self.refused:
                self.refused = True
                raise EnvironmentFull(Problem(title="All slots are taken", status=429))
            return await super().open(request)

    free, late = Deep(), Deep(Late)
    await free.play(DEEP)
    await late.play(DEEP)

    assert late.door.most == free.door.most


async def test_a_search_with_few_sessions_is_the_same_search(monkeypatch: pytest.MonkeyPatch) -> None:
    many, few = Deep(), Deep()
    (found,) = await many.play(DEEP)
    monkeypatch.setattr(group_sessions, "MAX_WAITING", 3)
    (again,) = await few.play(DEEP)

    assert few.noted() == many.noted()
    assert len(few.noted()) > 40
    assert actions(again) == actions(found)
    assert [turn.prompt_token_ids for turn in again.turns] == [turn.prompt_token_ids for turn in found.turns]
    assert many.door.most > 40
    assert few.door.most <= 3 + 3, "those that wait, the one that is forked and its fork, and one for another"
    (tree,), (before,) = few.trees, many.trees
    assert before.num_replayed == 0
    assert tree.num_replayed > 60
    assert tree.spent.env_steps == before.spent.env_steps, "no budget counts them"


async def test_forks_that_are_replays_are_counted() -> None:
    native, replayed = Deep(), Deep(fork=ForkSupport.REPLAY)
    await native.play(DEEP)
    await replayed.play(DEEP)

    indices = [index for _, index, _ in replayed.door.forked]
    assert replayed.trees[0].num_replayed == sum(index or 0 for index in indices) > 0
    assert native.trees[0].num_replayed == 0


@pytest.mark.parametrize("capabilities", [{"deterministic": False}, {"stable_observations": False}])
async def test_sessions_that_cannot_be_made_again_are_kept(
    capabilities: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_sessions, "MAX_WAITING", 3)
    played = Deep(**capabilities)
    await played.play(DEEP)

    assert played.door.most > 40


async def test_another_state_than_before_fails_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_sessions, "MAX_WAITING", 1)

    class Whimsical(Counting):
        async def step(self, session_id: str, index: int, action: str, *, timeout_s: float = 0) -> StepResult:
            result = await super().step(session_id, index, action)
            return result.model_copy(update={"observation": f"{result.observation} {len(self.actions)}"})

    played = Deep(Whimsical)
    (found,) = await played.play(DEEP)

    assert found.status is Status.ENV_ERROR
    assert "came to another state by the actions that led to node" in (found.error or "")


async def test_nothing_is_tried_where_actions_cannot_be_taken_back() -> None:
    played = Deep(irreversible=True)
    (found,) = await played.play(DEEP)

    assert found.status is Status.POLICY_ERROR
    assert "door has actions that cannot be taken back, and mcts takes actions to see" in (found.error or "")
    assert not played.door.opened


@pytest.mark.timeout(600)
async def test_five_thousand_nodes_take_bounded_sessions_and_memory() -> None:
    played = Deep()
    before = psutil.Process().memory_info().rss
    (found,) = await played.play({"simulations": 5_000, "children": 2, "value": "evaluator", "exploration": 3.0})

    (tree,) = played.trees
    assert len(tree.nodes) + tree.num_left_out > 4_000
    assert played.door.most <= group_sessions.MAX_WAITING + 3
    assert psutil.Process().memory_info().rss - before < 300 * MIB
    assert found.selected


# --- one by one


class Slow(Counting):
    """Closes a session when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.may_close = asyncio.Event()
        self.may_close.set()

    async def close(self, session_id: str, *, timeout_s: float = 0) -> None:
        await self.may_close.wait()
        await super().close(session_id)


class Sessions:
    """Those of a group, of which few stay open, and nodes that have them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        monkeypatch.setattr(group_sessions, "MAX_WAITING", most)
        self.door = Slow()
        can = Capabilities(deterministic=True, fork=ForkSupport.NATIVE)
        parts: Any = SimpleNamespace(sessions=self.door, spec=SPEC.model_copy(update={"capabilities": can}))
        self.group = group_sessions.GroupSessions(parts, group(), together=True)

    async def root(self) -> Node:
        session = await self.group.open()
        root = Node(
            id="0", parent_id=None, depth=0, observation="A door.", score=0.0, ended=None, task=session.task,
            session_id=session.session_id, index=0, branch=session.session_id, prompt=Prompted(), num_tokens=0,
        )  # fmt: skip
        self.group.arrived(root)
        return root

    async def child(self, parent: Node, action: str) -> Node:
        """What an action leads to, in a fork."""
        (session,) = await self.group.fork(parent, 1)
        result = await self.door.step(session.session_id, parent.index, action)
        turn: Any = SimpleNamespace(action=action)
        child = replace(
            parent, id=f"{parent.id}/{action}", parent_id=parent.id, parent=parent, depth=parent.depth + 1,
            observation=result.observation, session_id=session.session_id, index=parent.index + 1, turn=turn,
        )  # fmt: skip
        self.group.arrived(child)
        return child

    async def come_back_to(self, node: Node) -> None:
        await self.group.take(node)
        await self.group.give_back(node)


async def test_that_which_nobody_came_back_to_for_longest_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(monkeypatch, 2)
    first, second = await sessions.root(), await sessions.root()
    await sessions.come_back_to(first)
    third = await sessions.root()
    await sessions.come_back_to(third)

    assert sessions.door.closed == [second.session_id]


async def test_one_in_use_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(monkeypatch, 1)
    first = await sessions.root()
    await sessions.group.take(first)
    second = await sessions.root()
    await sessions.come_back_to(second)

    assert sessions.door.closed == [second.session_id]


async def closed_child(sessions: Sessions, root: Node) -> Node:
    child = await sessions.child(root, "go left")
    await sessions.come_back_to(root)
    assert sessions.door.closed == [child.session_id]
    return child


async def test_one_is_made_again_from_the_node_above(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(monkeypatch, 1)
    root = await sessions.root()
    child = await closed_child(sessions, root)
    await sessions.group.take(child)

    assert sessions.door.forked[-1] == (root.session_id, 0, child.session_id)
    assert sessions.door.states[child.session_id] == ["go left"]
    assert sessions.group.num_replayed == 1


@pytest.mark.parametrize("why", ["in use", "left"])
async def test_one_that_may_move_on_meanwhile_is_not_forked(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    sessions = Sessions(monkeypatch, 1)
    root = await sessions.root()
    child = await closed_child(sessions, root)
    if why == "in use":
        await sessions.group.take(root)
    else:
        sessions.group.left(root)
    await sessions.group.take(child)

    assert child.session_id == f"s{len(sessions.door.opened)}" == "s2", "it was opened anew"
    assert sessions.door.states["s2"] == ["go left"]


async def test_one_that_is_being_closed_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(monkeypatch, 1)
    first = await sessions.root()
    second = await sessions.root()
    sessions.door.may_close.clear()
    closing = asyncio.create_task(sessions.come_back_to(second))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    before = first.session_id
    await sessions.group.take(first)
    sessions.door.may_close.set()
    await closing

    assert sessions.door.closed == [before]
    assert first.session_id == "f1", "a fork of the other one, which stands at the same node"


@pytest.mark.parametrize("other", [{"score": 0.5}, {"observation": "Another door."}])
async def test_another_state_is_told_by_text_or_score(monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]) -> None:
    sessions = Sessions(monkeypatch, 1)
    child = await closed_child(sessions, await sessions.root())
    step = sessions.door.step

    async def otherwise(session_id: str, index: int, action: str, *, timeout_s: float = 0) -> StepResult:
        return (await step(session_id, index, action)).model_copy(update=other)

    monkeypatch.setattr(sessions.door, "step", otherwise)
    with pytest.raises(EnvironmentFailed, match="came to another state by the actions that led to node 0/go left"):
        await sessions.group.take(child)
