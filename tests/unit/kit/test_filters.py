"""Filters: what ours keep, and those that fail."""

from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.conversation import Conversation, Record
from gymfleet_kit.data import samples
from gymfleet_kit.data.filter import dialogue, replies
from gymfleet_kit.data.filter_checks import examine
from gymfleet_kit.data.filtering import FILTERS, FilterFailed, filter_of
from gymfleet_kit.plugins import PluginError

HEAD = '''
import random
from gymfleet_kit.data.filter import Filter, FilterOptions, replies


class Mine(Filter):
    """One of somebody's own."""

'''


def conversation(*said: str, source: str = "", learned: bool | None = None) -> Conversation:
    messages = [
        {"role": "assistant", "content": text, "learned": learned if place == 1 else None}
        if place % 2
        else {"role": "user", "content": text}
        for place, text in enumerate(said)
    ]
    return Conversation.model_validate({"messages": messages, "source": source})


def kept(given: Any, records: list[Record]) -> list[int]:
    """The places of those that are kept."""
    found = filter_of(given, table="filters.0").kept(records)
    return [next(place for place, record in enumerate(records) if record is one) for one in found]


def test_what_is_learned_and_what_is_said() -> None:
    taught = conversation("rules", "OK.", "goal", "go", learned=False)
    episode = samples.episodes()[1]

    assert replies(taught) == ["go"]
    assert dialogue(taught) == [("user", "rules"), ("assistant", "OK."), ("user", "goal"), ("assistant", "go")]
    assert replies(episode)[1:3] == ["Thought: There is nothing else in this room. I go on.\nAction: !jump", "Hm."]
    assert dialogue(episode)[:2] == [
        ("user", "You are in room 0."),
        ("assistant", "Thought: There is nothing else in this room. I go on.\nAction: go left"),
    ]


LENGTHS: list[Record] = [conversation("a", "1"), conversation("a", "12345", "b", "1"), *samples.episodes()[2:5]]
"""Of 1, 2, 1, 30 and no replies."""


@pytest.mark.parametrize(
    ("options", "places"),
    [
        ({}, [0, 1, 2, 3]),
        ({"min_replies": 0}, [0, 1, 2, 3, 4]),
        ({"min_replies": 2}, [1, 3]),
        ({"max_replies": 1}, [0, 2]),
        ({"min_replies": 2, "max_replies": 2}, [1]),
        ({"max_chars": 4}, [0]),
        ({"max_chars": 5}, [0, 1]),
    ],
)
def test_length(options: dict[str, int], places: list[int]) -> None:
    assert kept({"use": "length", **options}, LENGTHS) == places


def test_of_duplicates_the_first_is_kept() -> None:
    given: list[Record] = [
        conversation("a", "x", source="1"), conversation("a", "x", source="2"), conversation("b", "x"),
        conversation("a", "x", "a", "x"), conversation("a", "X"), *samples.episodes(),
    ]  # fmt: skip

    assert kept("duplicates", given) == [0, 2, 3, 4, 5, 6, 7, 8, 9], "the last episode was the first one"
    assert kept({"use": "duplicates", "by": "replies"}, given) == [0, 3, 4, 5, 6, 7, 8, 9]


def test_what_was_done_in_a_task_is_the_same_whatever_was_thought() -> None:
    episode = samples.episodes()[1]
    trajectory = episode.trajectory
    turns = trajectory.turns

    def changed(**changes: Any) -> Record:
        return episode.model_copy(update={"trajectory": trajectory.model_copy(update=changes)})

    thought = changed(turns=(turns[0].model_copy(update={"text": "Otherwise.", "thought": "Otherwise."}), *turns[1:]))
    done = changed(turns=(turns[0].model_copy(update={"action": "go right"}), *turns[1:]))
    elsewhere = changed(task=trajectory.task.model_copy(update={"task_id": "another"}))
    given = [episode, thought, done, elsewhere]

    assert kept({"use": "duplicates", "by": "actions"}, given) == [0, 2, 3]
    assert kept({"use": "duplicates", "by": "replies"}, given) == [0, 1]


@pytest.mark.parametrize("name", FILTERS.included())
def test_ours_keep_what_every_filter_promises(name: str) -> None:
    assert examine(name) == []


@pytest.mark.parametrize(
    ("body", "told"),
    [
        pytest.param(
            "def keep(self, record): return record.trajectory.success",
            "failed in keep for a conversation: Attr",
            id="episodes alone",
        ),
        pytest.param(
            "def keep(self, record): return len(replies(record))", "keep returns 3 instead of True", id="numbers"
        ),
        pytest.param(
            "def keep(self, record): return random.random() < 0.5", "keeps other records the second", id="random"
        ),
        pytest.param(
            "seen = set()\n    def keep(self, record):\n        new = str(record) not in self.seen\n"
            "        self.seen.add(str(record))\n        return new",
            "keeps other records the second time",
            id="it remembers in the class",
        ),
        pytest.param(
            "def note(self, record): raise SystemExit(1)\n    def keep(self, record): return True",
            "the filter mine failed in note for sample/sample.t000000/0: SystemExit: 1",
            id="it ends the process",
        ),
        pytest.param(
            "def keep(self, record):\n        getattr(record, 'trajectory', record).__dict__['success'] = None\n"
            "        return True",
            "it changes the records",
            id="it writes",
        ),
    ],
)
def test_a_broken_promise_is_named(tmp_path: Path, body: str, told: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"{HEAD}    {body}\n")

    (fault,) = examine(str(path))

    assert told in fault
    assert "\n" not in fault


def test_one_without_a_docstring_is_told(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    head = "\n".join(line for line in HEAD.splitlines() if "somebody" not in line)
    path.write_text(f"{head}\n    def keep(self, record): return True\n")

    assert examine(str(path)) == ["it has no docstring: `gymfleet plugins list` shows its first line"]


def test_one_that_fails_in_the_middle_names_the_record(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"{HEAD}    def keep(self, record): return 1 / len(replies(record)) > 0\n")

    with pytest.raises(
        FilterFailed, match=r"^the filter mine failed in keep for sample/sample\.t000004/0: ZeroDivision"
    ):
        filter_of(str(path), table="filters.0").kept(samples.records())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            "lenght",
            "there is no filter 'lenght'; known: duplicates, format, hallucinated_tools, leakage, length, ",
        ),
        (
            {"use": "length", "max": 3},
            "filters.0.max: Extra inputs are not permitted (the options of length: min_replies",
        ),
        ({"use": "length", "max_replies": 0}, "filters.0: Value error, min_replies (1) exceeds max_replies (0)"),
        ({"use": "duplicates", "by": "sound"}, "filters.0.by: Input should be 'dialogue', 'replies' or 'actions'"),
        ({}, "filters.0: give the name of a filter, or a table as"),
    ],
)
def test_a_mistake_in_a_recipe_is_a_line(given: Any, told: str) -> None:
    with pytest.raises(PluginError) as caught:
        filter_of(given, table="filters.0")

    assert str(caught.value).startswith(told)
