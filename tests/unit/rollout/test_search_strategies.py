"""What strategies that search come to, step by step, and what they ask for on the way."""

from typing import Any

import pytest
from gymfleet_contracts.rollout import Budget, EpisodeLimits
from gymfleet_contracts.session import StepResult
from gymfleet_contracts.trajectory import FinishReason, Status
from gymfleet_rollout.strategy_checks import examine

from tests.fixtures.searches import RIGHT, Path, Played, actions
from tests.unit.rollout.test_episode import LEFT, OPEN, Door

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

    assert played.scores.asked == [("go left",) * 3], "two ended alike, and the third had two steps"
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


async def test_where_the_budget_allows_no_values_what_has_ended_is_handed_in() -> None:
    played = Played("beam", LEFT, OPEN, max_turns=2)

    (best,) = await played.play({"width": 1, "candidates": 2}, budget=Budget(evaluations=1))

    assert (actions(best), best.finish_reason) == (("open",), FinishReason.TERMINATED)


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


async def test_a_node_without_room_for_the_list_is_left_for_one_nearer_to_the_root() -> None:
    free = Played("dfsdt", LEFT, LEFT, LEFT, OPEN, max_turns=2)
    await free.play()
    root, child, child_again, root_again = (len(call[0]) for call in free.policy.calls)
    assert child < root_again < child_again

    played = Played("dfsdt", LEFT, LEFT, OPEN, max_turns=2)
    (found,) = await played.play(limits=EpisodeLimits(max_turns=2, max_attempts=1, max_context_tokens=child_again))

    assert actions(found) == ("open",)
    assert [len(call[0]) for call in played.policy.calls] == [root, child, root_again]
    assert played.trees[0].counts["hints without room"] == 1


async def test_without_room_anywhere_the_best_is_handed_in() -> None:
    free = Played("dfsdt", LEFT, LEFT, max_turns=1)
    await free.play()
    again = len(free.policy.calls[1][0])

    played = Played("dfsdt", LEFT, max_turns=1)
    (found,) = await played.play(limits=EpisodeLimits(max_turns=1, max_attempts=1, max_context_tokens=again))

    assert (actions(found), found.finish_reason, found.selected) == (("go left",), FinishReason.MAX_TURNS, True)


async def test_an_episode_ends_where_the_context_has_no_room_for_a_plan() -> None:
    free = Played("plan_and_execute", "First left.", LEFT, max_turns=9)
    await free.play({"every": 1})
    third = len(free.policy.calls[2][0])  # a plan, an action, and a plan again

    played = Played("plan_and_execute", "First left.", LEFT, max_turns=9)
    limits = EpisodeLimits(max_turns=9, max_attempts=1, max_context_tokens=third)
    (cut,) = await played.play({"every": 1}, limits=limits)

    assert [turn.role for turn in cut.turns] == ["planner", "agent"]
    assert (cut.status, cut.finish_reason) == (Status.TRUNCATED, FinishReason.CONTEXT_LENGTH)


async def test_without_room_for_the_first_plan_there_is_no_episode() -> None:
    free = Played("plan_and_execute", "First left.", LEFT)
    await free.play()
    first = len(free.policy.calls[0][0])

    played = Played("plan_and_execute", "First left.", LEFT)
    (failed,) = await played.play(limits=EpisodeLimits(max_turns=3, max_attempts=1, max_context_tokens=first))

    assert failed.status is Status.POLICY_ERROR
    assert f"no room for a reply: with it, the prompt has {first} tokens" in str(failed.error)


async def test_a_branch_that_is_given_up_is_not_played_on() -> None:
    played = Played("dfsdt", LEFT, "Thought: no Action: give up", OPEN, max_turns=4)

    (found,) = await played.play({"gives_up": "give up"})

    assert actions(found) == ("open",)
    assert [action for _, _, action in played.door.actions] == ["go left", "open"]
    assert "- go left: " in played.prompts()[-1]


async def test_a_policy_that_gives_up_at_once_has_taken_a_turn() -> None:
    played = Played("dfsdt", "Thought: no Action: give up")

    (found,) = await played.play({"gives_up": "give up"})

    assert (found.status, found.finish_reason) == (Status.TRUNCATED, FinishReason.STOPPED)
    assert [(turn.text, turn.action) for turn in found.turns] == [("Thought: no Action: give up", None)]
    assert played.door.actions == []


async def test_a_policy_that_values_no_way_on_has_taken_the_best() -> None:
    played = Played("tree_of_thoughts", LEFT, RIGHT, "1", "1", "1", "0", "0", "0")

    (found,) = await played.play({"search": "dfs", "children": 2})

    assert actions(found) == ("go left",)


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


async def test_episodes_that_went_alike_are_valued_once() -> None:
    played = Played("best_of_n", LEFT, OPEN, LEFT, OPEN, RIGHT, OPEN)

    (found,) = await played.play({"candidates": 3}, budget=Budget(evaluations=2))

    assert sorted(played.scores.asked) == [("go left", "open"), ("go right", "open")]
    (tree,) = played.trees
    assert tree.spent.evaluations == 2
    assert [node.value for node in tree.nodes if node.ended] == [1.0, 1.0, 1.0]
    assert found.selected
