import pytest
from gymfleet_trainer.run.statistics import wilson_interval


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
