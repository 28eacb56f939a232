"""Searches that keep few sessions: others are closed, and made again by the actions that led to their nodes."""

import asyncio
import random
from typing import Any

import psutil
import pytest
from gymfleet_contracts.session import Capabilities, EnvironmentSpec, ForkSupport, OpenSession, StepResult
from gymfleet_contracts.trajectory import Status, sampled_by
from gymfleet_rollout import group_sessions
from gymfleet_rollout.inference.base import Generation

from tests.fixtures.searches import RIGHT, Path, Played, Specs, actions
from tests.unit.rollout.test_episode import CHAT, LEFT, SPEC, Door, ScriptedPolicy

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
