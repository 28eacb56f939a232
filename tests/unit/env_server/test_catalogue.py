"""How environments are found, and what is said when they are not."""

import sys
from pathlib import Path
from typing import Any

import pytest
from gymfleet_env_server.catalogue import ENVIRONMENTS, EnvironmentUnavailable, find_environment, load_entry
from gymfleet_env_server.settings import EnvServerSettings
from gymfleet_env_server.shards.channel import ShardConfig
from gymfleet_env_server.shards.shard import load_entries
from gymfleet_envs.environment import Environment
from gymfleet_envs.maze.environment import Maze
from pydantic import ValidationError

from tests.fixtures.waiting_environment import Waiting

WAITING = "tests.fixtures.waiting_environment:Waiting"

ABSTRACT = """
from gymfleet_envs.environment import Environment
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
        ("nowhere", "there is no environment 'nowhere'; known: .*maze, movie, os,"),
        ("runtime", "there is no environment 'runtime'"),
        ("Maze!", "names no environment"),
        ("no.module:Class", "there is no module 'no'"),
        ("gymfleet_envs.maze.environment:Nothing", "not a subclass"),
        ("gymfleet_envs.environment:Environment", "must define reset, step, task_source"),
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


def served(*references: str, **given: Any) -> ShardConfig:
    settings: dict[str, Any] = {"data": {}, "options": {}, "models": {}} | given
    return ShardConfig(
        prefix="p",
        references=references,
        lease_s=1,
        max_observation_chars=1,
        expert_splits=(),
        log_level="INFO",
        step_timeout_s=30,
        **settings,
    )


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (served("maze", "maze"), "two environments are called 'maze'"),
        (served("maze", data={"mase": "x"}), "GYMFLEET_ENV_DATA names mase, but served are maze"),
        (served("maze", options={"mase": {}}), "GYMFLEET_ENV_OPTIONS names mase, but served are maze"),
        (
            served("maze", options={"maze": {"size": 3}}),
            "GYMFLEET_ENV_OPTIONS for maze: size: .* \\(it knows: observation\\)",
        ),
        (served("os", options={"os": {"program_timeout_s": 25}}), "os may take 33 s for a call .* killed after 30 s"),
        (served("maze", models={"mase": {}}), "GYMFLEET_ENV_MODELS names mase, but served are maze"),
        (served("maze", models={"maze": {"user": {}}}), "GYMFLEET_ENV_MODELS names user for maze, which asks no model"),
    ],
)
def test_configuration_that_contradicts_itself(config: ShardConfig, reason: str) -> None:
    with pytest.raises(EnvironmentUnavailable, match=reason):
        load_entries(config)


SHOP = "tests.fixtures.asking_environment:Shop"
ANSWERS = {"url": "http://127.0.0.1:9/v1/chat/completions", "model": "m"}


@pytest.mark.parametrize(
    ("models", "reason"),
    [
        (
            {},
            (
                r"shop asks a model, user \(plays the customer\), and nobody answers: set GYMFLEET_ENV_MODELS='"
                r'{"shop": {"user": {"url": "http://HOST:PORT/v1/chat/completions", "model": "NAME"}}}'
            ),
        ),
        ({"shop": {"user": ANSWERS}}, "shop asks a model, judge .*, and nobody answers"),
        ({"shop": {"usher": ANSWERS}}, "GYMFLEET_ENV_MODELS names usher for shop, which asks user, judge"),
        (
            {"shop": {"user": ANSWERS | {"key_file": "/nowhere/key"}, "judge": ANSWERS}},
            "GYMFLEET_ENV_MODELS for shop: key_file /nowhere/key cannot be read: No such file",
        ),
    ],
)
def test_a_model_that_nobody_answers_for_is_one_line(models: dict[str, Any], reason: str) -> None:
    with pytest.raises(EnvironmentUnavailable, match=reason) as caught:
        load_entries(served(SHOP, models=models))

    assert "\n" not in str(caught.value)


def test_who_asks_a_model_waits_for_it() -> None:
    with pytest.raises(EnvironmentUnavailable, match=r"unserved asks a model, .* set blocking = True, or derive from"):
        load_entry("tests.fixtures.asking_environment:Unserved", {})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"url": "ftp://host/x"}, "scheme"),
        ({"url": "http://ann:secret@host/v1"}, "put the key into key_file"),
        ({"model": ""}, "at least 1 character"),
        ({"timeout_s": 0}, "greater than 0"),
        ({"temperature": 3}, "less than or equal to 2"),
        ({"concurrency": 0}, "greater than or equal to 1"),
        ({"api_key": "secret"}, "Extra inputs are not permitted"),
    ],
)
def test_an_endpoint_that_makes_no_sense_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        EnvServerSettings.model_validate({"models": {"shop": {"user": ANSWERS | given}}})


def test_options_are_in_place_before_tasks_and_programs_are_asked_for() -> None:
    try:
        entry = load_entry(WAITING, {}, {"waiting": {"program": "cat", "closed": "/nowhere"}, "other": {}})

        assert entry.kind.options.model_dump(exclude={"gate"}) == {"program": "cat", "closed": Path("/nowhere")}
        assert entry.kind.programs() == ("cat",)
        with pytest.raises(EnvironmentUnavailable, match=r"for waiting: program: .*; closd: .*knows: closed, program"):
            load_entry(WAITING, {}, {"waiting": {"program": 3, "closd": 1}})
        with pytest.raises(EnvironmentUnavailable, match="waiting needs the program 'gymfleet-no-such-java'"):
            load_entry(WAITING, {}, {"waiting": {"program": "gymfleet-no-such-java"}})
    finally:
        load_entry(WAITING, {})
    assert Waiting.options == type(Waiting.options)(), "without options the defaults are back"


def test_options_of_one_environment_are_not_those_of_another() -> None:
    try:
        load_entry(WAITING, {}, {"waiting": {"closed": "/nowhere"}})

        assert load_entry("maze", {}).kind.options.model_dump() == {"observation": "text"}
        assert Environment.options.model_dump() == {}
    finally:
        load_entry(WAITING, {})


def test_options_come_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYMFLEET_ENV_OPTIONS", '{"waiting": "fast"}')
    with pytest.raises(ValidationError, match=r"options\.waiting"):
        EnvServerSettings()
    monkeypatch.setenv("GYMFLEET_ENV_OPTIONS", '{"waiting": {"closed": "/x", "depth": {"of": [1]}}}')
    assert EnvServerSettings().options == {"waiting": {"closed": "/x", "depth": {"of": [1]}}}


def test_data_is_imported_as_it_is_unless_the_environment_converts_it(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "tasks.json").write_text("[1]")
    target.mkdir()

    Waiting.import_data(source, target)

    assert (target / "inner" / "tasks.json").read_text() == "[1]"
