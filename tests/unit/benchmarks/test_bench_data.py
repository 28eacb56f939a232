"""The benchmark on real data, where there is none, and where an expert fails."""

from pathlib import Path

import pytest
from gymfleet_env_server.catalogue import load_entry
from gymfleet_envs.maze.grid import MazeTask
from gymfleet_envs.tasks import Task

from benchmarks import bench_data

ON_DATA = [name for name in bench_data.PARTS if name != "experts"]


@pytest.mark.parametrize("name", ON_DATA)
def test_a_part_without_its_data_is_left_out_and_says_so(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench_data.measure(name, tmp_path) == []

    said = capsys.readouterr().err
    assert said.startswith(f"{name}: left out, ")
    assert str(tmp_path) in said
    assert said.count("\n") == 1


def test_what_is_not_solved_is_counted_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    entry = load_entry("maze", {})
    good = [entry.tasks.by_index("test", entry.tasks.default_level, index) for index in range(3)]
    corridor = MazeTask(rows=("#####", "#...#", "#####"), start=(1, 1), goal=(1, 3), turn_limit=1)
    bad = Task("too far", "test", "tiny", corridor)

    assert bench_data.solved(entry, good) == 1.0
    assert capsys.readouterr().err == ""
    assert bench_data.solved(entry, [*good, bad]) == 0.75
    assert "maze: 1 of 4 fail: too far (not solved)\n" in capsys.readouterr().err


def test_every_level_of_an_environment_gets_a_row() -> None:
    rows = bench_data.expert("sql")

    assert len(rows) == len(load_entry("sql", {}).tasks.levels)
    assert all(row.met for row in rows)
