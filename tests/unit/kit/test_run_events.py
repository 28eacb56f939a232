"""The events of a run, as they are written and read."""

import struct
from pathlib import Path

import pytest
from gymfleet_contracts.run import Place
from gymfleet_kit.run_events import EVENTS, INDEX, EventLog, EventsDamaged, find_episode, num_events, read_events

from tests.fixtures.scored import make_scored


def written(directory: Path, count: int) -> EventLog:
    log = EventLog(directory)
    for number in range(count):
        log.append("rl_step", stage="reinforce", data={"loss": number / 2, "words": "ä" * number})
    return log


def test_they_are_numbered_and_told_in_order(tmp_path: Path) -> None:
    written(tmp_path, 3).append("done", data={"message": "all"})

    events = read_events(tmp_path, 0, 100)

    assert [(event.number, event.kind, event.stage) for event in events] == [
        (1, "rl_step", "reinforce"),
        (2, "rl_step", "reinforce"),
        (3, "rl_step", "reinforce"),
        (4, "done", None),
    ]
    assert events[2].data == {"loss": 1.0, "words": "ää"}
    assert num_events(tmp_path) == 4


def test_the_index_says_where_each_line_begins(tmp_path: Path) -> None:
    written(tmp_path, 5)
    lines = (tmp_path / EVENTS).read_bytes().splitlines(keepends=True)
    offsets = [sum(map(len, lines[:number])) for number in range(5)]

    assert (tmp_path / INDEX).read_bytes() == struct.pack("<5Q", *offsets)


@pytest.mark.parametrize(
    ("after", "limit", "numbers"), [(0, 2, [1, 2]), (3, 1, [4]), (3, 9, [4, 5]), (5, 9, []), (9, 9, [])]
)
def test_any_part_is_read_alone(tmp_path: Path, after: int, limit: int, numbers: list[int]) -> None:
    written(tmp_path, 5)
    if after:  # what stands before is not looked at
        path = tmp_path / EVENTS
        first, rest = path.read_bytes().split(b"\n", 1)
        path.write_bytes(b"#" * len(first) + b"\n" + rest)

    assert [event.number for event in read_events(tmp_path, after, limit)] == numbers


def test_a_run_without_events_has_none(tmp_path: Path) -> None:
    assert (num_events(tmp_path), read_events(tmp_path, 0, 10), find_episode(tmp_path, "x")) == (0, [], None)


@pytest.mark.parametrize("torn", [b'{"number": 4, "ti', b""])
def test_half_a_line_of_a_crash_is_cut_and_numbers_go_on(tmp_path: Path, torn: bytes) -> None:
    written(tmp_path, 3)
    with (tmp_path / EVENTS).open("ab") as file:
        file.write(torn)

    EventLog(tmp_path).append("run_resumed")

    assert [event.number for event in read_events(tmp_path, 0, 10)] == [1, 2, 3, 4]


@pytest.mark.parametrize("index", [None, b"", b"\0" * 11, b"\0" * 24, b"\0" * 80])
def test_an_index_that_is_not_theirs_is_written_anew(tmp_path: Path, index: bytes | None) -> None:
    written(tmp_path, 3)
    (tmp_path / INDEX).unlink()
    if index is not None:
        (tmp_path / INDEX).write_bytes(index)

    EventLog(tmp_path).append("run_resumed")

    assert [event.kind for event in read_events(tmp_path, 2, 10)] == ["rl_step", "run_resumed"]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    written(tmp_path, 3)
    path = tmp_path / EVENTS
    path.write_bytes(path.read_bytes().replace(b'"number":2', b'"number":7'))

    with pytest.raises(EventsDamaged, match=r"events.jsonl, line 2: "):
        read_events(tmp_path, 0, 10)


def episodes_at(directory: Path, log: EventLog, *rewards: float) -> None:
    """Append an episode for each reward, all of one name."""
    path = directory / "trajectories" / "reinforce.jsonl"
    path.parent.mkdir(exist_ok=True)
    for reward in rewards:
        line = make_scored(total=reward).model_dump_json().encode() + b"\n"
        offset = path.stat().st_size if path.exists() else 0
        with path.open("ab") as file:
            file.write(line)
        place = Place(file="trajectories/reinforce.jsonl", offset=offset, length=len(line))
        log.append("episodes", stage="reinforce", places={make_scored().trajectory.trajectory_id: place})


def test_of_episodes_with_one_name_the_last_that_is_still_there_is_found(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    episodes_at(tmp_path, log, 0.25, 0.75)
    for _ in range(300):
        log.append("rl_step")
    name = make_scored().trajectory.trajectory_id

    found = find_episode(tmp_path, name[-3:])
    path = tmp_path / "trajectories" / "reinforce.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])  # as a run that is resumed cuts it
    earlier = find_episode(tmp_path, name)

    assert found is not None
    assert earlier is not None
    assert (found[1].reward, earlier[1].reward) == (make_scored(total=0.75).reward, make_scored(total=0.25).reward)
    assert found[0] == "trajectories/reinforce.jsonl"
    assert find_episode(tmp_path, "no such") is None


@pytest.mark.parametrize("file", ["/etc/passwd", "trajectories/../run.json", "run.json"])
def test_a_place_is_in_a_file_of_episodes(file: str) -> None:
    with pytest.raises(ValueError, match="file"):
        Place(file=file, offset=0, length=1)
