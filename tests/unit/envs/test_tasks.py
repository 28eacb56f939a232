"""Generated tasks: what is drawn once is not drawn again, unless an episode could have changed it."""

import random
from dataclasses import dataclass

import pytest
from gymfleet_envs.tasks import SPLITS, GeneratedTasks, UnknownTask, split_of


@dataclass(frozen=True)
class Frozen:
    number: int


@dataclass(frozen=True)
class Holding:
    numbers: list[int]


@dataclass
class Open:
    number: int


class Plain:
    def __init__(self, number: int) -> None:
        self.number = number


class Drawing:
    """A source that counts its draws; every draw is of the train split's."""

    def __init__(self, kind: type) -> None:
        self.draws = 0
        self.kind = kind
        self.tasks: GeneratedTasks[object] = GeneratedTasks(
            "drawing", self.draw, lambda _: "4", levels=("one",), default_level="one", counts={"train": 1000}
        )

    def draw(self, rng: random.Random, level: str) -> object:
        del level
        self.draws += 1
        number = rng.randrange(10**9)
        return self.kind([number]) if self.kind is Holding else self.kind(number)


@pytest.mark.parametrize(
    ("kind", "draws"),
    [
        pytest.param(Frozen, 1, id="a frozen dataclass"),
        pytest.param(int, 1, id="a number"),
        pytest.param(Holding, 3, id="a frozen one that holds a list"),
        pytest.param(Open, 3, id="a dataclass whose fields can be set"),
        pytest.param(Plain, 3, id="an object"),
    ],
)
def test_a_task_that_nothing_can_change_is_drawn_once_for_all_episodes_of_a_group(kind: type, draws: int) -> None:
    drawing = Drawing(kind)

    found = [drawing.tasks.by_index("train", "one", 7) for _ in range(3)]

    assert drawing.draws == draws
    assert len({task.task_id for task in found}) == 1
    assert len({id(task.data) for task in found}) == draws


def test_only_the_latest_are_remembered_and_a_wrong_place_is_refused_all_the_same() -> None:
    drawing = Drawing(Frozen)
    first = [drawing.tasks.by_index("train", "one", index) for index in range(300)]

    assert drawing.tasks.by_index("train", "one", 299) is first[299]
    again = drawing.tasks.by_index("train", "one", 0)
    assert (again, again is first[0], drawing.draws) == (first[0], False, 301)
    for split, level, index in (("train", "one", 1000), ("train", "two", 0), ("validation", "one", 0)):
        with pytest.raises(UnknownTask):
            drawing.tasks.by_index(split, level, index)  # type: ignore[arg-type]


def test_the_easiest_level_and_the_usual_numbers_of_tasks_are_what_is_offered_unless_told_otherwise() -> None:
    tasks = GeneratedTasks("numbers", lambda rng, _: rng.random(), str, levels=("easy", "hard"))

    assert tasks.default_level == "easy"
    assert [tasks.count(split, "hard") for split in SPLITS] == [100_000, 1_000, 1_000]


def test_what_is_not_accepted_is_no_task_and_only_tasks_of_the_split_are_tried() -> None:
    tried: list[int] = []

    def is_even(number: int) -> bool:
        tried.append(number)
        return number % 2 == 0

    tasks = GeneratedTasks("even", lambda rng, _: rng.randrange(10**6), str, levels=("one",), accepts=is_even)

    drawn = [tasks.by_index("test", "one", index).data for index in range(40)]

    assert all(number % 2 == 0 for number in drawn)
    assert {split_of(str(number)) for number in tried} == {"test"}
    assert len(tried) > len(drawn)
