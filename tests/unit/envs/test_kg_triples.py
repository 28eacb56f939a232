"""Graphs from files of triples, and the questions about them."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from gymfleet_env_server.catalogue import EnvironmentUnavailable, load_entry
from gymfleet_env_server.importing import import_benchmark
from gymfleet_envs.kg.environment import ENVIRONMENT
from gymfleet_envs.kg.program import Extreme, Join
from gymfleet_envs.kg.task import KgTask
from gymfleet_envs.kg.triples import GENERATED_ATTRIBUTES, made_up, open_triples, triple_files

from tests.fixtures.paths import SHARED_DATA

TOWNS = 12
FREEBASE = [(f"/m/c{town}", "/location/location/contains", f"/m/p{town}_{place}") for town in range(TOWNS)
            for place in range(7)] + [
    (f"/m/p{town}_{place}", "/people/person/friend./people/friendship/friend", f"/m/c{(town + place) % TOWNS}")
    for town in range(TOWNS) for place in range(7)
] + [(f"/m/c{town}", "/location/location/twin", f"/m/c{(town + far) % TOWNS}") for town in range(TOWNS)
     for far in (1, 2, 3)]  # fmt: skip
"""Each of 12 towns contains 7 people, who each have a friend that is a town, and has 3 twin towns."""


def write(folder: Path, name: str = "train.txt", rows: Any = FREEBASE) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = rows if isinstance(rows, str) else "".join("\t".join(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return folder


def solve(task: KgTask) -> tuple[float, float]:
    environment = ENVIRONMENT()
    environment.reset(task, 0)
    for _ in range(ENVIRONMENT.max_turns):
        move = environment.expert()
        assert move is not None
        if (outcome := environment.step(move.action)).terminated:
            return outcome.reward, outcome.score
    return 0.0, 0.0


@pytest.mark.parametrize("name", ["train.txt", "sub/valid.tsv", "a/b/train.txt.gz"])
def test_questions_about_triples_are_solved_by_the_expert(tmp_path: Path, name: str) -> None:
    write(tmp_path / "data", name)
    (tmp_path / "data" / "entity2wikidata.json").write_text(
        json.dumps({"/m/c0": {"label": "Old\nTown"}, "/m/c1": {"label": ""}, "/m/c2": {}})
    )

    found = import_benchmark("kg", tmp_path / "data", tmp_path / "home")
    imported = load_entry("kg", {"kg": tmp_path / "home" / "kg"})
    published = load_entry("kg", {"kg": tmp_path / "data"})

    assert found["task_source"] == "triples"
    assert {"one_hop", "count", "superlative"} <= set(found["tasks"])
    for level in found["tasks"]:
        task = imported.tasks.by_index("train", level, 0)
        assert solve(task.data) == (1.0, 1.0)
        unimported = published.tasks.by_index("train", level, 0).data
        assert (unimported.question, unimported.gold) == (task.data.question, task.data.gold)
    graph, _ = open_triples(tmp_path / "home" / "kg")
    assert (graph.words.names["m.c0"], graph.words.names["m.c1"]) == ("Old Town", "m.c1")
    assert graph.members(Join("location.location.twin", "m.c0")) == {"m.c1", "m.c2", "m.c3"}
    assert graph.relations("m.p0_0") == ("people.person.friend..people.friendship.friend",)


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    text = "".join("\t".join(row) + "\n" for row in FREEBASE)
    import_benchmark("kg", write(tmp_path / "data", rows=f"\ufeff{text}"), tmp_path / "home")

    graph, _ = open_triples(tmp_path / "home" / "kg")

    assert not [name for name in graph.words.names.values() if "\ufeff" in name]


def test_questions_about_another_script_can_be_read(tmp_path: Path) -> None:
    """A name of 63 letters has over 256 characters once it is escaped for a URI."""
    university = "Московский государственный университет имени Михаила Ломоносова"
    cities = [f"город {one}" for one in range(12)]
    rows = [(city, "город-побратим", cities[place - far]) for place, city in enumerate(cities) for far in (1, 2, 3)]
    tasks = ENVIRONMENT.task_source(write(tmp_path, rows=[*rows, (university, "место", cities[0])]))

    task = tasks.by_index("train", "one_hop", 0).data

    assert task.question.startswith("Name the город-побратим of город ")
    assert solve(task) == (1.0, 1.0)


def test_numbers_are_made_up_and_their_names_say_so(tmp_path: Path) -> None:
    tasks = ENVIRONMENT.task_source(write(tmp_path))
    task = tasks.by_index("train", "superlative", 0).data
    assert isinstance(task.program, Extreme)
    assert task.program.attribute in GENERATED_ATTRIBUTES
    assert all(name.startswith("generated.") for name in GENERATED_ATTRIBUTES)

    graph, _ = open_triples(tmp_path)
    among = graph.members(task.program.base)
    values = {one: int(hashlib.sha256(f"{one} {task.program.attribute}".encode()).hexdigest()[:16], 16) % 10**6 + 1
              for one in among}  # fmt: skip
    best = (max if task.program.greatest else min)(values, key=lambda one: values[one])

    assert task.gold == {best}
    assert made_up(best, task.program.attribute) == values[best]


def test_the_column_of_the_relation_is_found(tmp_path: Path) -> None:
    """Nations and kinship name it first; all others in the middle."""
    write(tmp_path, "nations.txt", [(f"r{one}", f"c{one % 5}", f"c{(one + 1) % 5}") for one in range(40)])
    write(tmp_path, "umls.txt", [(f"c{one % 5}", f"r{one}", f"c{(one + 1) % 5}") for one in range(40)])
    write(tmp_path, "apart.txt", [(f"a{one}", "r", f"b{one}") for one in range(40)])

    assert {file.path.stem: file.columns for file in triple_files(tmp_path)} == {
        "nations": (1, 0, 2), "umls": (0, 1, 2), "apart": (0, 1, 2),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        pytest.param("train.txt", "a\tr\tb\na\tr\n", "train.txt: line 2: 2 fields instead of three", id="two fields"),
        pytest.param("train.txt", "a\tr\t\n", "train.txt: line 1: 3 fields", id="an empty name"),
        pytest.param("train.txt", "just a text\n", "holds no triples", id="no triples"),
        pytest.param("train.txt", "a\tr\t" + "b" * 70_000, "too long", id="a long line"),
        pytest.param("train.txt", "a\tr\t" + "b" * 400, "triple 1: a name is empty or too long", id="a long name"),
        pytest.param("train.txt", "a\tr\tb\n", "no question can be asked", id="nothing to ask"),
    ],
)
def test_damaged_files_are_named_and_nothing_is_imported(tmp_path: Path, name: str, content: str, said: str) -> None:
    write(tmp_path / "data", name, content)

    with pytest.raises(EnvironmentUnavailable, match=said):
        import_benchmark("kg", tmp_path / "data", tmp_path / "home")

    assert not (tmp_path / "home" / "kg").exists()


def test_damaged_archives_and_stores_are_named(tmp_path: Path) -> None:
    write(tmp_path / "data", "train.txt.gz")
    whole = (tmp_path / "data" / "train.txt.gz").read_bytes()
    for damaged in (whole[:-20], b"no gzip\tat\tall", b"\xff\xfe" + whole):
        (tmp_path / "data" / "train.txt.gz").write_bytes(damaged)
        with pytest.raises(EnvironmentUnavailable, match=r"train.txt.gz: damaged"):
            load_entry("kg", {"kg": tmp_path / "data"})
    (tmp_path / "data" / "train.txt.gz").write_bytes(whole)
    import_benchmark("kg", tmp_path / "data", tmp_path / "home")
    (tmp_path / "home" / "kg" / "store" / "CURRENT").unlink()
    with pytest.raises(EnvironmentUnavailable, match="import the files again"):
        load_entry("kg", {"kg": tmp_path / "home" / "kg"})


@pytest.mark.skipif(not (SHARED_DATA / "kg_triples").is_dir(), reason="needs ../shared/data/kg_triples")
def test_published_graphs_are_asked_about(tmp_path: Path) -> None:
    data = SHARED_DATA / "kg_triples" / "other"
    for name in ("countries",):
        folder = tmp_path / name
        for path in sorted((data / name).rglob("*.txt")):
            write(folder, f"{path.parent.name}.txt", path.read_text())
        tasks = ENVIRONMENT.task_source(folder)
        for level in tasks.levels:
            for split in ("train", "test"):
                assert solve(tasks.by_index(split, level, 0).data) == (1.0, 1.0), (name, level)
