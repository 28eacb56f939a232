import re
from pathlib import Path
from typing import Any

import gymfleet_envs.babyai
import pytest
from gymfleet_envs.babyai.environment import ENVIRONMENT, BabyAI
from gymfleet_envs.babyai.paths import Paths
from gymfleet_envs.babyai.tasks import BabyAITask
from gymfleet_envs.babyai.view import View, look
from gymfleet_envs.babyai.world import HEADINGS, Cell, Pose, Primitive, World
from gymfleet_envs.environment import Outcome
from gymfleet_envs.tasks import TaskDataError, UnknownTask
from minigrid.utils.baby_ai_bot import BabyAIBot

from tests.fixtures.hash_seeds import outputs_by_hash_seed
from tests.fixtures.paths import SHARED_DATA

DATA = SHARED_DATA
AGENTGYM = Path(gymfleet_envs.babyai.__file__).parent / "agentgym"
UNSOLVED = {"PutNextS7N4Carrying", "KeyInBox", "OpenDoorsOrderN4Debug"}


def opened(level: str, seed: int) -> BabyAI:
    environment = ENVIRONMENT()
    environment.reset(BabyAITask(level, seed), 0)
    return environment


def text(outcome: Outcome) -> str:
    return outcome.observation.partition("\nAvailable actions")[0]


def actions(observation: str) -> list[str]:
    return re.findall(r'"([^"]*)"', observation.partition("Available actions: ")[2])


def solve(environment: BabyAI) -> Outcome:
    outcome = Outcome("")
    for _ in range(environment.max_turns):
        move = environment.expert()
        if move is None:
            break
        outcome = environment.step(move.action)
        assert outcome.action_valid, move
        if outcome.terminated:
            break
    return outcome


def test_the_first_observation_is_agentgyms() -> None:
    environment = ENVIRONMENT()

    observation = environment.reset(BabyAITask("GoToRedBallGrey", 0), 0)

    # Recorded by AgentGym for its task 0.
    assert observation == (
        "Your goal: go to the red ball\nIn front of you in this room, you can see several objects: "
        "There is a grey key 1 1 steps in front of you and 1 steps to your left.  "
        "There is a grey ball 1 1 steps in front of you and 1 steps to your right.  "
        "There is a grey key 2 2 steps in front of you and 1 steps to your left.  "
        "There is a grey key 3 2 steps in front of you and 1 steps to your right.  "
        "There is a grey box 1 2 steps in front of you and 2 steps to your right.  "
        "There is a grey ball 2 5 steps in front of you and 1 steps to your right.  "
        "There is a grey key 4 4 steps in front of you and 2 steps to your right.  "
        "There is a red ball 1 4 steps in front of you and 3 steps to your right.  "
        "The room has walls around you. You are facing a wall 6 steps away. You are not carrying anything.\n"
        'Available actions: ["turn left", "turn right", "move forward", "pickup grey key 1", "pickup grey ball 1", '
        '"pickup grey key 2", "pickup grey key 3", "pickup grey box 1", "pickup grey ball 2", "pickup grey key 4", '
        '"pickup red ball 1", "go to grey key 1", "go to grey ball 1", "go to grey key 2", "go to grey key 3", '
        '"go to grey box 1", "go to grey ball 2", "go to grey key 4", "go to red ball 1", "check available actions"]'
    )


def test_reaching_the_goal_is_rewarded_by_the_steps_it_took() -> None:
    outcome = opened("GoToRedBallGrey", 0).step("go to red ball 1")

    # 4 ahead and 3 to the right, but a key stands on the direct way: 3 ahead, turn, 3 ahead, turn back. 8 steps.
    assert outcome.info == {"steps": 8, "max_steps": 64}
    assert outcome.reward == pytest.approx(1 - 0.9 * 8 / 64)
    assert (outcome.terminated, outcome.score, outcome.action_valid) == (True, 1.0, True)
    assert text(outcome).endswith("The task is completed.")


def test_carrying_by_hand() -> None:
    environment = opened("GoToRedBallGrey", 0)

    script = [
        ("check available actions", "You can take the following actions: turn left, turn right, move forward, pickup"),
        ("drop", "You cannot drop the object, as you are not carrying anything."),
        ("pick up grey ball 1", "In front of you in this room"),
        ("pickup grey key 1", "The action is not recognized. Please check valid actions."),
        ("turn left", "In front of you in this room"),
    ]
    outcomes = [environment.step(action) for action, _ in script]

    for outcome, (action, start) in zip(outcomes, script, strict=True):
        assert outcome.observation.startswith(start), action
        assert outcome.reward == 0.0
        assert not outcome.terminated
    assert [outcome.action_valid for outcome in outcomes] == [True, True, True, False, True]
    assert text(outcomes[2]).endswith("You are carrying a grey ball.")
    # Forward and turn to the ball, and pick it up; refused actions take no step.
    assert [outcome.info["steps"] for outcome in outcomes] == [0, 0, 3, 3, 4]


def test_a_locked_door_wants_its_key() -> None:
    environment = opened("UnlockLocalDist", 5)
    door = re.findall(r"(\w+) locked door 1", environment._see())[0]
    through = f"toggle and go through {door} locked door 1"

    empty_handed = environment.step(through)
    wrong = next(name for name in actions(empty_handed.observation) if "key" in name and door not in name)
    environment.step(wrong.replace("go to", "pickup"))
    for _ in range(3):
        if through not in environment._options.refused:
            environment.step("turn left")
    with_wrong_key = environment.step(through)

    assert text(empty_handed) == f"You cannot {through}, as you are not carrying a key."
    assert text(with_wrong_key) == (
        f"You cannot {through}, as the color of the key you are carrying does not match the color of door."
    )
    assert empty_handed.action_valid
    assert solve(environment).score == 1.0


def test_a_door_opened_on_the_way_counts_at_once() -> None:
    """AgentGym walks on after the toggle that reached the goal and so loses the success."""
    environment = opened("OpenRedDoor", 0)
    while not any(name.startswith("toggle and go") for name in environment._options.names):
        environment.step("turn left")

    outcome = environment.step("toggle and go through red closed door 1")

    assert (outcome.terminated, outcome.score) == (True, 1.0)


def test_the_wrong_order_fails_without_reward() -> None:
    environment = opened("OpenRedBlueDoorsDebug", 0)
    for _ in range(40):
        doors = [name for name in environment._options.names if name.startswith("toggle and go through blue")]
        outcome = environment.step(doors[0] if doors else "turn left")
        if outcome.terminated:
            break
        if not doors and "move forward" in actions(outcome.observation):
            environment.step("move forward")

    assert (outcome.terminated, outcome.score, outcome.reward) == (True, 0.0, 0.0)
    assert text(outcome).endswith("The task has failed.")
    assert environment.expert() is None


@pytest.mark.parametrize(
    "action",
    ["go to", "go to red ball 99", "go to the moon", "pickup", "__import__('os')", "toggle and go through",
     "move forward move forward", "\x00", "a" * 256, "go to red ball \u0661"],
)  # fmt: skip
def test_what_is_no_action_is_answered_and_changes_nothing(action: str) -> None:
    environment = opened("GoToRedBallGrey", 0)
    before = environment._world.signature()

    outcome = environment.step(action)

    assert not outcome.action_valid
    assert not outcome.terminated
    assert text(outcome) == "The action is not recognized. Please check valid actions."
    assert environment._world.signature() == before


def test_nothing_said_changes_nothing_and_any_check_lists_the_actions() -> None:
    environment = opened("GoToRedBallGrey", 0)

    nothing, checked = environment.step(" "), environment.step("Please check")

    assert (text(nothing), nothing.action_valid) == ("No change in state.", False)
    assert text(checked).startswith("You can take the following actions: turn left, turn right, ")
    assert checked.action_valid


def test_in_agentgyms_list_an_episode_goes_on_where_minigrid_fails_it() -> None:
    tasks = ENVIRONMENT.task_source(AGENTGYM)
    scores = []
    for number in range(15, 15 + 40 * 8, 40):
        task = tasks.by_id(str(number)).data
        assert (task.level, task.lenient) == ("OpenDoorsOrderN4Debug", True)
        environment = ENVIRONMENT()
        environment.reset(task, 0)
        scores.append(solve(environment).score)

    assert sum(scores) == len(scores), "minigrid fails the first door that is opened, though it is the right one"


def upstreams_way(view: View, goal: Cell, *, arrive: bool) -> list[Primitive] | None:
    """What AgentGym's published search finds: from each pose ahead, then left, then right; the last finder counts."""
    start = (view.cell, view.heading)
    queue, done = [start], set()
    found_from: dict[Pose, tuple[Pose, Primitive]] = {}
    while queue:
        pose = queue.pop(0)
        done.add(pose)
        (x, y), heading = pose
        ahead = (x + HEADINGS[heading][0], y + HEADINGS[heading][1])
        if goal == ((x, y) if arrive else ahead):
            way: list[Primitive] = []
            while pose != start:
                pose, primitive = found_from[pose]
                way.insert(0, primitive)
            return way
        moves: list[tuple[Pose, Primitive]] = [
            ((ahead, heading), Primitive.FORWARD),
            (((x, y), (heading - 1) % 4), Primitive.LEFT),
            (((x, y), (heading + 1) % 4), Primitive.RIGHT),
        ]
        for reached, primitive in moves:
            cell = reached[0]
            if reached not in done and cell not in view.solid and cell[0] in view.columns and cell[1] in view.rows:
                queue.append(reached)
                found_from[reached] = (pose, primitive)
    return None


@pytest.mark.parametrize("level", ["GoToRedBall", "PickupLoc", "SynthS5R2", "GoToObjMazeS7", "BossLevel"])
def test_the_way_to_a_thing_is_the_one_that_agentgyms_server_takes(level: str) -> None:
    ways = 0
    for seed in range(8):
        world = World(level, seed)
        for turn in range(4):
            view = look(world)
            paths = Paths(view)
            for thing in view.things:
                for arrive in (False, True):
                    way = upstreams_way(view, thing.cell, arrive=arrive)
                    assert paths.to(thing.cell, arrive=arrive) == (None if way is None else tuple(way)), (seed, turn)
                    ways += way is not None
            world.act(Primitive.LEFT)
    assert ways > 10


def test_the_way_to_a_ball_in_an_empty_room_is_a_shortest() -> None:
    view = look(World("GoToRedBallNoDists", 0))
    (ball,) = view.things
    path = Paths(view).to(ball.cell, arrive=False)

    assert path is not None
    assert len(path) == ball.front + abs(ball.right) - 1 + (ball.right != 0)
    assert set(path) <= {Primitive.LEFT, Primitive.RIGHT, Primitive.FORWARD}


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize(("level", "num_tasks"), [("intro", 30), ("easy", 30), ("medium", 30), ("hard", 30)])
def test_the_expert_solves_generated_tasks(level: str, num_tasks: int, split: Any) -> None:
    tasks = BabyAI.task_source(None)
    scores = []
    for index in range(num_tasks):
        environment = ENVIRONMENT()
        environment.reset(tasks.by_index(split, level, index).data, 0)
        scores.append(solve(environment).score)
    assert sum(scores) >= 0.95 * num_tasks


def test_the_expert_solves_agentgyms_levels() -> None:
    names = (AGENTGYM / "levels.txt").read_text().split()
    for name in names:
        if name not in UNSOLVED:
            assert solve(opened(name, 1)).score == 1.0, name


def test_the_expert_gives_up_where_minigrids_bot_turns_in_a_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    replans: list[BabyAIBot] = []
    replan = BabyAIBot.replan

    def counted(bot: BabyAIBot) -> Any:
        replans.append(bot)
        return replan(bot)

    monkeypatch.setattr(BabyAIBot, "replan", counted)
    lost = ENVIRONMENT()
    lost.reset(ENVIRONMENT.task_source(None).by_index("train", "hard", 146).data, 0)

    assert lost.expert() is None
    tried = len(replans)
    assert lost.expert() is None
    assert len(replans) == tried, "it does not look again where it found nothing"
    assert lost.step("turn left").action_valid, "the episode goes on"


@pytest.mark.parametrize("task_id", ["28", "108"])
def test_the_expert_finds_a_way_around_the_circles_of_the_bot(task_id: str) -> None:
    environment = ENVIRONMENT()
    environment.reset(ENVIRONMENT.task_source(AGENTGYM).by_id(task_id).data, 0)

    assert solve(environment).score == 1.0


def test_the_expert_goes_on_from_anywhere() -> None:
    environment = opened("PutNextLocalS6N4", 3)
    for action in ("turn left", "turn left", "move forward", "turn right"):
        environment.step(action)

    assert solve(environment).score == 1.0


def test_a_snapshot_is_independent() -> None:
    environment = opened("GoToLocalS8N7", 0)
    environment.step("turn left")
    twin = environment.snapshot()
    left = [environment.step(action) for action in ("turn left", "move forward", "turn right")]
    again = [twin.step(action) for action in ("turn left", "move forward", "turn right")]

    assert left == again
    assert solve(twin).score == 1.0
    assert not environment._over


def test_resets_are_silent(capfd: pytest.CaptureFixture[str]) -> None:
    for seed in range(20):
        World("SynthS5R2", seed)

    assert capfd.readouterr() == ("", "")


def test_episodes_do_not_depend_on_the_process() -> None:
    script = (
        "from gymfleet_envs.babyai.environment import BabyAI as T\n"
        "s = T.task_source(None)\n"
        "for level in s.levels:\n"
        "    e, task = T(), s.by_index('validation', level, 1); print(task, e.reset(task.data, 0))\n"
        "    for _ in range(5): m = e.expert(); print(m, m and e.step(m.action))"
    )
    assert len(outputs_by_hash_seed(script)) == 1


def test_agentgyms_numbers() -> None:
    tasks = BabyAI.task_source(AGENTGYM)

    assert len(tasks.levels) == 41
    assert tasks.by_id("86").data == BabyAITask("GoToImpUnlock", 2, lenient=True)
    assert tasks.by_id("86").split == "train"
    assert tasks.by_id("332").split == "validation", "seed 8"
    assert tasks.by_index("test", "BossLevel", 1).task_id == str(19 * 40 + 38)
    assert tasks.by_index("train", "all", 41).task_id == "41"
    for level in ("all", "PickupLoc"):
        for split in ("train", "validation", "test"):
            for index in (0, 8, tasks.count(split, level) - 1):
                task = tasks.by_index(split, level, index)
                assert tasks.by_id(task.task_id).data == task.data
                assert task.split == split
    for bad in ("", "x", "-1", "1" * 20, "GoTo.train.1"):
        with pytest.raises(UnknownTask):
            tasks.by_id(bad)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "lists no level"),
        (b"GoToRedBall\nGoToMoon\n", "line 2: minigrid has no BabyAI level 'GoToMoon'"),
        (b"GoToRedBall\n\nGoToRedBall\n", "line 3: GoToRedBall stands already in line 1"),
        (b"\xff", "byte 0 is not ASCII"),
        (b" " * 70_000, "larger than 65536 bytes"),
    ],
)
def test_damaged_lists_are_named_with_their_fault(tmp_path: Path, content: bytes, fault: str) -> None:
    (tmp_path / "levels.txt").write_bytes(content)

    with pytest.raises(TaskDataError, match=rf"levels.txt:? {fault}"):
        BabyAI.task_source(tmp_path)


def test_a_directory_without_a_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskDataError, match=r"levels\.txt is missing"):
        BabyAI.task_source(tmp_path)
