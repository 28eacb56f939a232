"""The maze: LMRL-Gym's words to the letter, solvable tasks, an expert that walks the shortest way."""

import io
import json
from collections import deque
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from gymfleet_contracts.session import Split
from gymfleet_envs.environment import Image
from gymfleet_envs.maze.environment import Maze, MazeOptions
from gymfleet_envs.maze.grid import MazeTask, describe
from gymfleet_envs.maze.picture import CELL_PIXELS, PALETTE, SELF, picture
from gymfleet_envs.tasks import TaskDataError

from tests.fixtures.paths import SHARED_DATA

DATA = SHARED_DATA
UPSTREAM = [DATA / "maze"] if (DATA / "maze" / "mazes.json").exists() else []
ROOM = MazeTask(rows=("#####", "#...#", "#.#.#", "#####"), start=(2, 1), goal=(2, 3), turn_limit=10)
OPEN = MazeTask(rows=("#####", "#...#", "#...#", "#...#", "#####"), start=(2, 2), goal=(1, 3), turn_limit=8)


def started(task: MazeTask) -> tuple[Maze, str]:
    maze = Maze()
    return maze, maze.reset(task, 0)


@pytest.mark.parametrize(
    ("position", "text"),
    [
        pytest.param((2, 1), "There are walls to your right, to your left, below you.", id="three: this order"),
        pytest.param((1, 2), "There are walls above you, below you.", id="two"),
    ],
)
def test_walls_are_told_in_upstream_order(position: tuple[int, int], text: str) -> None:
    expected = f"The goal is at position 2, 3. Your current position is at position {position[0]}, {position[1]}. "

    assert describe(ROOM.rows, position, ROOM.goal) == f"{expected}{text}\n"


def test_no_wall_one_wall_and_numbers_over_nine() -> None:
    rows = ("#" * 13, *(["#" + "." * 11 + "#"] * 11), "#" * 13)

    assert describe(rows, (5, 5), (11, 2)).endswith("There are no walls near you.\n")
    assert describe(rows, (1, 10), (11, 2)) == (
        "The goal is at position 1 1, 2. Your current position is at position 1, 1 0. There is a wall above you.\n"
    )


def test_moves_walls_nonsense_and_the_goal() -> None:
    maze, first = started(ROOM)

    blocked = maze.step("move left")
    nonsense = maze.step("fly")
    way = [maze.step(action) for action in ("move up", " Move  RIGHT\n", "move right", "move down")]

    assert (blocked.observation, blocked.action_valid, blocked.reward) == (first, True, 0.0)
    assert (nonsense.observation, nonsense.action_valid, nonsense.reward) == (first, False, 0.0)
    assert [outcome.terminated for outcome in way] == [False, False, False, True]
    assert (way[-1].observation, way[-1].reward, way[-1].score) == ("Success\n", 1.0, 1.0)


@pytest.mark.parametrize("action", ["", "move", "up", "move up down", "move\x00up", "MOVE ÜP", "move right now", "右"])
def test_anything_but_the_four_actions_is_invalid(action: str) -> None:
    maze, first = started(OPEN)

    assert not maze.step(action).action_valid
    assert maze.step(action).observation == first


def test_expert_says_where_the_goal_is_and_why_it_turns_away() -> None:
    maze, _ = started(OPEN)
    straight = maze.expert()
    maze, _ = started(ROOM)
    around = maze.expert()

    assert straight is not None
    assert around is not None
    assert (straight.thought, straight.action) == ("The goal is right and up. Going right.", "move right")
    assert (around.thought, around.action) == ("The goal is right. A wall is in the way. Going up.", "move up")


def _shortest(task: MazeTask) -> int:
    """An independent count of the moves to the goal."""
    queue, seen = deque([(task.start, 0)]), {task.start}
    while queue:
        (row, column), length = queue.popleft()
        if (row, column) == task.goal:
            return length
        for cell in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            if task.rows[cell[0]][cell[1]] == "." and cell not in seen:
                seen.add(cell)
                queue.append((cell, length + 1))
    raise AssertionError("the goal is out of reach")


@pytest.mark.parametrize(("level", "longest"), [("tiny", 4), ("small", 8), ("medium", 14), ("large", 60)])
def test_generated_mazes_are_solvable_within_twice_the_shortest_way(level: str, longest: int) -> None:
    source = Maze.task_source(None)
    for index in range(60):
        task = source.by_index("train", level, index).data
        length = _shortest(task)
        maze, _ = started(task)
        walked = 0
        while (move := maze.expert()) is not None:
            walked += 1
            if maze.step(move.action).terminated:
                break

        assert 1 <= length <= longest
        assert walked == length, "the expert walks the shortest way"
        assert maze.turn_limit == 2 * length + 4 <= Maze.max_turns


def test_large_mazes_are_trees() -> None:
    """As many ways between cells as cells, less one, and all connected: exactly one path between any two."""
    rows = Maze.task_source(None).by_index("test", "large", 0).data.rows
    free = {(r, c) for r, line in enumerate(rows) for c, mark in enumerate(line) if mark == "."}
    ways = sum(((r, c + 1) in free) + ((r + 1, c) in free) for r, c in free)

    assert len(rows) >= 13
    assert ways == len(free) - 1


def test_instructions_are_short_and_name_the_actions() -> None:
    assert len(Maze.instructions.split()) < 60
    for direction in ("up", "down", "left", "right"):
        assert f"move {direction}" in Maze.instructions


def test_copy_goes_its_own_way() -> None:
    maze, first = started(OPEN)
    copy = maze.snapshot()

    copy.step("move down")

    assert maze.step("fly").observation == first
    assert copy.step("fly").observation != first


@pytest.mark.parametrize("data", UPSTREAM, ids=["lmrl-gym"])
def test_upstream_tasks_have_agentgyms_ids_and_disjoint_splits(data: Path) -> None:
    source = Maze.task_source(data)

    assert source.name == "lmrl-gym"
    assert source.default_level == "double_t_maze"
    assert source.by_id("lmrlgym_maze_0").data.start == (1, 1)
    assert source.by_id("lmrlgym_maze_13").split == "test"
    ids: list[str] = []
    splits: tuple[Split, ...] = ("train", "validation", "test")
    for split in splits:
        ids += [source.by_index(split, "double_t_maze", i).task_id for i in range(source.count(split, "double_t_maze"))]
    assert sorted(ids) == sorted(f"lmrlgym_maze_{index}" for index in range(26))


def damaged(**changes: Any) -> dict[str, Any]:
    walls = [[1] * 9 if row in (0, 9) else [1, *[0] * 7, 1] for row in range(10)]
    return {"double_t_maze": walls, "double_t_maze_optimal_directions": {"1,1": "move right\n"}, **changes}


OPEN_FIELD = [[1] * 60, *[[1, *[0] * 58, 1]] * 58, [1] * 60]


def test_whole_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "mazes.json").write_text(json.dumps(damaged()))

    assert Maze.task_source(tmp_path).count("train", "double_t_maze") == 1


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        pytest.param(None, "cannot be read", id="missing"),
        pytest.param("{", "is not JSON", id="cut short"),
        pytest.param("[" * 100_000, "is not JSON", id="nested"),
        pytest.param("[]", "no entry 'double_t_maze'", id="a list"),
        pytest.param(damaged(double_t_maze=[[1, 1, 1], [1, 0], [1, 1, 1]]), "is not a rectangle", id="ragged"),
        pytest.param(damaged(double_t_maze=[[1, 1, 1], [1, 2, 1], [1, 1, 1]]), "is not a rectangle", id="a 2"),
        pytest.param(damaged(maze2d_umaze=[[1, 1, 1], [0, 0, 1], [1, 1, 1]]), "is not closed", id="open border"),
        pytest.param(damaged(maze2d_umaze=[[1] * 3] * 3), "has a wall at its goal", id="goal outside"),
        pytest.param(damaged(own=OPEN_FIELD), "with 'own', it has more than 500000 pairs", id="too many tasks"),
        pytest.param(damaged(double_t_maze_optimal_directions={"0,1": ""}), "out of reach", id="start in a wall"),
        pytest.param(damaged(double_t_maze_optimal_directions={"x": ""}), "keys look like", id="bad key"),
        pytest.param(damaged(double_t_maze_optimal_directions=[]), "no table", id="no starts"),
    ],
)
def test_damaged_file_is_named_with_its_fault(tmp_path: Path, content: Any, fault: str) -> None:
    if content is not None:
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "mazes.json").write_text(text)

    with pytest.raises(TaskDataError, match=fault) as caught:
        Maze.task_source(tmp_path)

    assert "mazes.json" in str(caught.value)


def shown_as(how: str) -> type[Maze]:
    return type("Shown", (Maze,), {"options": MazeOptions.model_validate({"observation": how})})


def test_the_picture_shows_what_the_text_says_and_no_more_of_the_maze() -> None:
    image = PIL.Image.open(io.BytesIO(picture(ROOM.rows, (2, 1), (2, 3)))).convert("RGB")

    side = CELL_PIXELS
    cells = [
        [image.getpixel((x, y)) for x in range(side // 2, image.width, side)] for y in range(side // 2, 4 * side, side)
    ]
    names: dict[object, str] = dict(zip(PALETTE, "?.#AG", strict=True))
    assert ["".join(names[cell] for cell in row) for row in cells] == ["?????", "?.???", "#A#G?", "?#???"]
    assert (image.width, image.height) == (5 * side, 4 * side)
    assert {image.getpixel((x, y)) for x in range(side, 2 * side) for y in range(2 * side, 3 * side)} == {PALETTE[SELF]}


@pytest.mark.parametrize("how", ["image", "both"])
def test_an_option_shows_it_as_parts(how: str) -> None:
    plain, shown = Maze(), shown_as(how)()
    texts = [plain.reset(ROOM, 0), plain.step("move up").observation]
    pictures = [picture(ROOM.rows, place, ROOM.goal) for place in ((2, 1), (1, 1))]

    first = shown.reset(ROOM, 0)
    second = shown.step("move up")

    assert (first, second.observation) == ("", "")
    wanted = [[Image(one)] if how == "image" else [text, Image(one)] for text, one in zip(texts, pictures, strict=True)]
    assert [list(shown.start_parts), list(second.parts)] == wanted
    assert pictures[0] != pictures[1]
    assert shown.step("move right").parts
    assert shown.step("move right").parts, "the goal is down"
    assert shown.step("move down").observation == "Success\n"


@pytest.mark.parametrize(("how", "said"), [("text", None), ("both", "beside"), ("image", "only")])
def test_the_specification_says_whether_there_are_images(how: str, said: str | None) -> None:
    kind = shown_as(how)
    spec = kind.spec(kind.task_source(None))

    assert spec.images == said
    assert ("images" in spec.model_dump()) is (said is not None)
