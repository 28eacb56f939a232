"""What strategies that search come to, step by step, and what they ask for on the way."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from gymfleet_contracts.reward import RewardSpec
from gymfleet_contracts.rollout import Budget, EpisodeLimits, Sampling, StrategySpec
from gymfleet_contracts.search import SearchTree
from gymfleet_contracts.session import Capabilities, EnvironmentSpec, ForkSupport, StepResult
from gymfleet_contracts.trajectory import FinishReason, Trajectory
from gymfleet_rollout.asking import number
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.player import Player
from gymfleet_rollout.strategies.graph_of_thoughts import GraphOptions
from gymfleet_rollout.strategy_checks import examine
from pydantic import ValidationError

from tests.unit.rollout.test_episode import CHAT, LEFT, OPEN, SPEC, Door, ScriptedPolicy, group

RIGHT = "Thought: right it is Action: go right"
NAMES = (
    "best_of_n",
    "self_consistency",
    "reflexion",
    "beam",
    "dfsdt",
    "mcts",
    "plan_and_execute",
    "tree_of_thoughts",
    "graph_of_thoughts",
)
Path = tuple[str | None, ...]
Worth = Callable[[Path], float]


class Specs:
    async def spec(self, _: str) -> EnvironmentSpec:
        return SPEC.model_copy(update={"capabilities": Capabilities(deterministic=True, fork=ForkSupport.NATIVE)})


class Scores:
    """Values by actions."""

    def __init__(self, worth: Worth) -> None:
        self.worth = worth
        self.asked: list[Path] = []

    async def totals(self, requests: Any, *, timeout_s: float) -> list[float]:
        del timeout_s
        paths = [actions(request.trajectory) for request in requests]
        self.asked += paths
        return [self.worth(path) for path in paths]


def actions(trajectory: Trajectory) -> Path:
    """What was carried out."""
    return tuple(turn.action for turn in trajectory.turns if turn.role == "agent")


def opened(path: Path) -> float:
    """1 where the door was opened."""
    return float(path[-1:] == ("open",))


class Played:
    """A group that a strategy has played."""

    def __init__(self, use: str, *replies: str, worth: Worth = opened, max_turns: int = 3) -> None:
        self.use, self.max_turns = use, max_turns
        self.door, self.policy, self.scores = Door(), ScriptedPolicy(*replies), Scores(worth)
        made: Any = self.door, Specs(), Formats()
        self.player = Player(self.policy, CHAT, *made, max_episodes=64, evaluator=self.scores)
        self.trajectories: list[Trajectory] = []
        self.trees: list[SearchTree] = []

    async def play(self, options: dict[str, Any] | None = None, **changes: Any) -> list[Trajectory]:
        wanted = group(
            **{
                "strategy": StrategySpec(use=self.use, options=options or {}), "num_samples": 1,
                "limits": EpisodeLimits(max_turns=self.max_turns, max_attempts=1), "evaluator": RewardSpec(),
                "sampling": Sampling(seed=1), **changes,
            }
        )  # fmt: skip

        async def deliver(trajectories: list[Trajectory]) -> None:
            self.trajectories += trajectories

        async def deliver_tree(tree: SearchTree) -> None:
            self.trees.append(tree)

        await self.player.play(wanted, wanted.wanted, deliver, deliver_tree)
        assert {*self.door.closed} == {*(f"s{n + 1}" for n in range(len(self.door.opened)))} | {
            child for _, _, child in self.door.forked
        }, "every session is closed"
        return self.trajectories

    def prompts(self) -> list[str]:
        return [CHAT._tokenizer.decode(call[0]) for call in self.policy.calls]

    def noted(self) -> dict[Path, tuple[float | None, int | None]]:
        """Value and visits of each node of the record, by the actions that lead to it."""
        (tree,) = self.trees
        paths: dict[str, Path] = {}
        for node in tree.nodes:
            paths[node.id] = () if node.parent is None else (*paths[node.parent], node.action)
        return {paths[node.id]: (node.value, node.visits) for node in tree.nodes}


@pytest.mark.parametrize("name", NAMES)
def test_it_keeps_what_a_strategy_promises(name: str) -> None:
    assert examine(name) == []


# --- best of n


@pytest.mark.parametrize("budget", [Budget(), Budget(env_steps=99)], ids=["at once", "one by one"])
async def test_the_best_of_several_is_handed_in_by_the_evaluator_alone(budget: Budget) -> None:
    def left(path: Path) -> float:
        return float(path.count("go left"))

    played = Played("best_of_n", *([OPEN, LEFT] if budget.limits_anything else [OPEN, LEFT, LEFT]), worth=left)

    (best,) = await played.play({"candidates": 2}, budget=budget)

    assert actions(best) == ("go left",) * 3, "the environment is solved by the other one, and nobody is told"
    assert best.selected
    assert sorted(played.scores.asked) == [("go left",) * 3, ("open",)]
    (tree,) = played.trees
    assert sum(bool(node.samples) for node in tree.nodes) == 1
    assert (tree.valued_by, tree.num_forks) == (("goal",), 0)


async def test_of_equals_the_first_is_handed_in() -> None:
    (best,) = await Played("best_of_n", LEFT, RIGHT, max_turns=1).play({"candidates": 2}, budget=Budget(model_calls=9))

    assert actions(best) == ("go left",)


async def test_what_the_budget_cut_short_is_not_compared() -> None:
    played = Played("best_of_n", LEFT, worth=lambda path: -float(len(path)))

    (best,) = await played.play({"candidates": 5}, budget=Budget(env_steps=8))

    assert played.scores.asked == [("go left",) * 3] * 2, "the third had two steps"
    assert best.finish_reason is FinishReason.MAX_TURNS


async def test_without_values_the_first_is_handed_in() -> None:
    played = Played("best_of_n", LEFT, OPEN, max_turns=1)

    (best,) = await played.play({"candidates": 2}, budget=Budget(evaluations=1))

    assert actions(best) == ("go left",)


# --- self-consistency


async def test_the_answer_of_most_is_handed_in_whatever_it_gains() -> None:
    answers = [OPEN, "Thought: a Action: Paris", "Thought: b Action:  paris"]
    played = Played("self_consistency", *answers, max_turns=1)

    (elected,) = await played.play({"candidates": 3})

    assert (elected.turns[0].action, elected.selected, elected.success) == ("Paris", True, False)
    assert not played.scores.asked
    assert played.trees[0].valued_by == ()


async def test_replies_without_an_action_have_no_vote() -> None:
    played = Played("self_consistency", "no idea", "none", "none at all", OPEN, max_turns=1)

    (elected,) = await played.play({"candidates": 4})

    assert actions(elected) == ("open",)


# --- reflexion


async def test_a_lesson_stands_before_the_next_try() -> None:
    played = Played("reflexion", LEFT, "Left is a wall.", OPEN, max_turns=2)
    played.policy.replies = [LEFT, LEFT, "Left is a wall.", OPEN]

    (last,) = await played.play()

    assert [(turn.role, turn.text) for turn in last.turns] == [("reflection", "Left is a wall."), ("agent", OPEN)]
    assert (last.success, last.selected) == (True, True)
    asked, after = played.prompts()[2:]
    assert "> go left" in asked
    assert "You did go left." in asked, "what came of it"
    assert "Left is a wall." in after
    assert played.scores.asked == [("go left",) * 2, ("open",)]
    assert len(played.door.actions) == 3, "the environment does not see the lesson"


@pytest.mark.parametrize(
    ("replies", "options", "num_opened"),
    [
        pytest.param([OPEN], {}, 1, id="good at once"),
        pytest.param([LEFT], {}, 3, id="never good"),
        pytest.param([LEFT], {"tries": 2}, 2, id="two tries"),
        pytest.param([LEFT], {"enough": 0.0}, 1, id="good enough"),
    ],
)
async def test_how_often_it_tries(replies: list[str], options: dict[str, Any], num_opened: int) -> None:
    played = Played("reflexion", *replies, max_turns=2)

    await played.play(options)

    assert len(played.door.opened) == num_opened


async def test_what_is_shown_is_bounded() -> None:
    played = Played("reflexion", LEFT, max_turns=9)

    await played.play({"max_chars": 100, "lessons": 1, "tries": 4})

    asked = [played.prompts()[place] for place in (9, 19, 29)]  # after nine turns each
    shown = [prompt.partition("did not end well:\n")[2].partition("\nWhat you have")[0] for prompt in asked]
    assert [len(text) for text in shown[1:]] == [100 + len(" ...")] * 2
    assert [prompt.count("\n- ") for prompt in asked] == [0, 1, 1]


# --- beam


async def test_the_best_of_a_depth_are_played_on() -> None:
    worth: dict[Path, float] = {
        ("go left",): 0.1,
        ("go right",): 0.2,
        ("go right", "go left"): 0.5,
        ("go right", "open"): 0.4,
    }
    played = Played("beam", LEFT, RIGHT, LEFT, OPEN, worth=lambda path: worth[path], max_turns=2)

    (best,) = await played.play({"width": 1, "candidates": 2})

    assert actions(best) == ("go right", "go left")
    assert best.selected
    assert {path: value for path, (value, _) in played.noted().items()} == {(): None, **worth}


async def test_replies_that_ask_for_the_same_are_one() -> None:
    played = Played("beam", LEFT, max_turns=2)

    await played.play({"width": 2, "candidates": 3})

    assert not played.door.forked
    assert len(played.door.actions) == 2


async def test_a_group_gets_as_many_as_there_are() -> None:
    played = Played("beam", LEFT, OPEN, LEFT, OPEN, max_turns=2)

    found = await played.play({"width": 2, "candidates": 2}, num_samples=2)

    assert [actions(one) for one in found] == [("open",), ("go left", "open")]


async def test_where_the_budget_ends_it_what_is_open_is_handed_in() -> None:
    played = Played("beam", LEFT, RIGHT)

    (best,) = await played.play({"width": 1, "candidates": 2}, budget=Budget(env_steps=3))

    assert best.finish_reason is FinishReason.BUDGET
    assert len(played.door.actions) == 3


# --- plan and execute


@pytest.mark.parametrize(
    ("options", "roles"),
    [
        pytest.param({}, ["planner", "agent", "agent", "agent"], id="once"),
        pytest.param({"every": 2}, ["planner", "agent", "agent", "planner", "agent"], id="again"),
    ],
)
async def test_a_plan_comes_before_what_it_plans(options: dict[str, Any], roles: list[str]) -> None:
    played = Played("plan_and_execute", "First left.", LEFT, max_turns=9)
    played.policy.replies = [
        "First left." if role == "planner" else OPEN if place == len(roles) - 1 else LEFT
        for place, role in enumerate(roles)
    ]

    (trajectory,) = await played.play(options)

    assert [turn.role for turn in trajectory.turns] == roles
    assert (trajectory.success, trajectory.selected) == (True, False)
    assert "First left." in played.prompts()[-1]
    assert len(played.door.actions) == roles.count("agent")


# --- depth first


@pytest.mark.parametrize(
    ("back", "path"),
    [pytest.param(1, ("go left", "open"), id="a turn back"), pytest.param(2, ("open",), id="two turns back")],
)
async def test_after_a_bad_end_something_else_is_tried(back: int, path: tuple[str, ...]) -> None:
    played = Played("dfsdt", LEFT, LEFT, OPEN, max_turns=2)

    (found,) = await played.play({"back": back})

    assert actions(found) == path
    assert found.selected
    last = played.prompts()[-1]
    assert "- go left: You did go left." in last
    assert "Do something else." in last


async def test_when_all_is_tried_the_best_is_handed_in() -> None:
    # Depth first: left-left, left-right, then right-left, right-right.
    replies = [LEFT, LEFT, RIGHT, RIGHT, LEFT, RIGHT]
    worth: dict[Path, float] = {("go left", "go right"): 0.3, ("go right", "go left"): 0.4}
    played = Played("dfsdt", *replies, worth=lambda path: worth.get(path, 0.0), max_turns=2)

    (found,) = await played.play()

    assert actions(found) == ("go right", "go left")
    assert [asked[:2] for asked in played.scores.asked] == [
        ("go left", "go left"), ("go left", "go right"), ("go right", "go left"), ("go right", "go right"),
    ]  # fmt: skip
    assert len(played.policy.calls) == 6, "each way is asked for once"


async def test_a_branch_that_is_given_up_is_not_played_on() -> None:
    played = Played("dfsdt", LEFT, "Thought: no Action: give up", OPEN, max_turns=4)

    (found,) = await played.play({"gives_up": "give up"})

    assert actions(found) == ("open",)
    assert [action for _, _, action in played.door.actions] == ["go left", "open"]
    assert "- go left: " in played.prompts()[-1]


# --- Monte-Carlo tree search

VALUES: dict[Path, float] = {
    ("go left",): 0.2, ("go right",): 0.6, ("go right", "go left"): 0.1, ("go left", "go right"): 0.3,
    ("go right", "go right"): 0.9,
}  # fmt: skip
FIXED = {"children": 2, "widening": 0, "value": "evaluator"}


async def test_simulations_go_where_the_bound_is_highest() -> None:
    # 1: left, 0.2. 2: right, 0.6. 3: of 0.2 + sqrt(ln 2) and 0.6 + sqrt(ln 2) right, and there left: 0.1.
    # 4: of 0.2 + sqrt(ln 3) = 1.25 and 0.35 + sqrt(ln 3 / 2) = 1.09 left, and there right: 0.3.
    played = Played("mcts", LEFT, RIGHT, LEFT, RIGHT, worth=VALUES.__getitem__, max_turns=2)

    (found,) = await played.play({**FIXED, "simulations": 4})

    expected: dict[Path, Any] = {
        (): (pytest.approx(0.3), 4),
        ("go left",): (pytest.approx(0.25), 2),
        ("go right",): (pytest.approx(0.35), 2),
        ("go right", "go left"): (pytest.approx(0.1), 1),
        ("go left", "go right"): (pytest.approx(0.3), 1),
    }
    assert played.noted() == expected
    assert actions(found) == ("go left", "go right"), "the best that ended"
    assert found.selected


async def test_without_exploration_they_go_where_it_was_best() -> None:
    played = Played("mcts", LEFT, RIGHT, LEFT, RIGHT, worth=VALUES.__getitem__, max_turns=2)

    (found,) = await played.play({**FIXED, "simulations": 4, "exploration": 0})

    assert actions(found) == ("go right", "go right")


@pytest.mark.parametrize(
    ("select", "fourth"),
    [
        # Left was asked for twice of three times, and visited twice: 0.2 + 2/3 sqrt(3) / 3 = 0.58; right 0.2 + 1/3
        # sqrt(3) / 2 = 0.49.
        pytest.param("puct", ("go left", "go left"), id="what the policy prefers"),
        pytest.param("uct", ("go right", "go left"), id="what was tried less"),
    ],
)
async def test_what_the_policy_asks_for_more_often(select: str, fourth: tuple[str, ...]) -> None:
    played = Played("mcts", LEFT, LEFT, RIGHT, RIGHT, LEFT, worth=lambda path: 0.2, max_turns=2)

    await played.play({**FIXED, "simulations": 4, "select": select})

    assert played.scores.asked == [("go left",), ("go left", "go right"), ("go right",), fourth]


async def test_a_node_is_worth_what_playing_on_from_it_gains() -> None:
    played = Played("mcts", LEFT, RIGHT, OPEN)

    (found,) = await played.play({"simulations": 1})

    assert actions(found) == ("go left", "go right", "open")
    assert played.trees[0].num_forks == 2
    assert played.noted()["go left",] == (1.0, 1)
    assert played.noted()[()] == (1.0, 1)


async def test_more_ways_on_where_it_came_by_more_often() -> None:
    # floor(sqrt(N)) children: a second of the root, which has 4 visits then, by the fifth simulation.
    replies = [f"Thought: on Action: go {n}" for n in range(9)]
    played = Played("mcts", *replies, worth=lambda path: 0.0, max_turns=9)

    await played.play({"children": 1, "widening": 0.5, "value": "evaluator", "simulations": 5})

    assert sum(len(path) == 1 for path in played.noted()) == 2
    assert [len(path) for path in played.scores.asked] == [1, 2, 3, 4, 1]


async def test_the_search_is_over_when_enough_is_good() -> None:
    played = Played("mcts", OPEN)

    await played.play({"simulations": 50, "enough": 1.0})

    assert len(played.door.actions) == 1


async def test_a_policy_that_always_asks_for_the_same_is_played_once() -> None:
    played = Played("mcts", LEFT, max_turns=3)

    (found,) = await played.play({"simulations": 5})

    assert actions(found) == ("go left",) * 3


# --- trees and graphs of thoughts


def test_an_answer_is_a_number_by_itself() -> None:
    texts = {
        "7": 7,
        "I say 3.5.": 3.5,
        "10": 10,
        "11": None,
        "": None,
        "good": None,
        "3 or 4": None,
        "7, so 7": 7,
        "-1": 1,
    }

    assert {text: number(text, 10) for text in texts} == texts


async def test_the_policy_marks_what_it_did_and_plays_on_the_best() -> None:
    # Left gets 2 and 4, right 9 and one answer that is none; of right's two both end.
    replies = [LEFT, RIGHT, "2", "4", "9", "who knows", LEFT, RIGHT, "1", "1", "8", "8"]
    played = Played("tree_of_thoughts", *replies, max_turns=2)

    (found,) = await played.play({"children": 2, "samples": 2, "width": 1})

    assert actions(found) == ("go right", "go right")
    assert found.selected
    values = {path: value for path, (value, _) in played.noted().items()}
    assert values == {
        (): None, ("go left",): pytest.approx(0.3), ("go right",): pytest.approx(0.9),
        ("go right", "go left"): pytest.approx(0.1), ("go right", "go right"): pytest.approx(0.8),
    }  # fmt: skip
    assert played.trees[0].counts == {"unreadable answers": 1}
    assert not played.scores.asked, "nobody is told what it gains"
    assert "go left: You did go left." in played.prompts()[2]


async def test_votes_count_for_one_of_all() -> None:
    played = Played("tree_of_thoughts", LEFT, RIGHT, "2", "1", "2", max_turns=1)

    (found,) = await played.play({"children": 2, "value": "votes"})

    assert actions(found) == ("go right",)
    assert played.noted()["go right",][0] == pytest.approx(2 / 3)


async def test_deep_it_comes_back_to_the_second_best() -> None:
    # Right first: both of its ways on are pruned. Then left.
    replies = [LEFT, RIGHT, "5", "9", LEFT, RIGHT, "1", "0", OPEN, LEFT, "9", "3"]
    played = Played("tree_of_thoughts", *replies, max_turns=2)

    (found,) = await played.play({"children": 2, "samples": 1, "search": "dfs"})

    assert actions(found) == ("go left", "open")


async def test_ways_on_that_are_listed_are_taken_one_by_one() -> None:
    played = Played("tree_of_thoughts", "- go left\n- go right\n- go up\n- go left", LEFT, RIGHT, "1", "2", max_turns=1)

    (found,) = await played.play({"children": 2, "samples": 1, "generate": "proposed"})

    assert actions(found) == ("go right",)
    assert "Do this now: go left" in played.prompts()[1]
    assert "Do this now: go right" in played.prompts()[2]
    assert len(played.policy.calls) == 5


async def test_candidates_go_through_the_operations() -> None:
    replies = [LEFT, RIGHT, "3", "8", "Thought: more Action: go up", "Thought: both Action: open"]
    operations = [
        {"do": "generate", "count": 2}, {"do": "score"}, {"do": "keep_best", "count": 1}, {"do": "refine"},
        {"do": "aggregate"},
    ]  # fmt: skip
    played = Played("graph_of_thoughts", *replies)

    (found,) = await played.play({"operations": operations})

    assert actions(found) == ("open",)
    assert [action for _, _, action in played.door.actions] == ["open"], "nothing else is tried"
    prompts = played.prompts()
    assert "go right" in prompts[4]
    assert "go left" not in prompts[4], "only the best is bettered"
    assert "- Thought: more Action: go up" in prompts[5]


async def test_without_an_answer_the_first_candidate_is_carried_out() -> None:
    operations = [{"do": "generate", "count": 2}, {"do": "score"}]
    played = Played("graph_of_thoughts", OPEN, LEFT, "hm", "hm")

    (found,) = await played.play({"operations": operations})

    assert actions(found) == ("open",)


@pytest.mark.parametrize(
    ("operations", "told"),
    [
        (["score"], "operations.0: there is nothing to score: generate comes first"),
        (["generate", "keep_best"], "operations.1: keep_best needs marks: score comes before it"),
        (["generate", "score", "refine", "keep_best"], "operations.3: keep_best needs marks: score comes before it"),
    ],
)
def test_operations_without_what_they_work_on_are_refused(operations: list[str], told: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(told)):
        GraphOptions.model_validate({"operations": [{"do": one} for one in operations]})


# --- what is not told


class Blinded(Door):
    """The same door, whose score and reward say the opposite."""

    async def step(self, session_id: str, index: int, action: str, *, timeout_s: float = 0) -> StepResult:
        result = await super().step(session_id, index, action, timeout_s=timeout_s)
        return result.model_copy(update={"score": 1.0 - result.score, "reward": 1.0 - result.reward})


@pytest.mark.parametrize("name", NAMES)
async def test_no_strategy_chooses_by_the_score_of_the_environment_itself(name: str) -> None:
    replies = [LEFT, RIGHT, OPEN, LEFT, "7", RIGHT, OPEN, "3", LEFT, OPEN] * 8
    seen, blinded = (Played(name, *replies, max_turns=3) for _ in range(2))
    blinded.door.__class__ = Blinded

    found = [[actions(one) for one in await played.play()] for played in (seen, blinded)]

    assert found[0] == found[1]
    assert len(seen.policy.calls) == len(blinded.policy.calls)
