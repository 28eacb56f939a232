import math

import pytest
from gymfleet_contracts.rollout import EngineProbe, ProbeSample
from gymfleet_trainer.publish.probe import answers, compare, random_prompts, real_prompts

from tests.fixtures.scored import make_scored, make_turn


def test_parity_is_the_mean_and_the_largest_difference() -> None:
    parity = compare([[-1.0, -2.0], [-3.0]], [[-1.0, -2.3], [-2.4]])

    assert (parity.mean_abs, parity.max_abs, parity.num_tokens) == pytest.approx((0.3, 0.6, 3))
    assert parity.within(0.31)
    assert not parity.within(0.29)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param([], [], id="no token at all"),
        pytest.param([[-1.0]], [[-1.0, -1.0]], id="rows of different length"),
        pytest.param([[-1.0, math.nan]], [[-1.0, -1.0]], id="a nan behind a good value"),
        pytest.param([[-1.0]], [[-math.inf]], id="a token that the engine cannot have sampled"),
    ],
)
def test_what_cannot_be_compared_is_never_within(ours: list[list[float]], theirs: list[list[float]]) -> None:
    assert not compare(ours, theirs).within(1e9)


def test_nan_is_worse_than_any_number() -> None:
    nan, number = compare([[math.nan]], [[0.0]]), compare([[5.0]], [[0.0]])

    assert math.isnan(number.worse(nan).mean_abs)
    assert math.isnan(nan.worse(number).mean_abs)
    assert math.isnan(nan.max_abs)


def test_a_replica_must_answer_every_prompt() -> None:
    full = ProbeSample(token_ids=(1, 2), logprobs=(-1.0, -2.0))
    empty = ProbeSample(token_ids=(), logprobs=())

    assert answers(EngineProbe(engine="a", samples=(full, full)), 2) == ([[1, 2]] * 2, [[-1.0, -2.0]] * 2)
    assert answers(EngineProbe(engine="a", samples=(full,)), 2) is None
    assert answers(EngineProbe(engine="a", samples=(full, empty)), 2) is None


def test_real_prompts_end_where_the_model_writes_and_fit() -> None:
    turns = tuple(make_turn(prompt=(n, n, n), response=(n, n)) for n in range(10, 20))

    prompts = real_prompts([make_scored(turns=turns)], 4, max_tokens=24, seed=0)

    assert all(len(prompt) % 5 == 3 and len(prompt) <= 24 for prompt in prompts)
    assert max(map(len, prompts)) == 23, "the longest that fits is among them"
    assert len({tuple(prompt) for prompt in prompts}) == len(prompts)
    assert prompts == real_prompts([make_scored(turns=turns)], 4, max_tokens=24, seed=0)


def test_without_episodes_there_are_no_real_prompts() -> None:
    assert real_prompts([], 4, 100, 0) == []
    assert real_prompts([make_scored(turns=())], 4, 100, 0) == []


def test_a_prompt_never_spans_a_replaced_context() -> None:
    turns = (make_turn((5, 6), (8, 9)), make_turn((4,), (8,)).model_copy(update={"context": "replaced"}))

    prompts = real_prompts([make_scored(turns=turns)], 2, 100, 0)

    assert sorted(prompts) == [[4], [5, 6]]
    assert prompts[0] == [5, 6], "the longest first"


def test_random_prompts_are_reproducible_and_within_the_vocabulary() -> None:
    prompts = random_prompts(300, 6, 40, seed=1)

    assert prompts == random_prompts(300, 6, 40, seed=1)
    assert len(prompts) == 6
    assert all(1 <= len(prompt) <= 40 and all(0 <= token < 300 for token in prompt) for prompt in prompts)
