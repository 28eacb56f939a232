import random

import pytest
from gymfleet_kit.intervals import task_interval, wilson_interval
from gymfleet_trainer.run.statistics import pass_hat


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        # R: binom::binom.confint(x, n, methods = "wilson")
        pytest.param(0, 10, 0.0, 0.2775328, id="none of ten"),
        pytest.param(10, 10, 0.7224672, 1.0, id="all of ten"),
        pytest.param(5, 10, 0.2365931, 0.7634069, id="half of ten"),
        # Newcombe 1998, Stat. Med. 17, table I: 81/263 and 15/148
        pytest.param(81, 263, 0.2553, 0.3662, id="Newcombe's 81 of 263"),
        pytest.param(15, 148, 0.0624, 0.1605, id="Newcombe's 15 of 148"),
        pytest.param(0, 0, 0.0, 1.0, id="no trials say nothing"),
    ],
)
def test_known_intervals(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=6e-5)


@pytest.mark.parametrize(("successes", "trials"), [(-1, 3), (4, 3), (0, -1)])
def test_what_is_not_a_proportion_is_refused(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match="not a proportion"):
        wilson_interval(successes, trials)


@pytest.mark.parametrize(
    ("tasks", "successes", "trials"),
    [
        pytest.param([(1, 1), (0, 1), (1, 1)], 2, 3, id="each played once"),
        pytest.param([(3, 8)], 3, 8, id="a single task"),
        pytest.param([], 0, 0, id="nothing was played"),
        # v = 2/1 * (1 + 1) / 4^2 = 1/4, so that n* = (1/4) / (1/4) = 1, and T = 2 is the least.
        pytest.param([(2, 2), (0, 2)], 1, 2, id="a task's episodes end alike"),
        pytest.param([(3, 3), (2, 2)], 2, 2, id="all succeed: two tasks, whatever their episodes"),
        pytest.param([(0, 3), (0, 2)], 0, 2, id="none succeeds"),
        # v = 0: tasks are alike, and every episode tells something.
        pytest.param([(1, 2), (1, 2)], 2, 4, id="tasks are alike"),
        # v = 4/3 * (1 + 0 + 1 + 0) / 8^2 = 1/24, so that n* = (1/4) * 24 = 6.
        pytest.param([(2, 2), (1, 2), (0, 2), (1, 2)], 3, 6, id="between the two"),
        # p = 3/5, residuals 3 - 9/5 and 0 - 6/5: v = 2 * 2 * (6/5)^2 / 25 = 0.2304, n* = 0.24 / 0.2304, below T = 2.
        pytest.param([(3, 3), (0, 2)], 1.2, 2, id="unequal numbers of episodes"),
        pytest.param([(1, 1), (0, 0), (0, 1)], 1, 2, id="a task that was not played says nothing"),
        pytest.param([(0.5, 1), (0.75, 1)], 1.25, 2, id="scores"),
    ],
)
def test_intervals_of_tasks_played_several_times(
    tasks: list[tuple[float, int]], successes: float, trials: float
) -> None:
    assert task_interval(tasks) == pytest.approx(wilson_interval(successes, trials))


def test_intervals_over_tasks_contain_the_rate_as_often_as_they_say() -> None:
    draw = random.Random(5)
    found = {"by task": 0, "by episode": 0}
    for _ in range(400):
        chances = [draw.betavariate(0.5, 0.5) for _ in range(60)]  # most tasks are solved nearly always or never
        tasks = [(sum(draw.random() < chance for _ in range(8)), 8) for chance in chances]
        low, high = task_interval(tasks)
        found["by task"] += low <= 0.5 <= high
        low, high = wilson_interval(sum(solved for solved, _ in tasks), 480)
        found["by episode"] += low <= 0.5 <= high

    assert found["by task"] / 400 > 0.92
    assert found["by episode"] / 400 < 0.75


def test_more_than_all_episodes_is_refused() -> None:
    with pytest.raises(ValueError, match="more than its episodes"):
        task_interval([(3, 2), (0, 2)])


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        # One task, 2 of 4: C(2,1)/C(4,1) = 1/2, C(2,2)/C(4,2) = 1/6, then 0.
        pytest.param([(2, 4)], (1 / 2, 1 / 6, 0.0, 0.0), id="half of four"),
        # 3 of 4 gives 3/4, 3/6, 1/4, 0; with 4 of 4 the mean is 7/8, 3/4, 5/8, 1/2.
        pytest.param([(3, 4), (4, 4)], (7 / 8, 3 / 4, 5 / 8, 1 / 2), id="two tasks"),
        pytest.param([(1, 1), (0, 1)], (0.5,), id="each played once: the success rate"),
        pytest.param([(2, 2), (1, 3)], (2 / 3, 1 / 2), id="as far as the task with fewest episodes"),
        pytest.param([], (), id="nothing was played"),
    ],
)
def test_pass_hat_is_the_chance_that_all_of_k_episodes_succeed(
    tasks: list[tuple[int, int]], expected: tuple[float, ...]
) -> None:
    assert pass_hat(tasks) == pytest.approx(expected)


@pytest.mark.parametrize("tasks", [[(2, 1)], [(1, 1), (-1, 2)]])
def test_more_successes_than_episodes_are_refused(tasks: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="more successes than episodes"):
        pass_hat(tasks)
