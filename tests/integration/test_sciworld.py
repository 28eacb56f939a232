"""ScienceWorld in its Java virtual machine."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.session import Split
from gymfleet_env_server.catalogue import load_entry
from gymfleet_envs.environment import EngineLost, Outcome
from gymfleet_envs.sciworld.engines import Engines, EngineSlot
from gymfleet_envs.sciworld.environment import SciWorld
from gymfleet_envs.sciworld.jvm import EngineFault
from gymfleet_envs.sciworld.options import SciWorldOptions
from gymfleet_envs.sciworld.tasks import LEVELS, VARIATIONS, SciTask, agentgym_games, variations
from py4j.protocol import Py4JError

from tests.fixtures.paths import SHARED_DATA

DIALOGUES = SHARED_DATA / "trajectories" / "sciworld" / "val.parquet"
RECORDED = [path for path in [DIALOGUES] if path.exists()]
FIND = SciTask("find-non-living-thing", 3)
BOIL = SciTask("boil", 4)


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    made = Engines(SciWorldOptions())
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def shared(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymfleet_envs.sciworld.environment.engines", lambda _: engines)


@contextlib.contextmanager
def small(**options: Any) -> Iterator[Engines]:
    made = Engines(SciWorldOptions.model_validate(options))
    try:
        yield made
    finally:
        made.stop()


def opened(task: SciTask) -> SciWorld:
    environment = SciWorld()
    environment.reset(task, 0)
    return environment


def solve(environment: SciWorld) -> list[Outcome]:
    outcomes: list[Outcome] = []
    while not (outcomes and (outcomes[-1].terminated or environment.turn_limit)):
        move = environment.expert()
        assert move is not None
        outcomes.append(environment.step(move.action))
    environment.close()
    return outcomes


def test_first_observation_is_task_and_room_in_agentgyms_wording() -> None:
    environment = SciWorld()

    first = environment.reset(BOIL, 0)

    description, _, room = first.partition("\n")
    assert description.startswith("Your task is to boil ")
    assert room.startswith("This room is called the ")
    assert "\nYou also see:\n\tA door to the " in room
    assert environment.start_info == {
        "task_name": "boil",
        "variation": 4,
        "task_description": description,
    }
    environment.close()


def test_rewards_are_changes_of_the_score_and_add_up_to_it() -> None:
    outcomes = solve(opened(FIND))

    assert sum(outcome.reward for outcome in outcomes) == 100
    assert [outcome.terminated for outcome in outcomes] == [False] * (len(outcomes) - 1) + [True]
    total = 0.0
    for outcome in outcomes:
        total += outcome.reward
        assert outcome.score == total / 100


def test_points_that_an_episode_begins_with_are_in_its_score_and_paid_with_the_first_step() -> None:
    environment = opened(SciTask("find-animal", 0, "openDoors"))
    assert environment.start_score == 0.08

    first = environment.step("look around")
    outcomes = solve(environment)

    assert (first.reward, first.score) == (8, 0.08)
    assert (first.reward + sum(outcome.reward for outcome in outcomes), outcomes[-1].score) == (100, 1)


def test_an_action_that_the_engine_fails_at_leaves_the_points_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = opened(SciTask("find-animal", 0, "openDoors"))

    def fail(_: EngineSlot, action: str) -> None:
        raise EngineFault(action)

    with monkeypatch.context() as broken:
        broken.setattr(EngineSlot, "act", fail)
        failed = environment.step("look around")
    after = environment.step("look around")

    assert [(outcome.reward, outcome.score) for outcome in (failed, after)] == [(8, 0.08), (0, 0.08)]
    environment.close()


def test_an_episode_whose_world_broke_has_no_score() -> None:
    environment, neighbour = opened(SciTask("find-animal", 0, "openDoors")), opened(BOIL)
    environment.step("look around")
    assert environment._slot is not None
    environment._slot.play.interface.setErrorState("java.lang.NullPointerException")  # as the engine does

    with pytest.raises(EngineLost, match="NullPointerException"):
        environment.step("go to hallway")

    environment.close()
    assert neighbour.step("look around").action_valid
    neighbour.close()


def test_wrong_focus_ends_the_episode_below_zero() -> None:
    environment = opened(SciTask("lifespan-longest-lived", 0))
    environment.step("look around")

    outcome = environment.step("focus on agent")

    assert (outcome.reward, outcome.score, outcome.terminated) == (-100, 0, True)
    environment.close()


def test_upstreams_words_and_an_ambiguity_over_two_steps() -> None:
    environment = opened(BOIL)

    assert environment.step("task").observation.startswith("Task description:\nYour task is to boil ")
    assert "\n\tlook around\n" in environment.step("help").observation
    assert "\n\tagent\n" in environment.step("objects").observation
    question = environment.step("open door")
    assert question.observation.startswith("Ambiguous request: Please enter the number for the action you intended")
    assert question.action_valid
    assert environment.step("0").observation == "The door is now open."
    assert environment.step("open door").observation == question.observation
    assert environment.step("").observation != "The door is now open.", "a blank cancels"
    assert environment.step("reset task").observation == "You reset the goal progress and focus."
    environment.close()


@pytest.mark.parametrize(
    "action",
    ["", "x" * 1_000_000, "\x00\x1b[31m", "日本語 🙂", "\ud7ff\ud800", "look around\nlook around", "((((", "[a-z]*",
     "$1 \\", "open " * 200, "connect a to b to c", "\r\n\t"],
    ids=lambda action: repr(action[:20]),
)  # fmt: skip
def test_hostile_actions_change_nothing(action: str) -> None:
    environment = opened(FIND)
    before = environment.step("look around").observation

    outcome = environment.step(action)

    assert (outcome.action_valid, outcome.reward, outcome.terminated) == (False, 0, False)
    assert outcome.observation == "No known action matches that input."
    assert environment.step("look around").observation == before
    environment.close()


def test_recorded_spelling_of_a_place_is_understood() -> None:
    environment = opened(SciTask("find-plant", 0, "openDoors"))
    environment.step("go to hallway")

    assert environment.step("go to green house").observation == "You move to the greenhouse."
    environment.close()


def test_episode_is_out_of_moves_after_a_hundred() -> None:
    environment = opened(BOIL)
    limits = []
    for _ in range(10):
        outcome = environment.step("wait")
        limits.append(environment.turn_limit)

    assert outcome.info["moves"] == 110
    assert not outcome.terminated
    assert limits[-1] == 10, "the runtime truncates the episode after this turn"
    assert limits[8] is None, "99 moves"
    environment.close()


def test_expert_leaves_off_after_a_step_aside() -> None:
    environment = opened(FIND)
    environment.step("inventory")
    environment.step("no such thing")
    assert environment.expert() is not None

    environment.step("wait1")

    assert environment.expert() is None
    environment.close()


@pytest.mark.parametrize(
    "level", [pytest.param(level, marks=[] if level == "easy" else [pytest.mark.long]) for level in LEVELS]
)
def test_expert_solves_what_the_levels_hold(level: str) -> None:
    tasks = load_entry("sciworld", {}).tasks
    # One of each task of the level, from another part of the list than the conformance suite's.
    names = len(LEVELS[level][0])
    for index in range(names * 3, names * 4, 1 if level != "hard" else 3):
        outcomes = solve(opened(tasks.by_index("test", level, index).data))
        assert outcomes[-1].score == 1.0
        assert all(outcome.action_valid for outcome in outcomes)


def test_easiest_tasks_take_at_most_three_turns() -> None:
    tasks = load_entry("sciworld", {}).tasks
    for index in range(12):
        assert len(solve(opened(tasks.by_index("train", "intro", index).data))) <= 3


def test_table_of_tasks_is_the_engines(engines: Engines) -> None:
    slot = engines.begin(FIND)
    maker = slot.machine.jvm._maker

    assert set(maker.getTaskNames()) == set(VARIATIONS)
    assert {name: maker.getTaskMaxVariations(name) for name in VARIATIONS} == VARIATIONS
    for name in VARIATIONS:
        maker.load(name, 0, "", False)
        ours: list[Split] = ["train", "validation", "test"]
        theirs = [maker.getVariationsTrain(), maker.getVariationsDev(), maker.getVariationsTest()]
        assert [list(variations(name, split)) for split in ours] == [list(part) for part in theirs]
    engines.end(slot)


SCRIPTS = {
    SciTask("find-animal", 7): ["look around", "open door to hallway", "wait", "go to hallway", "look around", "wait"],
    SciTask("use-thermometer", 8, "easy"): ["look around", "teleport to outside", "wait", "look around", "wait1"],
    SciTask("boil", 2): ["open door to hallway", "activate sink", "wait", "look around", "objects", "inventory"],
    SciTask("grow-plant", 5, "openDoors"): ["go to hallway", "go to greenhouse", "wait", "look around", "wait"],
}


def play(slot: EngineSlot, script: list[str]) -> list[tuple[str, int, int]]:
    answers = [slot.act(action) for action in script]
    return [(answer.text, answer.score, answer.moves) for answer in answers]


def test_interleaved_concurrent_and_lone_episodes_are_the_same(engines: Engines) -> None:
    alone = {}
    for task, script in SCRIPTS.items():
        with small() if task.task == "boil" else contextlib.nullcontext(engines) as fresh:
            slot = fresh.begin(task)
            alone[task] = (slot.play.last.text, play(slot, script))
            fresh.end(slot)

    slots = {task: engines.begin(task) for task in SCRIPTS}
    mixed: dict[SciTask, list[tuple[str, int, int]]] = {task: [] for task in SCRIPTS}
    for place in range(6):
        for task, script in SCRIPTS.items():
            mixed[task] += play(slots[task], script[place : place + 1])
    with ThreadPoolExecutor(8) as threads:
        more = {task: engines.begin(task) for task in SCRIPTS}
        firsts = {task: slot.play.last.text for task, slot in more.items()}
        running = {task: threads.submit(play, more[task], script) for task, script in SCRIPTS.items()}
        threaded = {task: future.result() for task, future in running.items()}

    assert mixed == {task: answers for task, (_, answers) in alone.items()}
    assert threaded == mixed
    assert firsts == {task: first for task, (first, _) in alone.items()}
    for slot in (*slots.values(), *more.values()):
        engines.end(slot)


def test_chance_and_order_are_an_episodes_own(engines: Engines) -> None:
    """Bees fly and pollinate by chance: of all tasks, growing fruit tells most of what goes on in the engine."""
    task = SciTask("grow-fruit", 3)
    script = list(engines.gold(task))
    with small() as fresh:
        alone = play(fresh.begin(task), script)

    slot, other = engines.begin(task), engines.begin(SciTask("grow-plant", 5, "easy"))
    mixed = []
    for place, action in enumerate(script):
        mixed += play(slot, [action])
        if place % 10 == 5:
            other.act("wait")
            engines.end(engines.begin(BOIL))

    assert alone[-1][1] == 100
    assert mixed == alone
    engines.end(slot)
    engines.end(other)


def test_simplifications_are_an_episodes_own(engines: Engines) -> None:
    easy, plain = engines.begin(SciTask("grow-plant", 5, "easy")), engines.begin(SciTask("grow-plant", 5))
    used = easy.machine.jvm._maker.getSimplificationsUsed

    easy.act("wait1")
    assert "selfWateringFlowerPots" in used()
    plain.act("wait1")
    assert used() == ""
    easy.act("wait1")
    assert "selfWateringFlowerPots" in used()
    engines.end(easy)
    engines.end(plain)


@pytest.mark.long
def test_solution_does_not_depend_on_what_was_solved_before() -> None:
    freezing, melting = SciTask("freeze", 20), SciTask("melt", 26)
    with small() as one, small() as other:
        forwards = {task: one.gold(task) for task in (freezing, melting)}
        backwards = {task: other.gold(task) for task in (melting, freezing)}

    assert forwards == backwards


def test_machine_that_dies_loses_its_own_episodes_alone(engines: Engines) -> None:
    with small(sessions_per_jvm=1) as pair:
        first, second = pair.begin(FIND), pair.begin(FIND)
        assert len(set(pair.pids())) == 2
        os.kill(first.machine.jvm.pid, signal.SIGKILL)

        with pytest.raises(EngineLost):
            first.act("look around")
        with pytest.raises(EngineLost):
            first.act("look around")
        assert second.act("look around").moves == 0
        third = pair.begin(FIND)
        assert third.act("look around").text == second.act("look around").text
        pair.end(first)
        assert first.machine.jvm.pid not in pair.pids()


def test_machine_that_hangs_is_killed_and_its_sessions_are_lost() -> None:
    with small(call_timeout_s=6) as hanging:
        slot = hanging.begin(FIND)
        os.kill(slot.machine.jvm.pid, signal.SIGSTOP)

        with pytest.raises(EngineLost):
            slot.act("look around")

        assert slot.machine.jvm.dead
        again = hanging.begin(FIND)
        assert again.act("look around").moves == 0


def test_old_machine_ends_with_its_last_episode() -> None:
    with small(episodes_per_jvm=2) as recycled:
        one, two = recycled.begin(FIND), recycled.begin(FIND)
        assert one.machine is two.machine
        recycled.end(one)
        three = recycled.begin(FIND)
        assert three.machine is not two.machine
        assert two.act("look around").moves == 0, "it still plays"
        assert recycled.pids() == [two.machine.jvm.pid, three.machine.jvm.pid]

        recycled.end(two)

        assert recycled.pids() == [three.machine.jvm.pid]
        assert two.machine.jvm.dead


def test_machine_that_has_grown_takes_no_new_episode() -> None:
    with small(recycle_rss_mb=64) as recycled:
        one = recycled.begin(FIND)
        assert one.machine.jvm.rss_bytes() > 64 * 2**20
        two = recycled.begin(FIND)

        assert two.machine is not one.machine


def test_out_of_memory_ends_the_machine_not_the_service() -> None:
    with small(heap_mb=256, recycle_rss_mb=4096, sessions_per_jvm=1000) as full:
        first = full.begin(FIND)
        with contextlib.suppress(Py4JError):
            big = first.machine.jvm._gateway.jvm.java.util.ArrayList()
            for _ in range(64):
                big.add(bytearray(8 * 2**20))

        with pytest.raises(EngineLost):
            first.act("look around")
        assert full.begin(FIND).act("look around").moves == 0


def test_only_who_has_the_token_may_call_and_only_from_this_machine(engines: Engines) -> None:
    slot = engines.begin(FIND)
    ours = slot.machine.jvm._gateway.gateway_parameters
    listening = "".join(Path(f"/proc/{slot.machine.jvm.pid}/net/{kind}").read_text() for kind in ("tcp", "tcp6"))
    places = re.findall(rf"([0-9A-F]+):{ours.port:04X} 0+:0000 0A", listening)
    assert set(places) <= {"0100007F", "0000000000000000FFFF00000100007F"}, "127.0.0.1 alone"
    assert len(places) == 1
    assert ours.auth_token not in Path(f"/proc/{slot.machine.jvm.pid}/cmdline").read_text()
    assert ours.auth_token not in Path(f"/proc/{slot.machine.jvm.pid}/environ").read_text()

    with socket.create_connection(("127.0.0.1", ours.port), timeout=10) as stranger:
        stranger.sendall(b"c\nj\ngetProperty\nsuser.name\ne\n")
        with contextlib.suppress(ConnectionResetError):
            answer = stranger.recv(1000)
            assert not answer.startswith(b"!y")

    assert slot.act("look around").moves == 0
    engines.end(slot)


def test_machine_dies_with_the_process_that_started_it() -> None:
    script = (
        "import sys, time\n"
        "from gymfleet_envs.sciworld.engines import Engines\n"
        "from gymfleet_envs.sciworld.options import SciWorldOptions\n"
        "from gymfleet_envs.sciworld.tasks import SciTask\n"
        "engines = Engines(SciWorldOptions())\n"
        "engines.begin(SciTask('boil', 0))\n"
        "print('pid', *engines.pids(), flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = next(int(line.split()[1]) for line in process.stdout if line.startswith("pid "))
        assert Path(f"/proc/{pid}").exists()
        process.kill()

    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_steps_of_many_threads_wait_for_each_other_without_harm(engines: Engines) -> None:
    slots = [engines.begin(FIND) for _ in range(8)]
    barrier = threading.Barrier(8)

    def busy(slot: EngineSlot) -> list[str]:
        barrier.wait()
        return [slot.act(action).text for action in ("look around", "open door to hallway", "wait", "look around") * 3]

    with ThreadPoolExecutor(8) as threads:
        told = list(threads.map(busy, slots))

    assert all(texts == told[0] for texts in told)
    for slot in slots:
        engines.end(slot)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_agentgyms_recorded_episodes_end_as_they_ended_there(path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    games = agentgym_games(recorded=True)
    rows = parquet.read_table(path, columns=["item_id", "conversations"]).to_pylist()
    assert len(rows) == 20
    same = total = 0
    for row in rows:
        said = [turn["value"] for turn in row["conversations"]]
        task = SciTask(*games[int(row["item_id"].removeprefix("sciworld_"))], "openDoors")
        environment = SciWorld()
        first = environment.reset(task, 0)
        described, recorded = first.partition("\n")[0], said[2].partition("\n")[0]
        assert described.replace(" celsius", "") == recorded, row["item_id"]
        for answer, shown in zip(said[3::2], said[4::2], strict=False):
            outcome = environment.step(answer.rpartition("Action:")[2])
            same += _bag(outcome.observation) == _bag(shown)
            total += 1
            if outcome.terminated:
                break
        environment.close()
    assert same >= 0.9 * total


def _bag(text: str) -> list[str]:
    """The parts of a text, in any order: versions differ in the order in which they list things."""
    return sorted(part.strip() for part in re.split(r"[\n:,.]", text.replace("green house", "greenhouse")))
