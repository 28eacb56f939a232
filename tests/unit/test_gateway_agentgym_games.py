"""AgentGym's task numbers meet the right tasks."""

import pytest
from gymfleet_contracts.session import Capabilities, EnvironmentSpec
from gymfleet_env_gateway.fronts.agentgym_games import BABYAI, GAMES, MAZE, TEXTCRAFT, WORDLE, Game


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
    assert "task_id" not in body
