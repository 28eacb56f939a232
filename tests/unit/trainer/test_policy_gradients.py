"""Policy gradients by hand: what a token loses and its gradient, what an episode is worth, and what is refused."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from gymfleet_contracts.trajectory import FinishReason
from gymfleet_trainer.algorithms.cispo import Cispo, CispoOptions
from gymfleet_trainer.algorithms.clip_cov import ClipCov, ClipCovOptions
from gymfleet_trainer.algorithms.dapo import Dapo, DapoOptions, OverlongOptions
from gymfleet_trainer.algorithms.gmpo import Gmpo, GmpoOptions
from gymfleet_trainer.algorithms.gpg import Gpg, GpgOptions
from gymfleet_trainer.algorithms.gspo import Gspo, GspoOptions
from gymfleet_trainer.algorithms.kl_cov import KlCov, KlCovOptions
from gymfleet_trainer.algorithms.opo import Opo
from gymfleet_trainer.algorithms.reinforce_pp import RewardKlOptions
from gymfleet_trainer.algorithms.sapo import Sapo, SapoOptions
from gymfleet_trainer.algorithms.vapo import Vapo, VapoOptions
from gymfleet_trainer.learning.advantages import gpg_advantages, opo_advantages
from gymfleet_trainer.learning.algorithm import Sample, Verdict
from gymfleet_trainer.learning.covariance import covariances
from gymfleet_trainer.learning.episodes import discounted_returns, whitened
from gymfleet_trainer.learning.kl import adapted_coefficient
from gymfleet_trainer.learning.losses import Tokens
from gymfleet_trainer.learning.policy_gradient import ADVANTAGES, ClippedOptions, KlOptions, PolicyGradient
from gymfleet_trainer.model.batching import TrainSequence
from pydantic import ValidationError
from torch import Tensor

from tests.fixtures.scored import make_scored, make_turn
from tests.fixtures.train_sequences import train_sequence

LOG2 = math.log(2)


def tokens_of(
    ratios: Sequence[float], advantages: Sequence[float], bounds: Sequence[int] | None = None, **fields: list[float]
) -> tuple[Tensor, Tokens]:
    """Tokens that all have a loss and an old log-probability of -1; the first of the two has their gradient."""
    logprobs = (torch.tensor(ratios).log() - 1).requires_grad_()
    tokens = Tokens.of(
        logprobs, torch.full((len(ratios),), -1.0), torch.tensor(advantages),
        torch.ones(len(ratios), dtype=torch.bool), torch.tensor(bounds or [0, len(ratios)]),
        {name: torch.tensor(values) for name, values in fields.items()},
    )  # fmt: skip
    return logprobs, tokens


def told(
    algorithm: PolicyGradient[Any], logprobs: Tensor, tokens: Tokens
) -> tuple[list[float], list[float], list[bool]]:
    """Each token's loss, the gradient of their sum by its log-probability, and whether it was clipped."""
    found = algorithm.surrogate(tokens)
    (gradient,) = torch.autograd.grad(found.losses.sum(), logprobs)
    return found.losses.tolist(), gradient.tolist(), found.clipped.tolist()


def approx(*values: float) -> Any:
    return pytest.approx(list(values), abs=1e-5)


def test_gpg_knows_no_ratio() -> None:
    losses, gradient, clipped = told(Gpg(GpgOptions()), *tokens_of([4.0, 0.25], [2.0, -1.0]))

    assert losses == approx(-2 * (2 * LOG2 - 1), -2 * LOG2 - 1)
    assert gradient == approx(-2, 1)
    assert clipped == [False, False]


def test_cispo_bounds_the_weight_and_keeps_the_gradient() -> None:
    options = CispoOptions(weight_low=0.5, weight_high=1.0)

    losses, gradient, clipped = told(Cispo(options), *tokens_of([4.0, 0.25, 1.5], [1.0, -1.0, 2.0]))

    assert losses == approx(-2 * (2 * LOG2 - 1), 0.5 * (-2 * LOG2 - 1), -3 * (math.log(1.5) - 1))
    assert gradient == approx(-2, 0.5, -3)
    assert clipped == [True, True, False]


def test_cispo_has_no_lower_bound_by_default() -> None:
    _, gradient, clipped = told(Cispo(CispoOptions()), *tokens_of([0.01, 8.0], [1.0, 1.0]))

    assert gradient == approx(-0.01, -6)
    assert clipped == [False, True]


def test_gspo_clips_whole_sequences() -> None:
    # The first sequence's ratio is sqrt(4 * 1) = 2, beyond 1.5; the second's is sqrt(4 * 1/4) = 1, though each of its
    # tokens is beyond the bounds.
    options = GspoOptions(clip_low=0.5, clip_high=0.5)
    logprobs, tokens = tokens_of([4.0, 1.0, 4.0, 0.25], [1.0, 1.0, 1.0, 1.0], [0, 2, 4])

    losses, gradient, clipped = told(Gspo(options), logprobs, tokens)

    assert losses == approx(-1.5, -1.5, -1, -1)
    assert gradient == approx(0, 0, -1, -1)
    assert clipped == [True, True, False, False]


def test_gmpo_clips_on_the_pessimistic_side_and_means_geometrically() -> None:
    # Logarithms: log 4 is cut to log 2 where the advantage is positive, -log 4 to -log 2 where it is negative.
    options = GmpoOptions(clip_low=LOG2, clip_high=LOG2)
    logprobs, tokens = tokens_of([4.0, 0.125, 4.0, 0.25], [1.0, 1.0, -1.0, -1.0], [0, 2, 4])

    losses, gradient, clipped = told(Gmpo(options), logprobs, tokens)

    good, bad = math.sqrt(2 * 0.125), math.sqrt(4 * 0.5)
    assert losses == approx(-good, -good, bad, bad)
    assert gradient == approx(0, -good, bad, 0)  # of two tokens' losses, by half each
    assert clipped == [True, False, False, True]


def test_sapo_is_the_policy_gradient_at_a_ratio_of_one_and_fades_with_distance() -> None:
    losses, gradient, clipped = told(Sapo(SapoOptions()), *tokens_of([1.0, 1.0, 3.0, 3.0], [2.0, -2.0, 1.0, -1.0]))

    def gate(tau: float, ratio: float) -> float:
        return 4 / tau / (1 + math.exp(-tau * (ratio - 1)))

    def slope(tau: float, ratio: float) -> float:
        share = gate(tau, ratio) * tau / 4
        return 4 * share * (1 - share) * ratio

    assert losses == approx(-2 * 2, 2 * 2 / 1.05, -gate(1, 3), gate(1.05, 3))
    assert gradient == approx(-2, 2, -slope(1, 3), slope(1.05, 3))
    assert slope(1.05, 3) < slope(1, 3) < 3
    assert not any(clipped)


def test_clip_cov_leaves_out_what_was_drawn() -> None:
    given = tokens_of([1.5, 1.5, 2.5], [1.0, 1.0, 1.0], left_out=[0.0, 1.0, 0.0])

    losses, gradient, clipped = told(ClipCov(ClipCovOptions()), *given)

    assert losses == approx(-1.5, 0, -2)
    assert gradient == approx(-1.5, 0, 0)
    assert clipped == [False, True, True]


def test_kl_cov_holds_on_both_sides_of_where_a_token_was() -> None:
    given = tokens_of([2.0, 2.0, 0.5, 1 + 1e-5], [1.0, 1.0, -1.0, 1.0], held=[0.0, 1.0, 1.0, 1.0])

    losses, gradient, clipped = told(KlCov(KlCovOptions(hold=0.5)), *given)

    assert losses == approx(-2, -2 + 0.5 * LOG2, 0.5 + 0.5 * LOG2, -1 - 1e-5)
    assert gradient == approx(-2, -1.5, 0, -1 - 1e-5), "what has not moved is not held"
    assert clipped == [False, True, True, True]


# --- what an episode is worth


def test_opo_weighs_returns_by_length() -> None:
    # Group a: (3 * 1 + 1 * 0) / 4 = 3/4. Group b: lengths 2 and 2, the plain mean.
    returns, lengths = torch.tensor([1.0, 4.0, 0.0, 2.0]), torch.tensor([3, 2, 1, 2])

    assert opo_advantages(returns, lengths, ["a", "b", "a", "b"]).tolist() == approx(0.25, 1, -0.75, -1)


def test_opo_gives_groups_without_spread_or_tokens_no_signal() -> None:
    returns, lengths = torch.tensor([0.1, 0.1, 0.1, 1.0, 2.0]), torch.tensor([3, 1, 7, 0, 0])

    advantages = opo_advantages(returns, lengths, ["a", "a", "a", "b", "b"]).tolist()

    assert advantages[:3] == [0.0, 0.0, 0.0]
    assert advantages[3:] == approx(-0.5, 0.5)


def test_gpg_makes_up_for_groups_without_a_signal() -> None:
    # Of five episodes two are in a group without a signal: 5 / 3.
    returns, groups = torch.tensor([1.0, 1.0, 1.0, 0.0, 2.0]), ["a", "a", "b", "b", "b"]

    assert gpg_advantages(returns, groups, normalise_by_std=False).tolist() == approx(0, 0, 0, -5 / 3, 5 / 3)
    assert gpg_advantages(returns * 2, groups, normalise_by_std=True).tolist() == approx(0, 0, 0, -5 / 3, 5 / 3)
    assert gpg_advantages(torch.ones(5), groups, normalise_by_std=False).tolist() == [0.0] * 5


def test_a_group_of_one_has_no_baseline() -> None:
    returns, groups = torch.ones(3), ["a", "a", "b"]

    with pytest.raises(ValueError, match="groups of one have no baseline"):
        opo_advantages(returns, torch.ones(3), groups)
    with pytest.raises(ValueError, match="groups of one have no baseline"):
        gpg_advantages(returns, groups, normalise_by_std=False)


def test_returns_are_discounted_over_written_tokens_and_go_on_in_the_next_row() -> None:
    # Written: 1, then 4 and 5 after an observation of two tokens; then, with another context, one more.
    first = train_sequence([1, 2, 3, 4, 5, 6], ".x..xx", rewards=[0, 1, 0, 0, 0, 2])
    second = train_sequence([7, 8], ".x", rewards=[0, 8])
    other = train_sequence([7, 8], ".x", rewards=[0, 3], name="run/group/1")
    rows = [first, second, other]

    returns = discounted_returns(rows, [row.token_rewards for row in rows], 0.5, torch.float32)

    assert [row.tolist() for row in returns] == [[0, 1 + 1.5, 0, 0, 3, 2 + 4], [0, 8], [0, 3]]
    assert discounted_returns([], [], 0.5, torch.float32) == []


def test_whitening_is_over_all_rows_of_a_batch() -> None:
    rows = [train_sequence([1, 2, 3], ".xx"), train_sequence([1, 2], ".x", name="run/group/1")]

    # 1, 2 and 6: mean 3, variance (4 + 1 + 9) / 2 = 7.
    found = whitened(rows, [torch.tensor([9.0, 1.0, 2.0]), torch.tensor([9.0, 6.0])])

    root = math.sqrt(7)
    assert [row.tolist() for row in found] == [approx(0, -2 / root, -1 / root), approx(0, 3 / root)]


def test_a_single_token_is_not_whitened() -> None:
    (found,) = whitened([train_sequence([1, 2], ".x")], [torch.tensor([0.0, 5.0])])

    assert found.tolist() == [0.0, 5.0]


class Told:
    """Models that say what a test tells them."""

    dtype = torch.float32

    def __init__(self, logprobs: Sequence[Sequence[float]]) -> None:
        self._logprobs = [torch.tensor(row) for row in logprobs]

    def logprobs(self, rows: Sequence[TrainSequence]) -> list[Tensor]:
        return self._logprobs

    def reference_logprobs(self, rows: Sequence[TrainSequence]) -> list[Tensor]:
        raise AssertionError

    def values(self, rows: Sequence[TrainSequence]) -> list[Tensor]:
        return [torch.zeros(len(row.token_ids)) for row in rows]


def test_opo_has_one_advantage_for_all_rows_of_an_episode() -> None:
    first = train_sequence([1, 2, 3], ".xx")
    second = train_sequence([7, 8], ".x", rewards=[0, 4])
    other = train_sequence([7, 8], ".x", rewards=[0, 0], name="run/group/1")

    rows = Opo(ClippedOptions()).prepare([first, second, other], Told([]))

    # The baseline is (3 * 4 + 1 * 0) / 4 = 3.
    assert [row.fields[ADVANTAGES].tolist() for row in rows] == [[0, 1, 1], [0, 1], [0, -3]]


def test_covariances_are_over_all_written_tokens() -> None:
    rows = [
        train_sequence([1, 2, 3], ".xx").with_fields(advantages=torch.tensor([9.0, 1.0, 1.0])),
        train_sequence([1, 2], ".x").with_fields(advantages=torch.tensor([9.0, -2.0])),
    ]

    # Log-probabilities -1, -2 and -6 have the mean -3; the advantages 1, 1 and -2 the mean 0.
    found = covariances(rows, Told([[0.0, -1.0, -2.0], [0.0, -6.0]]))

    assert found.tolist() == approx(2 * 1, 1 * 1, -3 * -2)


COV_ROWS = [
    replace(train_sequence([1, 2, 3], ".xx"), trajectory_id=f"run/group/{sample}", fields={
        ADVANTAGES: torch.tensor([0.0, 1.0, 1.0]) * (1 if sample else -1)
    }) for sample in range(2)
]  # fmt: skip
COV_LOGPROBS = [[0.0, -4.0, -1.0], [0.0, -1.0, -2.0]]
"""With the mean -2, the covariances are 2, -1, 1 and 0."""


def flags(rows: Sequence[TrainSequence], name: str) -> list[list[float]]:
    return [row.fields[name].tolist() for row in rows]


def test_kl_cov_holds_the_highest() -> None:
    models = Told(COV_LOGPROBS)

    assert flags(KlCov(KlCovOptions(share=0.5)).prepare(COV_ROWS, models), "held") == [[0, 1, 0], [0, 1, 0]]
    assert flags(KlCov(KlCovOptions(share=1e-3)).prepare(COV_ROWS, models), "held") == [[0, 1, 0], [0, 0, 0]]


def test_kl_cov_holds_nothing_where_no_token_has_an_advantage() -> None:
    flat = [row.with_fields(**{ADVANTAGES: torch.zeros(3)}) for row in COV_ROWS]
    algorithm = KlCov(KlCovOptions(share=0.5))

    rows = algorithm.prepare(flat, Told(COV_LOGPROBS))

    assert flags(rows, "held") == [[0, 0, 0], [0, 0, 0]]
    assert not any(map(algorithm.has_gradient, rows))


def test_kl_cov_computes_what_it_holds_without_an_advantage() -> None:
    algorithm = KlCov(KlCovOptions())
    row = train_sequence([1, 2], ".x").with_fields(advantages=torch.zeros(2), held=torch.tensor([0.0, 1.0]))

    assert algorithm.has_gradient(row)
    assert not algorithm.has_gradient(row.with_fields(held=torch.zeros(2)))


def test_clip_cov_draws_within_its_bounds_by_the_number_of_the_batch() -> None:
    options = ClipCovOptions(share=1.0, covariance_low=-0.5, covariance_high=1.5)
    assert flags(ClipCov(options).prepare(COV_ROWS, Told(COV_LOGPROBS)), "left_out") == [[0, 0, 0], [0, 1, 1]]

    one = ClipCov(options.model_copy(update={"share": 0.25}))
    drawn = []
    for batch in range(12):
        drawn.append(flags(one.prepare(COV_ROWS, Told(COV_LOGPROBS)), "left_out"))
        one.after_batch(batch, Told([]), {})
    assert all(sum(map(sum, found)) == 1 for found in drawn)
    assert drawn[0] != drawn[1] or drawn[1] != drawn[2] or drawn[2] != drawn[3], "not always the same"

    again = ClipCov(one.options)
    again.load_state_dict(one.state_dict())
    assert (
        again.prepare(COV_ROWS, Told(COV_LOGPROBS))[1]
        .fields["left_out"]
        .equal(one.prepare(COV_ROWS, Told(COV_LOGPROBS))[1].fields["left_out"])
    )


@pytest.mark.parametrize("algorithm", [KlCov(KlCovOptions()), ClipCov(ClipCovOptions())])
def test_a_batch_without_a_token_of_the_policys_has_nothing_to_choose(algorithm: PolicyGradient[Any]) -> None:
    silent = train_sequence([1, 2], "..").with_fields(advantages=torch.zeros(2))

    (row,) = algorithm.prepare([silent], Told([]))

    assert not algorithm.has_gradient(row)
    assert algorithm.prepare([], Told([])) == []


# --- DAPO


@pytest.mark.parametrize(
    ("num_tokens", "penalty"),
    [
        pytest.param(60, 0.0, id="within"),
        pytest.param(61, 0.05, id="the first token of the buffer: 1/40 of the factor"),
        pytest.param(80, 1.0, id="half of the buffer"),
        pytest.param(100, 2.0, id="the limit"),
        pytest.param(500, 2.0, id="no more than all"),
    ],
)
def test_the_penalty_for_length_by_hand(num_tokens: int, penalty: float) -> None:
    options = OverlongOptions(max_tokens=100, buffer_tokens=40, factor=2.0)

    assert options.penalty(num_tokens) == pytest.approx(penalty)


def test_dapo_counts_the_response_tokens_of_an_episode_in_all_of_its_rows() -> None:
    turn = make_turn((1, 2), (3, 4, 5))
    scored = make_scored(turns=(turn, turn.model_copy(update={"context": "replaced"})), total=1.0)
    dapo = Dapo(DapoOptions(overlong=OverlongOptions(max_tokens=8, buffer_tokens=4)))

    rows = dapo.rows([Sample(scored, 0)])

    # Six tokens, two of which are in the buffer of four.
    assert [row.total_reward for row in rows] == [0.0, 0.5]
    assert [row.num_trained for row in rows] == [3, 3]


@pytest.mark.parametrize("filtered", [True, False])
def test_dapo_trains_on_no_token_of_what_was_cut_but_counts_its_reward(filtered: bool) -> None:
    cut = make_scored(sample=0, total=0.0, cut=FinishReason.MAX_TURNS, final_prompt=(5,), success=False)
    cut = cut.model_copy(update={"reward": make_scored(sample=0, total=0.0).reward})
    ended = make_scored(sample=1, total=1.0)
    dapo = Dapo(DapoOptions(filter_truncated=filtered, normalise_by_std=False))

    rows = dapo.prepare(dapo.rows([Sample(cut, 0), Sample(ended, 0)]), Told([]))

    assert (rows[0].num_trained == 0) is filtered
    assert dapo.has_gradient(rows[0]) is not filtered
    assert rows[1].fields[ADVANTAGES].max() == 0.5


def test_dapo_asks_for_another_group_where_there_is_no_signal() -> None:
    equal, different = ([make_scored(sample=i, total=float(total)) for i, total in enumerate(given)]
                        for given in ((1, 1), (0, 1)))  # fmt: skip

    assert [Dapo(DapoOptions()).select(group) for group in (equal, different)] == [Verdict.ANOTHER, Verdict.KEEP]


# --- VAPO


def test_vapo_has_a_lambda_by_length() -> None:
    vapo = Vapo(VapoOptions())

    assert vapo.policy_lam(torch.tensor([40.0, 200.0, 10.0, 0.0])).tolist() == approx(0.5, 0.9, 0, 0)


def test_vapo_imitates_what_succeeded() -> None:
    vapo = Vapo(VapoOptions())
    turn = make_turn((1, 2), (3, 4, 5))
    group = [make_scored(sample=i, turns=(turn,) * (1 + i), success=i == 0) for i in range(2)]

    rows = vapo.prepare(vapo.rows([Sample(scored, 0) for scored in group]), Told([]))

    # Three of nine tokens are of a success: in a mean over nine each counts for three.
    assert rows[0].fields["imitated"].tolist() == [0, 0, 3, 3, 3]
    assert not rows[1].fields["imitated"].any()


def test_vapo_has_nothing_to_imitate_without_a_success() -> None:
    vapo = Vapo(VapoOptions())

    (row,) = vapo.prepare(vapo.rows([Sample(make_scored(), 0)]), Told([]))

    assert not row.fields["imitated"].any()


# --- KL


@pytest.mark.parametrize(
    ("measured", "coefficient"),
    [
        pytest.param(0.11, 0.5 * 1.01, id="a tenth too far, by the gain of a tenth"),
        pytest.param(0.09, 0.5 * 0.99, id="a tenth too near"),
        pytest.param(5.0, 0.5 * 1.02, id="no more than a fifth up"),
        pytest.param(-5.0, 0.5 * 0.98, id="no more than a fifth down"),
    ],
)
def test_the_coefficient_follows_the_target(measured: float, coefficient: float) -> None:
    assert adapted_coefficient(0.5, measured, target=0.1, horizon=10.0) == pytest.approx(coefficient)


def test_a_batch_without_an_update_leaves_the_coefficient_alone() -> None:
    algorithm = Gpg(GpgOptions(kl=KlOptions(coefficient=0.5, target=0.1)))
    before = algorithm.state_dict()

    algorithm.after_batch(0, Told([]), {})

    assert algorithm.state_dict() == before == {"kl_coefficient": 0.5}
    assert Gpg(GpgOptions()).state_dict() == {}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (lambda: KlOptions(target=0.1), "target moves the coefficient, which is 0"),
        (lambda: KlOptions(refresh_every=2), "refresh_every renews the reference, but coefficient = 0"),
        (lambda: KlOptions(coefficient=0.1, target=0.1, horizon=0.5), "greater than or equal to 1"),
        (lambda: RewardKlOptions(placement="loss"), 'estimator = "k1" has no gradient in expectation'),
        (lambda: OverlongOptions(max_tokens=10, buffer_tokens=11), "buffer_tokens must not exceed max_tokens = 10"),
        (lambda: ClipCovOptions(covariance_low=5.0), "covariance_low must be below covariance_high"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: Any, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        options()


def test_reinforce_pp_keeps_its_kl_where_only_the_weight_is_given() -> None:
    options = RewardKlOptions.model_validate({"coefficient": 0.2})

    assert (options.estimator, options.placement) == ("k1", "reward")
