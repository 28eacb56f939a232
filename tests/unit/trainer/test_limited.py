"""How many tasks a number of environment steps pays for."""

from typing import Any

import pytest
from gymfleet_contracts.trajectory import Status
from gymfleet_trainer.run.limited import Limited
from gymfleet_trainer.stage import Plays

from tests.unit.trainer.test_playing import ScriptedCollector, failing, to_the_end, wanted


def limited(num_tasks: int, limit: int, *, backwards: bool = False, ends: Any = lambda *_: {}) -> tuple[Limited, Any]:
    """Task i takes i % 3 + 1 steps: 2 on average."""
    collector = ScriptedCollector(ends, backwards=backwards)
    collector.steps_of = lambda group_id: int(group_id.partition("-")[0][-6:]) % 3 + 1
    playing = Limited(wanted(Plays(num_tasks, purpose="collect"), collector), limit)
    to_the_end(playing)
    return playing, collector


@pytest.mark.parametrize("limit", [1, 2, 15, 16, 40, 600])
def test_it_ends_with_the_wave_in_which_the_steps_are_taken(limit: int) -> None:
    playing, collector = limited(10_000, limit)

    assert playing.env_steps >= limit
    assert playing.env_steps <= max(limit + 3, 15), "eight tasks are played in any case, to see what a task takes"
    assert playing.num_counted == len(collector.asked) == len(collector.settled)


def test_first_tasks_that_take_little_do_not_mislead_it() -> None:
    collector = ScriptedCollector(lambda *_: {}, backwards=False)
    collector.steps_of = lambda group_id: 1 if int(group_id[-6:]) < 8 else 5
    playing = Limited(wanted(Plays(10_000, purpose="collect"), collector), 1000)

    to_the_end(playing)

    assert 1000 <= playing.env_steps <= 1020


def test_which_tasks_are_played_depends_on_no_order_of_arrival() -> None:
    (forwards, one), (backwards, other) = limited(1000, 100), limited(1000, 100, backwards=True)

    assert [request.group_id for request in one.asked] == [request.group_id for request in other.asked]
    assert one.settled != other.settled
    assert forwards.env_steps == backwards.env_steps


def test_it_plays_no_more_tasks_than_it_was_told() -> None:
    playing, _ = limited(5, 1000)

    assert (playing.num_counted, playing.env_steps) == (5, 1 + 2 + 3 + 1 + 2)


def test_a_failure_is_played_again_and_its_steps_count() -> None:
    playing, collector = limited(10_000, 12, ends=failing("stage.t000002", samples=(0,)))

    again = [request.group_id for request in collector.asked if "-r" in request.group_id]
    assert again == ["stage.t000002-r1"]
    assert playing.env_steps == (1 + 2 + 3) * 2 + 1 + 2 + 3
    assert playing.num_counted == 8


def test_tasks_that_take_no_step_do_not_go_on_for_ever() -> None:
    collector = ScriptedCollector(lambda *_: {"status": Status.COMPLETED}, backwards=False)
    collector.steps_of = lambda _: 0
    playing = Limited(wanted(Plays(30, purpose="collect"), collector), 100)

    to_the_end(playing)

    assert (playing.num_counted, playing.env_steps, collector.most_open) == (30, 0, 8)


def test_a_wave_is_no_larger_than_what_may_be_open() -> None:
    collector = ScriptedCollector(lambda *_: {}, backwards=False)
    playing = Limited(wanted(Plays(2000, purpose="collect"), collector), 1500)

    to_the_end(playing)

    assert collector.most_open == Limited.MAX_OPEN
    assert playing.env_steps == 1500
