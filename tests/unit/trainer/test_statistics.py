import pytest
from gymfleet_kit.intervals import wilson_interval
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
