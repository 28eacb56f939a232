"""What every environment must do, over the real server. Adding a name to the catalogue adds it here.

After them come the games of two seats, one name for each, and `one_file`, which is what a researcher writes: a single
file in any directory.
"""

import concurrent.futures
import hashlib
import itertools
import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gymfleet_contracts.session import AdmissibleActions, EnvironmentSpec, Session, StepResult
from gymfleet_env_server.catalogue import ENVIRONMENTS, Entry, find_environment, load_entry
from gymfleet_env_server.expert_play import solve
from gymfleet_envs.tasks import SPLITS, UnknownTask
from gymfleet_kit.formats import FORMATS

from tests.conformance.env_server import EnvServer

ONE_FILE = """
from gymfleet_envs.environment import Environment, Outcome
from gymfleet_envs.tasks import (GeneratedTasks)


class Doubling(Environment[int]):
    name = "one_file"
    version = "0.1.0"
    summary = "Name the double of a number"
    instructions = "Answer with the double of the number. You have three tries."
    max_turns = 3

    @classmethod
    def task_source(cls, data):
        draw = lambda rng, level: rng.randrange(10 ** (3 + 3 * cls.levels.index(level)))
        counts = {"train": 500, "validation": 50, "test": 50}
        return GeneratedTasks(cls.name, draw, str, levels=cls.levels, default_level="easy", counts=counts)

    levels = ("easy", "hard")

    def reset(self, task, seed):
        self.number = task
        return f"The number is {task}."

    def step(self, action):
        solved = action.strip() == str(2 * self.number)
        return Outcome("Right." if solved else "Wrong.", reward=float(solved), terminated=solved, score=float(solved))
"""
ONE_FILE_NAME = "one_file"
_FOR_TWO = "gymfleet_envs.textarena.two_players:TextArenaTwoPlayers"
GAMES = {
    "aquawar": ("gymfleet_envs.card_game.self_play:CardGameSelfPlay", None),
    "tic_tac_toe": (_FOR_TWO, "TicTacToe-v0"),
    "nim": (_FOR_TWO, "Nim-v0"),
    "connect_four": (_FOR_TWO, "ConnectFour-v0"),
}
"""Games of two seats, each with its class and the level that is played."""
SLOW = {"sciworld": 5, "textworld": 5}
"""Tasks of each level that are looked at of worlds that take a second or more for one."""
SNAPSHOT = Path(__file__).with_name("task_snapshot.json")
HOSTILE = [
    "", " ", "\n", "\x00", "a\x00b\x1b[31m", "日本語 🙂 العربية", "\u202eevil", "../../etc/passwd", "__import__('os')",
    "%s%n {0} ${HOME} $(id)", "'; DROP TABLE x; --", "Action: Action:", "a\nb\nc", "\ud7ff\uffff", "(" * 200,
]  # fmt: skip


class Served:
    """A served environment, with the few calls that the suite needs."""

    def __init__(self, url: str, spec: EnvironmentSpec, reference: str, level: str | None) -> None:
        self.http = httpx.Client(base_url=url, timeout=60, limits=httpx.Limits(keepalive_expiry=5))
        self.spec = spec
        self.reference = reference
        self.level = level

    def open(self, **fields: Any) -> Session:
        body = {"env": self.spec.name, **({} if "task_id" in fields else self.first), **fields}
        response = self.http.post("/v1/sessions", json=body)
        assert response.status_code == 201, response.text
        return Session.model_validate_json(response.content)

    @property
    def first(self) -> dict[str, Any]:
        """The first task, of the level that is played."""
        return {"task_index": 0, **({} if self.level is None else {"level": self.level})}

    def post(self, session_id: str, index: int, action: str) -> httpx.Response:
        return self.http.post(f"/v1/sessions/{session_id}/steps", json={"index": index, "action": action})

    def step(self, session_id: str, index: int, action: str) -> StepResult:
        response = self.post(session_id, index, action)
        assert response.status_code == 200, response.text
        return StepResult.model_validate_json(response.content)

    def get(self, session_id: str) -> Session:
        return Session.model_validate_json(self.http.get(f"/v1/sessions/{session_id}").raise_for_status().content)

    def move(self, session_id: str) -> str:
        """The expert's action, where there is an expert, or the first that is possible, where these are told."""
        if self.spec.capabilities.expert:
            action: str = self.http.get(f"/v1/sessions/{session_id}/expert").raise_for_status().json()["action"]
            return action
        if self.spec.capabilities.admissible_actions:
            listed = self.http.get(f"/v1/sessions/{session_id}/actions").raise_for_status().content
            return AdmissibleActions.model_validate_json(listed).actions[0]
        return "up"

    def play(self, session_id: str, limit: int) -> list[tuple[str, StepResult]]:
        """At most `limit` moves from the start: actions and results."""
        moves: list[tuple[str, StepResult]] = []
        while len(moves) < limit and not (moves and (moves[-1][1].terminated or moves[-1][1].truncated)):
            action = self.move(session_id)
            moves.append((action, self.step(session_id, len(moves), action)))
        return moves

    def close(self, session_id: str) -> None:
        assert self.http.delete(f"/v1/sessions/{session_id}").status_code == 204


@pytest.fixture(scope="module", params=[*ENVIRONMENTS, *GAMES, ONE_FILE_NAME])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("server")
    reference, level = GAMES.get(request.param, (str(request.param), None))
    if reference == ONE_FILE_NAME:
        path = directory / "my_env.py"
        path.write_text(ONE_FILE)
        reference = str(path)
    kind = find_environment(reference)
    if absent := [program for program in kind.programs() if shutil.which(program) is None]:
        pytest.skip(f"{reference} needs {absent[0]}, see scripts/system.sh")
    with EnvServer(directory, reference, shards=2) as server:
        spec = httpx.get(f"{server.url}/v1/environments/{kind.name}").raise_for_status()
        served = Served(server.url, EnvironmentSpec.model_validate_json(spec.content), reference, level)
        with served.http:
            yield served


@pytest.fixture(scope="module")
def entry(served: Served) -> Entry:
    return load_entry(served.reference, {})


def problem(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json", response.text
    return response.status_code, response.json()["type"]


def test_spec_is_listed_complete_and_in_a_known_format(served: Served) -> None:
    listed = served.http.get("/v1/environments").raise_for_status().json()

    assert [spec["name"] for spec in listed] == [served.spec.name]
    assert served.spec.format in FORMATS.names()
    assert served.spec.instructions
    assert served.spec.summary
    assert served.spec.default_level in served.spec.levels
    assert min(served.spec.splits.values()) > 0
    assert "Thought:" not in served.spec.instructions, "the reply format comes from the reply format alone"


def test_same_task_seed_and_actions_give_the_same_episode(served: Served) -> None:
    first, second = served.open(task_index=5, seed=7), served.open(task_index=5, seed=7)

    assert (second.task, second.observation) == (first.task, first.observation)
    for index, (action, result) in enumerate(served.play(first.session_id, 6)):
        assert served.step(second.session_id, index, action) == result


@pytest.mark.parametrize("split", SPLITS)
def test_task_is_echoed_and_can_be_opened_again_by_its_id(served: Served, split: str) -> None:
    for level in served.spec.levels:
        by_index = served.open(split=split, level=level, task_index=3, seed=11)
        by_id = served.open(task_id=by_index.task.task_id, seed=11)

        assert (by_index.task.env, by_index.task.split, by_index.task.level) == (served.spec.name, split, level)
        assert by_index.task.seed == 11
        assert by_id.task == by_index.task
        assert by_id.observation == by_index.observation


@pytest.mark.parametrize(
    "selector",
    [{"task_index": 10**9}, {"task_id": "nonsense"}, {"level": "nonsense"}, {"task_id": "easy.train.-1"}],
    ids=str,
)
def test_unknown_task_is_refused(served: Served, selector: dict[str, Any]) -> None:
    body = {"env": served.spec.name, **({} if "task_id" in selector else served.first), **selector}

    response = served.http.post("/v1/sessions", json=body)

    assert problem(response) == (404, "/problems/unknown-task")


def test_last_step_repeated_returns_the_stored_result_and_a_gap_is_refused(served: Served) -> None:
    session = served.open(task_index=1)
    action = served.move(session.session_id)
    first = served.step(session.session_id, 0, action)

    assert served.step(session.session_id, 0, action) == first
    assert problem(served.post(session.session_id, 0, "something else")) == (409, "/problems/step-out-of-order")
    assert served.get(session.session_id).index == 1
    gap = served.post(session.session_id, 2, action)
    if not (first.terminated or first.truncated):
        assert problem(gap) == (409, "/problems/step-out-of-order")
        assert gap.json()["expected"] == 1


def test_concurrent_duplicates_are_executed_once(served: Served) -> None:
    session, twin = served.open(task_index=2), served.open(task_index=2)
    action = served.move(session.session_id)
    barrier = threading.Barrier(8)

    def send() -> StepResult:
        barrier.wait()
        return served.step(session.session_id, 0, action)

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        results = [future.result() for future in [threads.submit(send) for _ in range(8)]]

    assert all(result == results[0] for result in results)
    assert results[0] == served.step(twin.session_id, 0, action), "as if it had been sent once"
    assert served.get(session.session_id).index == 1


def test_hostile_actions_are_answered_and_never_break_the_session(served: Served) -> None:
    session, index = served.open(), 0
    for action in [*HOSTILE, "x" * served.spec.max_action_chars]:
        result = served.step(session.session_id, index, action)
        index += 1

        assert isinstance(result.observation, str)
        assert result.score < 1
        if result.terminated or result.truncated:
            session, index = served.open(), 0


def test_each_seat_of_a_game_moves_sees_its_own_and_is_paid_once(served: Served) -> None:
    session = served.open(task_index=3)
    if not served.spec.seats:
        assert session.game is None
        return
    moves = served.play(session.session_id, served.spec.max_turns)

    games = [game for game in [session.game, *(result.game for _, result in moves)] if game is not None]
    assert len(games) == len(moves) + 1
    assert {game.to_move for game in games[:-1]} == set(served.spec.seats), "each had its turn"
    assert (games[-1].to_move, moves[-1][1].terminated) == (None, True)
    assert session.observation == games[0].seats[games[0].to_move or ""].observation
    for before, game, (_, result) in zip(games, games[1:], moves, strict=False):
        mover = before.to_move or ""
        assert (game.moved, result.action_valid) == (mover, True)
        assert result.observation == game.seats[game.to_move or mover].observation
        assert result.score == game.seats[mover].score, "a step has the score of who took it"
    for place in served.spec.seats:
        assert all(game.seats[place].observation for game in games), "a seat can be asked at any time"
        paid = [game.seats[place].reward for game in games]
        assert paid == sorted(paid), "a reward is the sum so far, and nobody would rather not finish"


def test_a_game_goes_on_in_a_fork_after_either_seats_turn(served: Served) -> None:
    if not served.spec.seats:
        return
    parent = served.open(task_index=2)
    whole = served.play(served.open(task_index=2).session_id, served.spec.max_turns)
    for index, (action, result) in enumerate(whole[:8]):
        child = served.http.post(f"/v1/sessions/{parent.session_id}/fork", json={"count": 1}).raise_for_status()
        fork = Session.model_validate(child.json()[0])

        assert fork.game == served.get(parent.session_id).game
        for later in range(index, len(whole)):
            assert served.step(fork.session_id, later, whole[later][0]) == whole[later][1]
        assert served.step(parent.session_id, index, action) == result


def test_oversized_action_is_refused_and_costs_no_turn(served: Served) -> None:
    session = served.open()

    response = served.post(session.session_id, 0, "x" * (served.spec.max_action_chars + 1))

    assert problem(response) == (413, "/problems/action-too-large")
    assert served.get(session.session_id).index == 0
    assert served.step(session.session_id, 0, "x").index == 0


@pytest.mark.parametrize(
    "body",
    [{}, {"index": -1, "action": "a"}, {"index": 0, "action": 7}, {"index": 0, "action": "a", "x": 1}, {"index": "a"}],
    ids=str,
)
def test_malformed_step_is_refused_and_costs_no_turn(served: Served, body: dict[str, Any]) -> None:
    session = served.open()

    response = served.http.post(f"/v1/sessions/{session.session_id}/steps", json=body)

    assert problem(response) == (422, "/problems/validation")
    assert served.get(session.session_id).index == 0


def test_episode_ends_at_the_turn_limit_at_the_latest_and_takes_no_step_after(served: Served) -> None:
    session = served.open()
    results: list[StepResult] = []
    while not (results and (results[-1].terminated or results[-1].truncated)):
        results.append(served.step(session.session_id, len(results), "nonsense"))
        assert len(results) <= served.spec.max_turns

    response = served.post(session.session_id, len(results), "nonsense")

    assert problem(response) == (409, "/problems/episode-over")
    assert served.step(session.session_id, len(results) - 1, "nonsense") == results[-1], "the last one is still stored"
    state = served.get(session.session_id)
    assert (state.terminated, state.truncated) == (results[-1].terminated, results[-1].truncated)
    assert not (state.terminated and state.truncated)


def test_closed_session_is_gone_and_closing_again_is_harmless(served: Served) -> None:
    session = served.open()

    served.close(session.session_id)
    served.close(session.session_id)

    assert problem(served.post(session.session_id, 0, "x")) == (404, "/problems/unknown-session")


def test_expired_lease_closes_the_session(served: Served) -> None:
    session = served.open(lease_s=0.2)
    assert session.lease_s == 0.2

    deadline = time.monotonic() + 20
    while (response := served.http.get(f"/v1/sessions/{session.session_id}")).status_code == 200:
        assert response.json()["expires_in_s"] <= 0.2, "looking at a session does not renew its lease"
        assert time.monotonic() < deadline

    assert problem(response) == (404, "/problems/unknown-session")


def test_fork_makes_equal_children_and_leaves_the_parent_alone(served: Served) -> None:
    parent = served.open(task_index=4)
    moves = served.play(parent.session_id, 1)
    before = served.get(parent.session_id)

    response = served.http.post(f"/v1/sessions/{parent.session_id}/fork", json={"count": 2})

    if served.spec.capabilities.fork == "none":
        assert problem(response) == (409, "/problems/fork-unsupported")
        return
    assert response.status_code == 201, response.text
    one, two = (Session.model_validate(child) for child in response.json())
    unlike = {"session_id", "expires_in_s"}
    assert one.model_dump(exclude=unlike) == before.model_dump(exclude=unlike) == two.model_dump(exclude=unlike)
    assert len({parent.session_id, one.session_id, two.session_id}) == 3
    if before.terminated or before.truncated:
        return
    index, action = len(moves), served.move(parent.session_id)
    ahead = served.step(one.session_id, index, action)
    astray = served.step(two.session_id, index, "nonsense")
    assert served.get(parent.session_id).model_dump(exclude=unlike) == before.model_dump(exclude=unlike)
    assert served.step(parent.session_id, index, action) == ahead
    assert served.step(two.session_id, index, "nonsense") == astray
    assert problem(served.post(two.session_id, index, action)) == (409, "/problems/step-out-of-order")


def test_state_keys_are_those_of_the_state_and_told_to_who_asked(served: Served) -> None:
    unasked, asked = served.open(task_index=5), served.open(task_index=5, state_keys=True)
    assert unasked.state_key is None
    if not served.spec.capabilities.state_keys:
        assert asked.state_key is None
        return
    assert asked.state_key is not None

    again = served.open(task_index=5, state_keys=True)
    keys = [asked.state_key]
    for index, (action, result) in enumerate(served.play(asked.session_id, served.spec.max_turns)):
        assert served.step(again.session_id, index, action).state_key == result.state_key
        assert served.get(again.session_id).state_key == result.state_key
        assert result.state_key is not None
        keys.append(result.state_key)

    assert keys[-1] != keys[0], "the task was solved in between"
    assert max(map(len, keys)) <= 64
    assert served.open(task_index=6, state_keys=True).state_key != keys[0]


def test_admissible_actions_are_possible_and_asking_changes_nothing(served: Served) -> None:
    session, unasked = (served.open(task_index=5, state_keys=True) for _ in range(2))

    response = served.http.get(f"/v1/sessions/{session.session_id}/actions")

    if not served.spec.capabilities.admissible_actions:
        assert problem(response) == (409, "/problems/actions-unavailable")
        return
    actions = AdmissibleActions.model_validate_json(response.raise_for_status().content)
    assert served.get(session.session_id).state_key == session.state_key
    move = served.move(unasked.session_id)
    assert served.step(session.session_id, 0, move) == served.step(unasked.session_id, 0, move)
    for action in actions.actions[:12]:
        assert served.step(served.open(task_index=5).session_id, 0, action).action_valid, action


def test_expert_is_served_on_the_train_split_alone(served: Served) -> None:
    for split in SPLITS:
        session = served.open(split=split)

        response = served.http.get(f"/v1/sessions/{session.session_id}/expert")

        if split == "train" and served.spec.capabilities.expert:
            assert set(response.raise_for_status().json()) == {"thought", "action"}
        else:
            assert problem(response) == (409, "/problems/expert-unavailable")


def test_expert_solves_the_test_tasks_of_every_level(entry: Entry) -> None:
    if not entry.spec.capabilities.expert:
        return
    for level in entry.spec.levels:
        tasks = [entry.tasks.by_index("test", level, index) for index in range(SLOW.get(entry.spec.name, 20))]
        solved = [solve(entry, task.data) for task in tasks]

        assert sum(solved) >= 0.95 * len(tasks), f"{level}: solved {sum(solved)} of {len(tasks)}"


def test_splits_share_no_task(entry: Entry) -> None:
    for level in entry.spec.levels:
        seen: dict[str, str] = {}
        for split in SPLITS:
            for index in range(min(SLOW.get(entry.spec.name, 15), entry.tasks.count(split, level))):
                content = repr(entry.tasks.by_index(split, level, index).data)
                assert seen.setdefault(content, split) == split, f"{split} task {index} is also in {seen[content]}"


def test_an_index_outside_of_a_split_is_refused_with_the_number_of_tasks(entry: Entry) -> None:
    """Fronts that draw a task by a seed draw again within it."""
    for level, split in itertools.product(entry.spec.levels, SPLITS):
        count = entry.tasks.count(split, level)

        with pytest.raises(UnknownTask) as caught:
            entry.tasks.by_index(split, level, count)

        assert caught.value.count == count, f"{level}, {split}"


def test_tasks_are_the_same_as_ever(entry: Entry) -> None:
    """Ids are published: a change of tasks needs a new `version`, and the snapshot with it."""
    if entry.spec.name == ONE_FILE_NAME:
        return
    known = json.loads(SNAPSHOT.read_text())

    assert known.get(f"{entry.spec.name} {entry.spec.version}") == task_snapshot(entry), (
        "to accept new tasks, raise the environment's version and run python -m tests.conformance.snapshot"
    )


def task_snapshot(entry: Entry) -> dict[str, str]:
    """A few task ids with the digest of what the task shows first."""
    shown = {}
    for level in entry.spec.levels:
        for split in SPLITS:
            task = entry.tasks.by_index(split, level, 7)
            environment = entry.make()
            first = environment.reset(task.data, 0)
            if entry.spec.seats:
                first = "\n".join(seat.observation for seat in environment.game().seats.values())
            shown[task.task_id] = hashlib.sha256(first.encode()).hexdigest()[:16]
    return shown
