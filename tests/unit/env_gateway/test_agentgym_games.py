"""AgentGym's task numbers meet the right tasks."""

import pytest
from gymfleet_contracts.session import Capabilities, EnvironmentSpec
from gymfleet_env_gateway.fronts.agentgym.games import (
    ALFWORLD,
    BABYAI,
    GAMES,
    MAZE,
    SCIWORLD,
    SQLGYM,
    TEXTCRAFT,
    WEBSHOP,
    WORDLE,
    Game,
)


def spec(game: Game, task_source: str) -> EnvironmentSpec:
    return EnvironmentSpec(
        name=game.env, version="1", summary="", instructions="", max_turns=9, levels=("l",), default_level="l",
        splits={"train": 100, "validation": 10, "test": 10}, capabilities=Capabilities(deterministic=True),
        task_source=task_source,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("game", "number", "task_id"),
    [
        (TEXTCRAFT, 12, "12"),
        (TEXTCRAFT, 544 + 12, "12"),
        (BABYAI, 11155, "11155"),
        (MAZE, 7, "lmrlgym_maze_7"),
        (WORDLE, 1450, "1450"),
        (ALFWORLD, 2420, "2420"),
        (SCIWORLD, 261, "261"),
        (SQLGYM, 9427, "train.9427"),
        (SQLGYM, 9428, "dev.0"),
        (SQLGYM, 10961, "dev.1533"),
        (WEBSHOP, 6148, "6148"),
    ],
)
def test_with_benchmark_data_the_number_is_the_benchmarks(game: Game, number: int, task_id: str) -> None:
    body = game.task(spec(game, "a benchmark"), number, 60)

    assert body["task_id"] == task_id
    assert "task_index" not in body


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.env)
def test_generated_tasks_are_counted_through_modulo(game: Game) -> None:
    body = game.task(spec(game, "generated"), 2 * 100 + 7, 60)

    assert (body["task_index"], body["split"]) == (7, "train")
    assert body.get("level") == ("shared_400" if game is WORDLE else None)
    assert "task_id" not in body


@pytest.mark.parametrize(
    ("ours", "agentgyms"),
    [
        ("-= Welcome to TextWorld, ALFRED! =-\n\nYou see a cabinet 1.\n\nYour task is to: x.",
         "You see a cabinet 1.\nYour task is to: x."),
        ("You arrive at loc 14. On the toilet 1, you see nothing.", "On the toilet 1, you see nothing."),
        ("You see a cabinet 1.\n\nYour task is to: x.", "You see a cabinet 1.\n\nYour task is to: x."),
        ("Nothing happens.", "Nothing happens."),
        ("", ""),
    ],
)  # fmt: skip
def test_alfworlds_title_and_place_numbers_are_left_out(ours: str, agentgyms: str) -> None:
    assert ALFWORLD.words(ours) == agentgyms
    assert WEBSHOP.words(ours) == ours


def test_roots_are_the_first_part_of_the_path() -> None:
    roots = {game.env: game.root for game in GAMES}

    assert (roots["maze"], roots["sql"], roots["alfworld"]) == ("/maze", "/sqlgym", "/alfworld")
    assert len(set(roots.values())) == len(GAMES)
