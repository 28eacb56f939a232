"""How environments are found, and what is said when they are not."""

import sys
from pathlib import Path

import pytest
from gymfleet_envs.maze.environment import Maze
from gymfleet_envs.runtime.catalogue import ENVIRONMENTS, EnvironmentUnavailable, find_environment, load_entry
from gymfleet_envs.runtime.channel import ShardConfig
from gymfleet_envs.runtime.shard import load_entries

ABSTRACT = """
from gymfleet_envs.runtime.environment import Environment
class Half(Environment[int]):
    name = "half"
ENVIRONMENT = Half
"""
ENGINELESS = """
import an_engine_that_is_not_installed
"""


def test_by_name_by_class_and_by_path() -> None:
    path = sys.modules[Maze.__module__].__file__
    assert path is not None

    assert find_environment("maze") is Maze
    assert find_environment("gymfleet_envs.maze.environment:Maze") is Maze
    assert find_environment(path).name == "maze"


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_catalogue_lists_what_there_is(name: str) -> None:
    assert find_environment(name).name == name


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("nowhere", "there is no environment 'nowhere'; known: maze"),
        ("runtime", "there is no environment 'runtime'"),
        ("Maze!", "names no environment"),
        ("no.module:Class", "there is no module 'no'"),
        ("gymfleet_envs.maze.environment:Nothing", "not a subclass"),
        ("gymfleet_envs.runtime.environment:Environment", "must define reset, step, task_source"),
        ("./nothing.py", "there is no file nothing.py"),
        ("os:system", "not a subclass"),
    ],
)
def test_what_cannot_be_served_is_one_line(reference: str, reason: str) -> None:
    with pytest.raises(EnvironmentUnavailable, match=reason) as caught:
        find_environment(reference)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (ABSTRACT, "ENVIRONMENT must define reset, step, task_source"),
        (ENGINELESS, "No module named 'an_engine_that_is_not_installed'"),
        ("x = 1", "must say ENVIRONMENT = "),
        ("ENVIRONMENT = 7", "not a subclass"),
        ("def", "SyntaxError"),
    ],
)
def test_faulty_file_is_explained(tmp_path: Path, source: str, reason: str) -> None:
    path = tmp_path / "faulty.py"
    path.write_text(source)

    with pytest.raises(EnvironmentUnavailable, match=reason):
        find_environment(str(path))


def test_data_of_an_environment_is_checked(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnavailable, match=r"environment maze: .*mazes\.json cannot be read"):
        load_entry("maze", {"maze": tmp_path})


@pytest.mark.parametrize(
    ("references", "data", "reason"),
    [
        (("maze", "maze"), {}, "two environments are called 'maze'"),
        (("maze",), {"mase": "x"}, "GYMFLEET_ENV_DATA names mase, but served are maze"),
    ],
)
def test_configuration_that_contradicts_itself(references: tuple[str, ...], data: dict[str, str], reason: str) -> None:
    config = ShardConfig(
        prefix="p",
        references=references,
        data=data,
        lease_s=1,
        max_observation_chars=1,
        expert_splits=(),
        log_level="INFO",
    )

    with pytest.raises(EnvironmentUnavailable, match=reason):
        load_entries(config)


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Maze, "programs", ("gymfleet-no-such-java",))

    with pytest.raises(EnvironmentUnavailable, match="maze needs the program 'gymfleet-no-such-java'"):
        find_environment("maze")
