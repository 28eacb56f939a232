import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from gymfleet_contracts.session import ForkSupport
from gymfleet_envs.alfworld.environment import ENVIRONMENT, Alfworld, AlfworldOptions
from gymfleet_envs.alfworld.game import Game, Goal
from gymfleet_envs.alfworld.generate import generated_tasks
from gymfleet_envs.alfworld.household import Household, Thing
from gymfleet_envs.alfworld.vocabulary import HOLDS, TASK_TYPES
from gymfleet_envs.alfworld.wording import Wording
from gymfleet_envs.environment import Outcome

from tests.fixtures.paths import SHARED_DATA

PROMPTS = SHARED_DATA / "alfworld" / "prompts" / "alfworld_3prompts.json"
TASKS = generated_tasks()
HOUSEHOLD = Household(
    receptacles=("Desk", "Drawer", "Bed", "Fridge", "Microwave", "SinkBasin", "CounterTop"),
    things=(Thing("Mug", 0), Thing("Mug", 1), Thing("Pen", 1), Thing("DeskLamp", 0), Thing("Cloth", 2)),
    goal=Goal("pick_and_place_simple", "Mug", "CounterTop"),
    sentence="put some mug on countertop",
)


def household(task_type: str, receptacle: str) -> Household:
    return Household(HOUSEHOLD.receptacles, HOUSEHOLD.things, Goal(task_type, "Mug", receptacle), "do it")


def opened(task: Household = HOUSEHOLD) -> Alfworld:
    environment = ENVIRONMENT()
    environment.reset(task, 0)
    return environment


def solve(environment: Alfworld, limit: int = 50) -> list[tuple[str, Outcome]]:
    moves = []
    for _ in range(limit):
        move = environment.expert()
        assert move is not None
        moves.append((move.action, environment.step(move.action)))
        assert moves[-1][1].action_valid
        if moves[-1][1].terminated:
            return moves
    raise AssertionError("the expert did not finish")


def test_first_observation_and_start_info() -> None:
    environment = ENVIRONMENT()

    first = environment.reset(HOUSEHOLD, 0)

    assert first == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see "
        "a bed 1, a countertop 1, a desk 1, a drawer 1, a fridge 1, a microwave 1, and a sinkbasin 1.\n\n"
        "Your task is to: put some mug on countertop."
    )
    assert environment.start_info["task_type"] == "pick_and_place_simple"
    actions: Any = environment.start_info["available_actions"]
    assert set(actions) == {
        "help", "inventory", "look", "go to bed 1", "go to countertop 1", "go to desk 1", "go to drawer 1",
        "go to fridge 1", "go to microwave 1", "go to sinkbasin 1",
    }  # fmt: skip
    assert actions == sorted(actions)


@pytest.mark.parametrize("wording", ["classic", "current"])
@pytest.mark.parametrize(
    "put",
    [
        "put mug 1 in/on countertop 1", "move mug 1 to countertop 1", "put mug 1 on countertop 1",
        "put mug 1 in countertop 1", "  Put  Mug 1 in/on countertop 1.", "move mug 1 in/on countertop 1",
    ],
)  # fmt: skip
def test_both_ways_to_put_are_understood_in_both_wordings(
    put: str, wording: Wording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Alfworld, "options", AlfworldOptions(wording=wording))
    environment = opened()
    for action in ("go to drawer 1", "open drawer 1", "take mug 1 from drawer 1", "go to countertop 1"):
        environment.step(action)

    outcome = environment.step(put)

    said = {"classic": "put the mug 1 in/on the", "current": "move the mug 1 to the"}[wording]
    assert outcome.observation == f"You {said} countertop 1."
    assert (outcome.reward, outcome.score, outcome.terminated, outcome.action_valid) == (1.0, 1.0, True, True)
    assert environment.expert() is None


def test_reward_comes_with_the_goal_alone() -> None:
    moves = solve(opened(household("pick_heat_then_place_in_recep", "CounterTop")))

    assert [outcome.reward for _, outcome in moves] == [0.0] * (len(moves) - 1) + [1.0]
    assert [outcome.score for _, outcome in moves] == [0.0] * (len(moves) - 1) + [1.0]
    assert [outcome.terminated for _, outcome in moves] == [False] * (len(moves) - 1) + [True]


@pytest.mark.parametrize(
    ("task_type", "last", "without"),
    [
        ("pick_heat_then_place_in_recep", "heat mug 1 with microwave 1", "microwave"),
        ("pick_cool_then_place_in_recep", "cool mug 1 with fridge 1", "fridge"),
        ("pick_clean_then_place_in_recep", "clean mug 1 with sinkbasin 1", "sinkbasin"),
    ],
)
def test_a_mug_that_was_not_treated_does_not_count(task_type: str, last: str, without: str) -> None:
    environment = opened(household(task_type, "CounterTop"))
    for action in ("go to drawer 1", "open drawer 1", "take mug 1 from drawer 1", "go to countertop 1"):
        environment.step(action)

    assert environment.step("put mug 1 in/on countertop 1").score == 0
    environment.step("take mug 1 from countertop 1")
    environment.step(f"go to {without} 1")
    assert environment.step(last).score == 0
    environment.step("go to countertop 1")
    assert environment.step("put mug 1 in/on countertop 1").score == 1


@pytest.mark.parametrize(
    ("task_type", "undoing"),
    [
        ("pick_cool_then_place_in_recep", ("cool mug 1 with fridge 1", "heat mug 1 with microwave 1")),
        ("pick_heat_then_place_in_recep", ("heat mug 1 with microwave 1", "cool mug 1 with fridge 1")),
    ],
)
def test_heat_drives_out_cold_and_cold_heat(task_type: str, undoing: tuple[str, str]) -> None:
    environment = opened(household(task_type, "CounterTop"))
    actions = ["go to drawer 1", "open drawer 1", "take mug 1 from drawer 1"]
    for action in undoing:
        actions += [f"go to {action.rpartition('with ')[2]}", action]
    for action in (*actions, "go to countertop 1"):
        assert environment.step(action).action_valid

    assert environment.step("put mug 1 in/on countertop 1").score == 0


def test_looking_takes_lamp_and_thing_together() -> None:
    environment = opened(household("look_at_obj_in_light", "DeskLamp"))
    environment.step("go to desk 1")

    assert environment.step("use desklamp 1").score == 0
    (mug,) = (action for action in _actions(environment) if action.startswith("take mug"))
    assert environment.step(mug).score == 1


def test_two_things_must_be_in_one_place() -> None:
    environment = opened(household("pick_two_obj_and_place", "CounterTop"))

    moves = solve(environment)

    assert [action for action, _ in moves if action.startswith("put")] == [
        "put mug 2 in/on countertop 1",
        "put mug 1 in/on countertop 1",
    ]


def _actions(environment: Alfworld) -> list[str]:
    listed: Any = environment.step("look").info["available_actions"]
    return list(listed)


def test_expert_goes_on_from_whatever_the_policy_did() -> None:
    environment = opened(household("pick_cool_then_place_in_recep", "CounterTop"))
    for action in (
        "go to bed 1", "take cloth 1 from bed 1", "go to drawer 1", "open drawer 1", "close drawer 1", "nonsense",
        "go to countertop 1",
    ):  # fmt: skip
        environment.step(action)

    assert solve(environment)[-1][1].score == 1


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_expert_solves_each_task_type_after_random_moves(task_type: str) -> None:
    tasks = [
        task.data
        for index in range(60)
        if (task := TASKS.by_index("train", "room", index)).data.goal.task_type == task_type
    ][:3]
    assert tasks
    for data in tasks:
        environment = opened(data)
        for turn in range(12):
            actions = _actions(environment)
            environment.step(actions[(turn * 7) % len(actions)])
            if environment.expert() is None:
                break
        else:
            assert solve(environment)[-1][1].score == 1


def test_expert_solves_generated_tasks_within_their_limits() -> None:
    for level in TASKS.levels:
        for index in range(4):
            environment = opened(TASKS.by_index("validation", level, index).data)
            assert environment.turn_limit is not None
            assert solve(environment, environment.turn_limit)[-1][1].score == 1
            environment.close()


def test_expert_searches_as_a_player_must() -> None:
    environment = opened()

    action, first = solve(environment)[0]

    assert action.startswith("go to")
    assert first.score == 0


def test_games_without_a_known_goal_are_solved_by_their_walkthrough(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = ("go to drawer 1", "open drawer 1", "take mug 1 from drawer 1", "go to countertop 1",
            "put mug 1 in/on countertop 1")  # fmt: skip
    made = HOUSEHOLD.game("classic")
    game = Game(made.domain, made.grammar, made.problem, walkthrough=plan)

    class Given:
        def game(self, wording: Wording) -> Game:
            return game

    environment = ENVIRONMENT()
    environment.reset(Given(), 0)
    assert [action for action, _ in solve(environment)] == list(plan)

    astray = ENVIRONMENT()
    astray.reset(Given(), 0)
    astray.step("go to bed 1")
    assert astray.expert() is None


HOSTILE = {
    "empty": "",
    "blank": " \n\t",
    "megabyte": "take " * 200_000,
    "megabyte of put": "put " + "a in " * 200_000,
    "control": "go to\x00 desk 1\x1b[2J\r\n",
    "Chinese": "去书桌",
    "Arabic": "اذهب إلى المكتب",
    "surrogate": "go to \ud800 1",
    "PDDL": "(GotoLocation agent1 loc_bar_07 loc_bar_00 desk_bar_01)",
    "operator": "gotolocation agent1 loc_bar_07 loc_bar_00 desk_bar_01",
    "ids": "go to desk_bar_01",
    "grammar": "#intro# {__import__('os').getpid()}",
    "format": "{0.__class__}%s%n",
    "two lines": "go to desk 1\ntake mug 2 from desk 1",
    "put nothing": "put  in/on ",
}


@pytest.mark.parametrize("action", HOSTILE.values(), ids=HOSTILE)
def test_hostile_action_changes_nothing(action: str) -> None:
    environment = opened()
    before = _actions(environment)

    outcome = environment.step(action)

    assert (outcome.observation, outcome.action_valid, outcome.score) == ("Nothing happens.", False, 0.0)
    assert _actions(environment) == before
    assert solve(environment)[-1][1].score == 1


def test_actions_are_shown_where_the_operator_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Alfworld, "options", AlfworldOptions(show_actions=True))
    environment = ENVIRONMENT()

    first = environment.reset(HOUSEHOLD, 0)

    assert first.endswith(f"\nAVAILABLE ACTIONS: {','.join(map(str, _actions(environment)))}")
    assert environment.step("go to bed 1").observation.startswith("You arrive at loc ")


def test_closing_before_the_first_reset_and_twice_is_harmless() -> None:
    ENVIRONMENT().close()
    environment = opened()

    environment.close()
    environment.close()


def test_it_forks_by_replay_and_says_so() -> None:
    spec = ENVIRONMENT.spec(TASKS)

    assert spec.capabilities.fork == ForkSupport.REPLAY
    assert spec.capabilities.deterministic
    assert spec.capabilities.stable_observations
    assert spec.max_turns == 50


def test_levels_grow_and_tiny_is_tiny() -> None:
    sizes = {}
    for level in TASKS.levels:
        tasks = [TASKS.by_index("train", level, index).data for index in range(20)]
        sizes[level] = sum(len(task.receptacles) + len(task.things) for task in tasks) / 20
        kinds = {task.goal.task_type for task in tasks}
        assert len(kinds) == {"tiny": 1, "small": 3}.get(level, len(kinds))
        if level == "tiny":
            assert all(3 <= len(task.receptacles) <= 4 and len(task.things) <= 2 for task in tasks)
            assert all(task.turn_limit == 12 for task in tasks)
    assert list(sizes.values()) == sorted(sizes.values())


def test_the_larger_levels_have_all_six_task_types() -> None:
    for level in ("room", "house"):
        seen = {TASKS.by_index("train", level, index).data.goal.task_type for index in range(80)}
        assert seen == set(TASK_TYPES)


def test_no_generated_task_is_solved_at_the_beginning_and_things_are_where_they_may_be() -> None:
    for level in TASKS.levels:
        for index in range(40):
            task = TASKS.by_index("train", level, index).data
            goal = task.goal
            for thing in task.things:
                at = task.receptacles[thing.place]
                if thing.kind == goal.thing and goal.task_type != "look_at_obj_in_light":
                    assert at != goal.receptacle
                elif thing.kind != goal.thing:
                    assert thing.kind in HOLDS[at]


TRANSCRIPT_LINES = sorted(
    {line for text in json.loads(PROMPTS.read_text()).values() for line in text.split("\n")}
    if PROMPTS.is_file()
    else ()
)
_THINGS = r"a [a-z]+ \d+(?:, a [a-z]+ \d+)*(?:,? and a [a-z]+ \d+)?"
_ONE = r"[a-z]+ \d+"
SAYINGS = re.compile(
    rf"On the {_ONE}, you see (?:nothing|{_THINGS})\."
    rf"|The {_ONE} is closed\.|The {_ONE} is open\. In it, you see (?:nothing|{_THINGS})\."
    rf"|You open the {_ONE}\. The {_ONE} is open\. In it, you see (?:nothing|{_THINGS})\."
    rf"|You close the {_ONE}\.|You pick up the {_ONE} from the {_ONE}\.|You put the {_ONE} in/on the {_ONE}\."
    rf"|You (?:clean|heat|cool) the {_ONE} using the {_ONE}\.|You turn on the {_ONE}\.|Nothing happens\."
    rf"|You are facing the {_ONE}(?:, and {_ONE})?\. Next to it, you see nothing\."
    rf"|You are in the middle of a room\. Looking quickly around you, you see {_THINGS}\."
    r"|Your task is to: [a-z ]+\."
)
COMMANDS = re.compile(
    rf"> ?(?:go to {_ONE}|open {_ONE}|take {_ONE} from {_ONE}|put {_ONE} in/on {_ONE}|use {_ONE}|look"
    rf"|(?:clean|heat|cool) {_ONE} with {_ONE})"
)


@pytest.mark.parametrize("lines", [TRANSCRIPT_LINES] if TRANSCRIPT_LINES else [], ids=lambda _: "18 transcripts")
def test_published_transcripts_are_worded_as_ours(lines: list[str]) -> None:
    unlike = [
        line
        for line in lines
        if line and not line.startswith(("> think", "OK.")) and not SAYINGS.fullmatch(line) and not COMMANDS.match(line)
    ]

    assert unlike == []


def test_our_episodes_are_worded_as_the_published_transcripts() -> None:
    for level in TASKS.levels:
        for index in range(3):
            environment = ENVIRONMENT()
            first = environment.reset(TASKS.by_index("train", level, index).data, 0)
            title, *parts = first.split("\n\n")
            assert title == "-= Welcome to TextWorld, ALFRED! =-"
            assert all(SAYINGS.fullmatch(part) for part in parts), first
            for action, outcome in solve(environment):
                assert COMMANDS.fullmatch(f"> {action}"), action
                said = re.sub(r"^You arrive at loc \d+\. ", "", outcome.observation)
                assert SAYINGS.fullmatch(said), outcome.observation


DIGEST = """
import hashlib
from gymfleet_envs.alfworld.environment import ENVIRONMENT
from gymfleet_envs.alfworld.generate import generated_tasks
shown = []
for level in ("tiny", "small"):
    env = ENVIRONMENT()
    shown.append(env.reset(generated_tasks().by_index("train", level, 3).data, 0))
    for turn in range(25):
        outcome = env.step(env.expert().action if turn % 3 else "look") if not env._engine.won else None
        shown.append(repr(outcome))
print(hashlib.sha256("".join(shown).encode()).hexdigest())
"""


def test_episodes_do_not_depend_on_the_hash_seed() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert len(digests) == 1
