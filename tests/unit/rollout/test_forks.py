"""Episodes whose states are valued by continuations from forks: what is played, what is said, what it costs."""

from typing import Any

import pytest
from gymfleet_contracts.rollout import Budget, EpisodeLimits, Sampling, StrategySpec
from gymfleet_contracts.search import SearchTree
from gymfleet_contracts.session import Capabilities, EnvironmentSpec, ForkSupport, OpenSession, Session, StepResult
from gymfleet_contracts.trajectory import FinishReason, StateValue, Status, Trajectory
from gymfleet_kit.plugins import PluginError
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.player import Player
from gymfleet_rollout.strategies.forks import Forks
from gymfleet_rollout.strategy import strategy_of

from tests.fixtures.searches import BY_SCORE
from tests.fixtures.strategies import HEAD, Table
from tests.unit.rollout.test_episode import CHAT, LEFT, OPEN, SPEC, Door, ScriptedPolicy, group
from tests.unit.rollout.test_episode import Specs as Unforked

LIMITS = EpisodeLimits(max_turns=3, max_attempts=1)


class Specs:
    async def spec(self, _: str) -> EnvironmentSpec:
        return SPEC.model_copy(update={"capabilities": Capabilities(deterministic=True, fork=ForkSupport.NATIVE)})


class Scores:
    """The reward is the environment's score."""

    def __init__(self) -> None:
        self.num_asked = 0

    async def totals(self, requests: Any, *, timeout_s: float) -> list[float]:
        del timeout_s
        self.num_asked += len(requests)
        return [request.trajectory.score for request in requests]


class Played:
    """A group that was played by `forks`."""

    def __init__(self, *replies: str, specs: Any = None) -> None:
        self.door, self.policy, self.scores = Door(), ScriptedPolicy(*replies), Scores()
        made: Any = self.door, specs or Specs(), Formats()
        self.player = Player(self.policy, CHAT, *made, max_episodes=8, evaluator=self.scores)
        self.trajectories: list[Trajectory] = []
        self.trees: list[SearchTree] = []

    async def play(self, options: dict[str, Any], **changes: Any) -> list[Trajectory]:
        wanted = group(
            **{
                "strategy": StrategySpec(use="forks", options=options), "num_samples": 1, "limits": LIMITS,
                "evaluator": BY_SCORE, "sampling": Sampling(seed=1), **changes,
            }
        )  # fmt: skip

        async def deliver(trajectories: list[Trajectory]) -> None:
            self.trajectories += trajectories

        async def deliver_tree(tree: SearchTree) -> None:
            self.trees.append(tree)

        await self.player.play(wanted, wanted.wanted, deliver, deliver_tree)
        return self.trajectories


def values(trajectory: Trajectory) -> list[tuple[float, int] | None]:
    return [None if turn.value is None else (turn.value.mean, turn.value.samples) for turn in trajectory.turns]


async def test_a_state_is_worth_what_its_continuations_gain_on_average() -> None:
    # Two continuations of the beginning: one opens at once, the other goes left three times. Then the episode itself
    # goes left, two continuations from there open, and it opens.
    played = Played(OPEN, LEFT, LEFT, LEFT, LEFT, OPEN, OPEN, OPEN)

    (trajectory,) = await played.play({"continuations": 2})

    assert [turn.action for turn in trajectory.turns] == ["go left", "open"]
    assert values(trajectory) == [(0.5, 2), (1.0, 2)]
    assert (trajectory.status, trajectory.group_size, trajectory.selected) == (Status.COMPLETED, 1, False)
    assert [(parent, index) for parent, index, _ in played.door.forked] == [("s1", 0)] * 2 + [("s1", 1)] * 2
    assert played.scores.num_asked == 3, "two continuations opened alike"
    (tree,) = played.trees
    assert (tree.spent.env_steps, tree.spent.model_calls, tree.spent.evaluations) == (8, 8, 3)
    noted = {node.id: (node.value, node.visits) for node in tree.nodes}
    assert (noted["0"], noted["1"], noted["2"]) == ((0.5, 2), (1.0, 2), (None, None))
    assert sum(bool(node.samples) for node in tree.nodes) == 1, "continuations are in the record of the search alone"


async def test_a_group_begins_in_one_state_that_is_valued_once() -> None:
    played = Played(OPEN)

    trajectories = await played.play({"continuations": 2}, num_samples=3)

    assert [values(trajectory) for trajectory in trajectories] == [[(1.0, 2)]] * 3
    assert len(played.door.forked) == 2 + 2, "continuations, and the other two episodes"
    assert len({trajectory.turns[0].node for trajectory in trajectories}) == 3
    assert {trajectory.turns[0].parent for trajectory in trajectories} == {"0"}


@pytest.mark.parametrize(
    ("options", "valued"),
    [
        pytest.param({"every": 2}, [True, False, True, False, True], id="every second state"),
        pytest.param({"skip": 2}, [False, False, True, True, True], id="not the first"),
        pytest.param({"skip": 1, "every": 3}, [False, True, False, False, True], id="both"),
        pytest.param({"max_forks": 2}, [True, True, False, False, False], id="two at the most"),
        pytest.param({"every": 2, "max_forks": 2}, [True, False, True, False, False], id="two of every second"),
    ],
)
async def test_which_states_are_valued(options: dict[str, int], valued: list[bool]) -> None:
    limits = LIMITS.model_copy(update={"max_turns": 5})

    (trajectory,) = await Played(LEFT).play({"continuations": 1, **options}, limits=limits)

    assert [turn.value is not None for turn in trajectory.turns] == valued
    assert trajectory.finish_reason is FinishReason.MAX_TURNS


async def test_a_continuation_ends_where_its_episode_would() -> None:
    played = Played(LEFT)

    await played.play({"continuations": 1})

    steps = {session: index for session, index, _ in played.door.actions}
    assert steps == {"s1": 2, "f1": 2, "f2": 2, "f3": 2}, "the third turn is the last of each"


async def test_sessions_of_continuations_make_room_before_the_episode_goes_on() -> None:
    played = Played(LEFT)

    await played.play({"continuations": 2})

    assert played.door.closed[-1] == "s1"
    assert sorted(played.door.closed) == sorted(["s1", *(child for _, _, child in played.door.forked)])
    assert len(played.door.closed) == len(set(played.door.closed)), "each once"


async def test_continuations_may_be_handed_in_with_the_turns_before_them() -> None:
    played = Played(LEFT)

    trajectories = await played.play({"continuations": 1, "train_continuations": True, "max_forks": 2})

    own, *continued = trajectories
    assert [trajectory.group_size for trajectory in trajectories] == [3, 3, 3]
    assert values(own) == [(0.0, 1), (0.0, 1), None]
    assert [values(one) for one in continued] == [[(0.0, 1), None, None], [(0.0, 1), (0.0, 1), None]]
    assert continued[1].turns[0] == own.turns[0]
    assert [one.turns[-1].node for one in continued] == ["3-0.1", "3-1.1"]


async def test_a_state_whose_continuations_have_not_all_ended_has_no_value() -> None:
    played = Played(LEFT, OPEN, LEFT)

    (trajectory,) = await played.play({"continuations": 2, "skip": 1}, budget=Budget(env_steps=2))

    assert (trajectory.finish_reason, values(trajectory)) == (FinishReason.BUDGET, [None])
    (tree,) = played.trees
    assert (played.scores.num_asked, tree.spent.env_steps) == (0, 2)
    assert {node.value for node in tree.nodes} == {None}


async def test_episodes_that_the_continuations_leave_no_budget_for_are_failures() -> None:
    """Not episodes without a turn, which would look like failures of the policy."""
    played = Played(LEFT)

    trajectories = await played.play({"continuations": 2}, num_samples=2, budget=Budget(env_steps=3))

    assert [(one.status, one.turns) for one in trajectories] == [(Status.POLICY_ERROR, ())] * 2
    assert {one.error for one in trajectories} == {
        "StrategyError: the budget was spent before an episode began (env_steps: 4 would exceed 3)"
    }


async def test_those_that_were_begun_are_handed_in_without_the_others() -> None:
    played = Played(LEFT)

    (trajectory,) = await played.play({"max_forks": 1, "skip": 2}, num_samples=2, budget=Budget(env_steps=1))

    assert (trajectory.finish_reason, len(trajectory.turns)) == (FinishReason.BUDGET, 1)
    assert trajectory.group_size == 1


async def test_an_environment_that_cannot_fork_is_refused_before_anything_is_played() -> None:
    played = Played(LEFT, specs=Unforked())

    (trajectory,) = await played.play({})

    assert trajectory.status is Status.POLICY_ERROR
    assert "door cannot fork, and forks forks its sessions: give another strategy" in (trajectory.error or "")
    assert (played.door.opened, played.policy.calls) == ([], [])


def test_continuations_are_no_episodes_from_the_beginning() -> None:
    spec = StrategySpec(use="forks", options={"skip": 1, "train_continuations": True})

    with pytest.raises(PluginError, match="train_continuations needs the value of the first state: give skip = 0"):
        strategy_of(Forks, spec)


class Keyed(Door):
    """Tells the keys of its states to those who ask for them: what was done last."""

    async def open(self, request: OpenSession, *, timeout_s: float = 0) -> Session:
        opened = await super().open(request, timeout_s=timeout_s)
        return opened.model_copy(update={"state_key": "closed"}) if request.state_keys else opened

    async def step(self, session_id: str, index: int, action: str, *, timeout_s: float = 0) -> StepResult:
        result = await super().step(session_id, index, action, timeout_s=timeout_s)
        return result.model_copy(update={"state_key": action}) if self.opened[0].state_keys else result


async def test_turns_carry_the_keys_of_the_states_in_which_they_were_played() -> None:
    played = Played(LEFT, "no action", LEFT)
    played.door = Keyed()
    made: Any = played.door, Specs(), Formats()
    played.player = Player(played.policy, CHAT, *made, max_episodes=8, evaluator=played.scores)
    task = OpenSession(env="door", task_index=0, state_keys=True)

    own, *others = await played.play({"continuations": 1, "max_forks": 1, "skip": 2}, task=task, num_samples=2)

    assert [turn.state_key for turn in own.turns] == ["closed", "go left", "go left"]
    (other,) = others
    assert [turn.state_key for turn in other.turns] == ["closed", "closed", "go left"], (
        "a fork is in the same state, and so is what comes of a reply without an action"
    )


VALUING = HEAD.replace("    Options = Options", "    Options, facts = Options, StrategyFacts(values=True)")
BODY = """
        node = await ctx.open()
        {}
        (reply,) = await ctx.propose(node)
        ctx.export(await ctx.act(node, reply))
"""


@pytest.mark.parametrize(
    ("line", "head", "reason"),
    [
        ("ctx.value(node, 1.0, 2)", HEAD, "states are valued only where the strategy says facts.values"),
        ("ctx.value(node, 1.0, 0)", VALUING, "the value of node 0 is of 0 episodes"),
        ("ctx.value(node, float('inf'), 1)", VALUING, "the value inf of node 0 is not finite"),
        ("await ctx.release(node)", VALUING, "node 0 was played on"),
        (
            "ctx.export(await ctx.act(node, (await ctx.propose(node, greedy=True))[0]))",
            HEAD,
            "node 1 came of greedy replies, which are no samples of the policy",
        ),
    ],
)
async def test_what_makes_no_sense_is_one_line(tmp_path: Any, line: str, head: str, reason: str) -> None:
    table = Table(tmp_path / "mine.py", BODY.format(line), ScriptedPolicy(OPEN), head=head)

    found = await table.play(limits=LIMITS)

    assert {trajectory.status for trajectory in found} == {Status.POLICY_ERROR}
    assert reason in (found[0].error or "")


async def test_a_strategy_of_ones_own_may_value_states(tmp_path: Any) -> None:
    table = Table(tmp_path / "mine.py", BODY.format("ctx.value(node, 0.25, 2)"), ScriptedPolicy(OPEN), head=VALUING)

    (trajectory,) = await table.play()

    assert trajectory.turns[0].value == StateValue(mean=0.25, samples=2)
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory
    assert "state_key" not in trajectory.model_dump_json()
