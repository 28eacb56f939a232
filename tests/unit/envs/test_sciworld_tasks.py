import json
import shutil
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from gymfleet_env_server.catalogue import EnvironmentUnavailable, load_entry
from gymfleet_envs.sciworld.engines import jar_of
from gymfleet_envs.sciworld.environment import SciWorld
from gymfleet_envs.sciworld.options import SciWorldOptions
from gymfleet_envs.sciworld.tasks import (
    LEVELS,
    PUBLISHED,
    VARIATIONS,
    SciTask,
    SciTasks,
    agentgym_games,
    agentgym_tasks,
    level_tasks,
    published_tasks,
    simplified,
    split_of,
    variations,
)
from gymfleet_envs.tasks import SPLITS, TaskDataError, UnknownTask
from pydantic import ValidationError


def levels() -> SciTasks:
    return level_tasks(simplifications="", recorded=True)


def test_benchmark_has_its_published_size() -> None:
    assert len(VARIATIONS) == 30
    assert sum(VARIATIONS.values()) == 7207

    tasks = published_tasks(simplifications="", recorded=True)

    assert [tasks.count(split, "all") for split in SPLITS] == [3592, 1796, 1819]
    assert tasks.levels == ("all", *VARIATIONS)
    assert tasks.by_index("test", "boil", 0).task_id == "boil/21"


@pytest.mark.parametrize(
    ("task", "train", "validation", "test"),
    [
        pytest.param("identify-life-stages-2", range(4), range(4, 6), range(6, 10), id="10: quarters of 2, the rest"),
        pytest.param("identify-life-stages-1", range(6), range(6, 9), range(9, 14), id="14: quarters of 3"),
        pytest.param("boil", range(14), range(14, 21), range(21, 30), id="30: quarters of 7"),
        pytest.param("lifespan-longest-lived", range(62), range(62, 93), range(93, 125), id="125"),
    ],
)
def test_split_is_upstreams(task: str, train: range, validation: range, test: range) -> None:
    assert [variations(task, split) for split in SPLITS] == [train, validation, test]
    assert [split_of(task, part[-1]) for part in (train, validation, test)] == list(SPLITS)


@pytest.mark.parametrize("make", [level_tasks, published_tasks])
def test_splits_are_disjoint_and_ids_lead_back(make: Any) -> None:
    tasks: SciTasks = make(simplifications="", recorded=True)
    for level in tasks.levels:
        found = [(split, tasks.by_index(split, level, i)) for split in SPLITS for i in range(tasks.count(split, level))]

        assert len({task.task_id for _, task in found}) == len(found) > 0
        assert all(task.split == split == split_of(task.data.task, task.data.variation) for split, task in found)
        for _, task in found[::7]:
            assert tasks.by_id(task.task_id).data == task.data


def test_levels_mix_their_tasks_from_the_start() -> None:
    tasks = levels()

    assert tuple(tasks.levels) == tuple(LEVELS)
    for level, (names, kind) in LEVELS.items():
        first = [tasks.by_index("train", level, index) for index in range(len(names))]
        assert [task.data.task for task in first] == list(names)
        assert {task.data.simplifications for task in first} == {kind}
        assert all(tasks.by_id(task.task_id) == task for task in first)


def test_a_task_outside_of_the_levels_is_found_by_its_id() -> None:
    tasks = levels()

    task = tasks.by_id("mendelian-genetics-known-plant/119")

    assert (task.split, task.level) == ("test", PUBLISHED)
    assert tasks.by_id("boil/3/teleportAction,openDoors").data == SciTask("boil", 3, "openDoors,teleportAction")


def test_agentgyms_numbers() -> None:
    recorded, current = agentgym_games(recorded=True), agentgym_games(recorded=False)

    assert (len(recorded), len(current)) == (4339, 4639)
    assert recorded[:1096] == current[:1096]
    assert current[1096] == ("measure-melting-point-unknown-substance", 0)
    assert recorded[1096] == ("power-component", 0)
    # What AgentGym's recorded episode sciworld_1571 asks for: the conductivity of a metal pot.
    assert levels().by_id("1571").data == SciTask("test-conductivity", 435)
    assert levels().by_id("sciworld_1571").data == levels().by_id("1571").data
    assert Counter(task for task, _ in current) == {
        task: count for task, count in VARIATIONS.items() if not task.startswith(("grow", "inclined", "mendelian"))
    }


def test_simplifications_of_the_operator_are_those_of_ids_that_name_none() -> None:
    tasks = level_tasks(simplifications="openDoors", recorded=True)

    assert tasks.by_id("1571").data.simplifications == "openDoors"
    assert tasks.by_id("boil/29").data.simplifications == "openDoors"
    assert tasks.by_id("boil/29/easy").data.simplifications == "easy"


@pytest.mark.parametrize(
    "task_id",
    ["", "boil", "boil/", "boil/30", "boil/-1", "boil/3/", "boil/3/fly", "boil/٣", "4339", "99999", "999999",
     "sciworld_", "power-component/1/noElectricalAction", "boil/1/easy/easy", "x" * 10_000],
)  # fmt: skip
def test_unknown_ids(task_id: str) -> None:
    if task_id == "boil/3/":
        assert levels().by_id(task_id).data == SciTask("boil", 3)
        return
    with pytest.raises(UnknownTask, match="sciworld"):
        levels().by_id(task_id)


@pytest.mark.parametrize(("split", "level", "index"), [("train", "nope", 0), ("test", "easy", -1), ("dev", "easy", 0)])
def test_unknown_places(split: Any, level: str, index: int) -> None:
    with pytest.raises(UnknownTask):
        levels().by_index(split, level, index)


def test_simplifications_have_one_spelling() -> None:
    assert simplified("") == ""
    assert simplified("easy") == "easy"
    assert simplified("teleportAction, openDoors") == "openDoors,teleportAction"
    with pytest.raises(ValueError, match="no simplification 'easy'"):
        simplified("easy,openDoors")


def test_agentgyms_lists_are_read(tmp_path: Path) -> None:
    (tmp_path / "sciworld_train.json").write_text(json.dumps([{"item_id": "sciworld_3", "conversations": []}]))
    (tmp_path / "sciworld_test.json").write_text('["sciworld_1571", 7]')
    (tmp_path / "notes.json").write_text("not read")

    tasks = agentgym_tasks(tmp_path, simplifications="", recorded=True)

    assert (tasks.name, tuple(tasks.levels)) == ("agentgym", ("agentgym",))
    assert [tasks.count(split, "agentgym") for split in SPLITS] == [1, 0, 2]
    assert tasks.by_index("train", "agentgym", 0) == tasks.by_id("3")
    assert tasks.by_id("1571").split == "test", "the list's split, not upstream's"
    assert tasks.by_id("1572").data == SciTask("test-conductivity", 436), "others can still be asked for"


def test_what_is_in_two_lists_is_held_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "sciworld_train.json").write_text("[1, 2, 2, 3, 4, 5]")
    (tmp_path / "sciworld_val.json").write_text("[3, 4, 6]")
    (tmp_path / "sciworld_test.json").write_text('["sciworld_4", 5, 4638]')

    tasks = agentgym_tasks(tmp_path, simplifications="", recorded=False)

    offered = {
        split: [tasks.by_index(split, "agentgym", index).task_id for index in range(tasks.count(split, "agentgym"))]
        for split in SPLITS
    }
    assert offered == {"train": ["1", "2"], "validation": ["3", "6"], "test": ["4", "5", "4638"]}
    assert tasks.left_out == (
        "sciworld_val.json: 1 item (4) in test too",
        "sciworld_train.json: 1 item (2) twice",
        "sciworld_train.json: 1 item (3) in validation too",
        "sciworld_train.json: 2 items (4, 5) in test too",
    )
    assert tasks.by_id("4").split == "test"


def test_numbers_are_those_of_agentgyms_server_unless_its_recordings_are_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SciWorld, "options", SciWorldOptions())  # what load_entry sets is put back

    assert load_entry("sciworld", {}).tasks.by_id("1096").data.task == "measure-melting-point-unknown-substance"
    recorded = load_entry("sciworld", {}, {"sciworld": {"agentgym_numbering": "recorded"}})
    assert recorded.tasks.by_id("1096").data.task == "power-component"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        pytest.param({}, "nothing to import: ScienceWorld's tasks come with its package", id="empty"),
        pytest.param({"README.md": "x"}, "nothing to import", id="other files"),
        pytest.param({"train.json": "[1"}, r"train\.json is not JSON", id="cut off"),
        pytest.param({"train.json": "{}"}, "must hold a list", id="no list"),
        pytest.param({"train.json": '["webshop_1"]'}, "entry 0: 'webshop_1' is no item", id="another game's"),
        pytest.param({"train.json": "[4339]"}, "0 to 4338, not 4339", id="beyond the last"),
        pytest.param({"train.json": "[" * 100_000}, r"train\.json is not JSON", id="deep"),
        pytest.param({"train.json": "\xff"}, r"train\.json is not JSON", id="no text"),
    ],
)
def test_directory_without_use_is_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content.encode("latin-1"))

    with pytest.raises(TaskDataError, match=message):
        agentgym_tasks(tmp_path, simplifications="", recorded=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"simplifications": "fly"}, "no simplification 'fly'"),
        ({"heap_mb": 1}, "greater than or equal to 256"),
        ({"recycle_rss_mb": 10}, "greater than or equal to 64"),
        ({"jvms": 2}, "not permitted"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SciWorldOptions.model_validate(options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "is missing", id="missing"),
        pytest.param(b"", "is damaged", id="empty"),
        pytest.param(b"PK\x03\x04" + bytes(1000), "is damaged", id="no archive"),
    ],
)
def test_damaged_jar_is_refused_in_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    jar = tmp_path / "scienceworld.jar"
    if content is not None:
        jar.write_bytes(content)

    with pytest.raises(EnvironmentUnavailable, match=message) as refused:
        load_entry("sciworld", {}, {"sciworld": {"jar": str(jar)}})

    assert "\n" not in str(refused.value)


def test_java_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(EnvironmentUnavailable, match="needs the program 'java'"):
        load_entry("sciworld", {})


def test_jar_with_a_damaged_class_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    good = jar_of(SciWorldOptions())
    bent = tmp_path / "bent.jar"
    shutil.copyfile(good, bent)
    with bent.open("r+b") as file:
        file.seek(good.stat().st_size // 2)
        file.write(b"\xff" * 64)
    other = tmp_path / "other.jar"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")

    for jar, message in ((bent, "is damaged"), (other, "is not ScienceWorld's jar")):
        with pytest.raises(EnvironmentUnavailable, match=message):
            load_entry("sciworld", {}, {"sciworld": {"jar": str(jar)}})
    assert load_entry("sciworld", {}, {"sciworld": {"jar": str(good)}}).spec.name == "sciworld"
    load_entry("sciworld", {}, {"sciworld": {}})
