"""The benchmarks of reward models: what their episodes are, and what may be compared."""

import pytest
from gymfleet_envs.maze.environment import Maze

from benchmarks.bench_process_reward import check_taken
from benchmarks.bench_reward_models import enters_goal, played


def test_the_last_move_decides_every_outcome() -> None:
    ends = [(one.trajectory.turns, one.trajectory.success) for one in played(0, 20, 4)]

    assert {success for _, success in ends} == {True, False}
    assert all(enters_goal(turns[-1]) == success for turns, success in ends)
    assert not any(enters_goal(turn) for turns, _ in ends for turn in turns[:-1])


@pytest.mark.parametrize(("move", "enters"), [("right", True), ("left", False), ("down", False)])
def test_the_digits_of_a_position_are_apart(move: str, enters: bool) -> None:
    (episode,) = played(0, 1, 1)
    shown = "The goal is at position 3, 1 0. Your current position is at position 3, 9. There is a wall above you.\n"
    turn = episode.trajectory.turns[0].model_copy(update={"observation": shown, "text": f"Action: move {move}"})

    assert enters_goal(turn) == enters


def test_no_maze_is_played_twice_by_one_seed_or_by_two() -> None:
    source = Maze.task_source(None)
    tasks = [one.trajectory.task.task_id for seed in (0, 1) for one in played(seed, 150, 1)]

    assert len({source.by_id(task).data for task in tasks}) == 300
    assert len({source.by_index("train", "tiny", index).data for index in range(300)}) < 300, "as indices would have it"


@pytest.mark.parametrize("taken", [100, 103])
def test_a_training_that_took_its_steps_counts(taken: int) -> None:
    check_taken("process, seed 0", {"counts": {"env_steps.reinforce": taken}}, 100)


def test_a_training_that_ended_before_is_not_compared() -> None:
    with pytest.raises(SystemExit, match="process, seed 0: ended after 99 of 100 environment steps"):
        check_taken("process, seed 0", {"counts": {"env_steps.reinforce": 99}}, 100)
