"""The engine and its algorithms: what changes the weights, what must not, and that a resumed run is the same."""

import copy
import io
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from gymfleet_kit.plugins import PluginError
from gymfleet_trainer.algorithms.grpo import Grpo, GrpoOptions
from gymfleet_trainer.algorithms.ppo import Ppo, PpoOptions
from gymfleet_trainer.algorithms.rloo import Rloo
from gymfleet_trainer.learning.actor_critic import values_of
from gymfleet_trainer.learning.engine import UpdateEngine
from gymfleet_trainer.learning.losses import LossAggregation
from gymfleet_trainer.learning.options import ReinforceOptions, SupervisedOptions
from gymfleet_trainer.learning.plugins import algorithm_of
from gymfleet_trainer.learning.policy_gradient import ClippedOptions
from gymfleet_trainer.learning.sft_update import SftUpdater
from gymfleet_trainer.model.batching import TrainSequence, pack, sequences_from_trajectory
from gymfleet_trainer.model.policy_model import PolicyModel, Reference
from structlog.testing import capture_logs
from torch import Tensor

from tests.fixtures.rewards import make_spec, scored
from tests.fixtures.scored import make_scored, make_turn
from tests.fixtures.train_sequences import random_sequences, train_sequence
from tests.models import build_tiny_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"), tie_embeddings=True, seed=0, hidden_size=32)


@pytest.fixture
def model(model_dir: Path) -> PolicyModel:
    return PolicyModel.from_pretrained(model_dir)


def section(**options: Any) -> ReinforceOptions:
    base: dict[str, Any] = {
        "groups_per_step": 4,
        "group_size": 3,
        "tokens_per_microbatch": 128,
        "optimizer": {"learning_rate": 1e-3},
    }
    return ReinforceOptions.model_validate(base | options)


def engine(model: PolicyModel, rl: ReinforceOptions, **options: Any) -> UpdateEngine:
    return UpdateEngine(model, algorithm_of(rl), rl, **options)


def test_a_state_that_is_being_written_does_not_follow_what_prepare_changes(
    model: PolicyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    updater = engine(model, ReinforceOptions())
    mean = torch.zeros(2)
    monkeypatch.setattr(updater.algorithm, "state_dict", lambda: {"mean": mean})

    state = updater.state_dict()
    mean += 1

    assert state["algorithm"]["mean"].tolist() == [0, 0]


def prepared_by(updater: UpdateEngine, rows: list[TrainSequence]) -> list[TrainSequence]:
    return updater.algorithm.prepare(rows, updater)


def old_logprobs_of(rows: list[TrainSequence]) -> dict[int, Tensor]:
    return {index: row.fields["old_logprobs"] for index, row in enumerate(rows) if "old_logprobs" in row.fields}


def sampled(model: PolicyModel, groups: int = 4, samples: int = 3, seed: int = 0) -> list[TrainSequence]:
    """Sequences whose behaviour log-probabilities are the model's own."""
    sequences = random_sequences(model.config.vocab_size, groups=groups, samples=samples, seed=seed)
    return [
        replace(sequence, behaviour_logprobs=row.tolist())
        for sequence, row in zip(sequences, logprobs(model, sequences), strict=True)
    ]


@torch.no_grad()
def logprobs(model: PolicyModel | Reference, sequences: list[TrainSequence]) -> list[Tensor]:
    return [model.token_logprobs(pack([sequence], 10_000)[0]).logprobs for sequence in sequences]


def weights(model: torch.nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_rewarded_tokens_become_likelier_and_punished_ones_less_so(model: PolicyModel) -> None:
    sequences = sampled(model)
    before = logprobs(model, sequences)
    updater = engine(model, section(optimizer={"learning_rate": 3e-3}))

    metrics = updater.update(sequences)

    after = logprobs(model, sequences)
    moved = [float((b - a).sum()) for a, b in zip(before, after, strict=True)]
    assert min(m for m, s in zip(moved, sequences, strict=True) if s.total_reward > 0) > 0
    assert sum(m for m, s in zip(moved, sequences, strict=True) if s.total_reward < 0) < 0
    assert metrics["num_updates"] == 1
    assert metrics["num_sequences"] == metrics["num_trained_sequences"] == 12
    assert metrics["num_tokens"] == sum(len(s.token_ids) for s in sequences)
    assert metrics["num_trained_tokens"] == sum(s.num_trained for s in sequences)
    assert metrics["learning_rate"] == 3e-3
    assert metrics["parity"] < 1e-5
    assert metrics["importance_mean"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["ratio_max"] == 1.0, "one update: the ratio is 1 by definition"
    assert metrics["clip_fraction"] == 0.0
    assert 0 < metrics["entropy"] < math.log(model.config.vocab_size)
    assert metrics["grad_norm"] > 0
    assert metrics["num_nonfinite"] == 0


def test_without_a_learning_rate_nothing_changes(model: PolicyModel) -> None:
    before = weights(model)
    rl = section(optimizer={"learning_rate": 0.0, "weight_decay": 0.1}, updates_per_step=2, epochs_per_step=2)

    metrics = engine(model, rl).update(sampled(model))

    assert metrics["num_updates"] == 4
    assert same(before, weights(model))
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("aggregation", get_args(LossAggregation))
def test_micro_batches_do_not_change_the_update(model_dir: Path, aggregation: str) -> None:
    results = []
    for tokens in (64, 10_000):
        model = PolicyModel.from_pretrained(model_dir)
        rl = section(aggregation=aggregation, tokens_per_microbatch=tokens, entropy_coefficient=0.01)
        results.append((engine(model, rl).update(sampled(model)), weights(model)))

    (small, small_weights), (large, large_weights) = results
    assert small["loss"] == pytest.approx(large["loss"], abs=1e-6)
    assert small["grad_norm"] == pytest.approx(large["grad_norm"], rel=1e-4)
    # AdamW's first step is the sign of the gradient: a component that is almost 0 may point either way.
    close = [torch.isclose(a, b, atol=2e-5) for a, b in zip(small_weights, large_weights, strict=True)]
    assert sum(int(c.sum()) for c in close) >= 0.98 * sum(c.numel() for c in close)


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_micro_batches_side_by_side_give_the_same_bits_every_time(model_dir: Path) -> None:
    results = []
    for threads in (3, 3, 1):
        torch.set_num_threads(threads)
        model = PolicyModel.from_pretrained(model_dir)
        metrics = engine(model, section(updates_per_step=2)).update(sampled(model))
        results.append((metrics["loss"], metrics["grad_norm"], weights(model)))
        assert torch.get_num_threads() == threads

    (loss, norm, end), (loss_again, norm_again, end_again), (loss_alone, norm_alone, _) = results
    assert (loss, norm) == (loss_again, norm_again)
    assert same(end, end_again)
    assert loss_alone == pytest.approx(loss, abs=1e-6)
    assert norm_alone == pytest.approx(norm, rel=1e-3)


def test_groups_without_signal_are_not_computed_but_counted(model_dir: Path) -> None:
    """The loss is a mean over the whole update's tokens: leaving out zeros must not rescale it."""
    model, other = PolicyModel.from_pretrained(model_dir), PolicyModel.from_pretrained(model_dir)
    sequences = sampled(model)
    flat = [s if "run/0" in s.trajectory_id else replace(s, token_rewards=[0.0] * len(s.token_ids)) for s in sequences]
    explicit = prepared_by(engine(model, section()), flat)

    skipping = engine(model, section()).update(flat)
    computing = engine(other, section(entropy_coefficient=1e-12)).update(explicit)

    assert skipping["num_trained_sequences"] == 3
    assert computing["num_trained_sequences"] == 12
    assert skipping["num_tokens"] == sum(len(s.token_ids) for s in sequences[:3])
    assert skipping["loss"] == pytest.approx(computing["loss"], abs=1e-6)
    assert skipping["grad_norm"] == pytest.approx(computing["grad_norm"], rel=1e-3)


def test_a_batch_without_any_signal_makes_no_update(model: PolicyModel) -> None:
    before = weights(model)
    flat = [replace(s, token_rewards=[1.0] * len(s.token_ids)) for s in sampled(model, groups=1)]
    flat = [replace(s, token_rewards=[0.0] * (len(s.token_ids) - 1) + [1.0]) for s in flat]

    metrics = engine(model, section()).update(flat)

    assert metrics["num_updates"] == 0
    assert "loss" not in metrics
    assert same(before, weights(model))


def test_an_empty_batch_makes_no_update(model: PolicyModel) -> None:
    assert engine(model, section()).update([])["num_updates"] == 0
    assert engine(model, section(algorithm="ppo")).update([])["num_updates"] == 0


def test_a_group_of_one_is_refused(model: PolicyModel) -> None:
    with pytest.raises(ValueError, match="groups of one"):
        engine(model, section()).update(sampled(model, groups=2, samples=3)[:4])


def test_a_schedule_begins_where_the_policy_begins_to_learn(model: PolicyModel) -> None:
    optimizer = {"learning_rate": 1e-3, "schedule": "linear"}
    critic = {"warmup_steps": 2}
    ahead = engine(model, section(algorithm="ppo", steps=4, critic=critic, optimizer=optimizer))
    at_once = engine(model, section(algorithm="ppo", steps=2, optimizer=optimizer))
    sequences = sampled(model)

    rates = [ahead.update(sequences)["learning_rate"] for _ in range(4)]

    assert rates[2:] == [at_once.update(sequences)["learning_rate"] for _ in range(2)]
    assert all(math.isnan(rate) for rate in rates[:2])


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_schedule_ends_with_the_run_even_if_batches_have_no_signal(model: PolicyModel, algorithm: str) -> None:
    optimizer = {"learning_rate": 1.0, "schedule": "linear"}
    critic = {"critic": {"optimizer": optimizer}} if algorithm == "ppo" else {}
    rl = section(algorithm=algorithm, steps=5, updates_per_step=2, optimizer=optimizer, **critic)
    updater = engine(model, rl)
    told = sampled(model, groups=2)
    silent: list[TrainSequence] = []
    if algorithm == "grpo":
        silent = [replace(one, token_rewards=[0.0] * len(one.token_ids)) for one in told]
    one_group = [*told[:3], *silent[3:]]

    for batch in (silent, one_group, told):
        updater.update(batch)
    updater.miss_batch()

    # Ten updates are planned: the first batch makes none, the second one, the third two, and two are to come.
    assert updater.optimizer.num_steps == 3
    assert updater.optimizer.learning_rate == pytest.approx(2 / 10)
    if updater.critic_optimizer is not None:
        assert updater.critic_optimizer.learning_rate == pytest.approx(2 / 10)


def test_a_batch_that_is_missed_while_a_critic_learns_alone_is_one_less_for_the_policy(model: PolicyModel) -> None:
    optimizer = {"learning_rate": 1.0, "schedule": "linear"}
    rl = section(algorithm="ppo", steps=4, critic={"warmup_steps": 1, "optimizer": optimizer}, optimizer=optimizer)
    updater = engine(model, rl)
    assert updater.critic_optimizer is not None

    updater.miss_batch()
    for _ in range(3):
        updater.update(sampled(model))

    assert updater.optimizer.num_steps == 2
    assert (updater.optimizer.learning_rate, updater.critic_optimizer.learning_rate) == (0.0, 0.0), "both have ended"


def test_groups_are_split_whole_and_evenly(model: PolicyModel) -> None:
    updater = engine(model, section(updates_per_step=3))
    sequences = sampled(model, groups=4)

    parts = updater._split(sequences)

    assert sorted(len(part) for part in parts) == [3, 3, 6]
    assert sorted(index for part in parts for index in part) == list(range(12))
    groups = [{sequences[index].group_id for index in part} for part in parts]
    assert sum(len(part) for part in groups) == 4
    assert updater._split(sequences) != parts, "another order the next time"


def test_old_log_probabilities_are_those_of_the_batchs_start(model: PolicyModel) -> None:
    sequences = sampled(model)
    expected = logprobs(model, sequences)
    updater = engine(model, section(updates_per_step=2))
    prepared = prepared_by(updater, sequences)
    parts = updater._split(prepared)

    old_logprobs = old_logprobs_of(updater._with_old_logprobs(prepared, [parts]))

    assert sorted(old_logprobs) == sorted(parts[1]), "the first update sees those weights itself"
    for index, row in old_logprobs.items():
        assert torch.allclose(row, expected[index], atol=1e-5)
    assert sorted(old_logprobs_of(updater._with_old_logprobs(prepared, [parts, parts]))) == list(range(12))


def test_an_exact_sampler_spares_the_old_log_probabilities_of_fresh_sequences(model: PolicyModel) -> None:
    sequences = [replace(s, staleness=i % 2) for i, s in enumerate(sampled(model))]
    updater = engine(model, section(), sampler_is_exact=True)
    everything = [list(range(12))]
    altered = [
        replace(s, behaviour_logprobs=[-7.0] * len(s.token_ids)).with_fields(advantages=torch.ones(len(s.token_ids)))
        for s in sequences
    ]

    old_logprobs = old_logprobs_of(updater._with_old_logprobs(altered, [everything, everything]))

    assert all((old_logprobs[index] == -7.0).all() for index in range(0, 12, 2))
    assert not any((old_logprobs[index] == -7.0).any() for index in range(1, 12, 2))


def test_stale_sequences_are_weighted_by_how_far_the_policy_has_moved(model: PolicyModel) -> None:
    sequences = [replace(s, behaviour_logprobs=[p - 0.5 * m for p, m in zip(s.behaviour_logprobs, s.loss_mask,
                 strict=True)], staleness=1) for s in sampled(model)]  # fmt: skip

    metrics = engine(model, section(correction={"cap": 1.5})).update(sequences)
    plain = engine(model, section(correction={"cap": 5.0})).update(sequences)

    assert metrics["importance_mean"] == pytest.approx(1.5, rel=1e-4), "exp(0.5) = 1.65, truncated"
    assert "parity" not in metrics, "a stale sequence says nothing about parity"
    assert plain["importance_mean"] != metrics["importance_mean"]


def test_parity_is_the_mean_distance_to_the_sampler(model: PolicyModel) -> None:
    sequences = sampled(model)
    shifted = [replace(s, behaviour_logprobs=[p + 0.25 for p in s.behaviour_logprobs]) for s in sequences]
    updater = engine(model, section())

    assert updater.batch_parity(sequences) < 1e-5
    assert updater.batch_parity(shifted) == pytest.approx(0.25, abs=1e-5)
    assert math.isnan(updater.batch_parity([]))
    assert updater.update(shifted)["parity"] == pytest.approx(0.25, abs=1e-5)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_the_kl_loss_pulls_back_to_the_reference(model_dir: Path, estimator: str) -> None:
    reference = PolicyModel.from_pretrained(model_dir).frozen_copy()
    ends = []
    for coefficient in (0.0, 10.0):
        model = PolicyModel.from_pretrained(model_dir)
        rl = section(updates_per_step=4, kl={"coefficient": coefficient, "estimator": estimator},
                     optimizer={"learning_rate": 3e-3})  # fmt: skip
        updater = engine(model, rl, reference=reference if coefficient else None)
        for seed in range(3):
            metrics = updater.update(sampled(model, seed=seed))
        sequences = sampled(model)
        moved = torch.cat(logprobs(model, sequences)) - torch.cat(logprobs(reference, sequences))
        ends.append((float(moved.abs().mean()), metrics.get("reference_kl")))

    (free, no_kl), (held, kl) = ends
    assert no_kl is None
    assert kl is not None
    assert 0 < kl < 1
    assert held < free


def test_a_kl_in_the_reward_lowers_the_returns_of_what_strayed(model: PolicyModel) -> None:
    rl = section(kl={"coefficient": 0.5, "estimator": "k1", "placement": "reward"})
    updater = engine(model, rl)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3)
    sequences = sampled(model)
    assert updater.reference is not None
    reference = logprobs(updater.reference, sequences)

    assert isinstance(updater.algorithm, Grpo)

    rewards = updater.algorithm.penalised_rewards(sequences, updater)

    for sequence, row, ref in zip(sequences, rewards, reference, strict=True):
        divergence = sum(p - q for p, q in zip(sequence.behaviour_logprobs, ref.tolist(), strict=True))
        assert sum(row) == pytest.approx(sequence.total_reward - 0.5 * divergence, abs=1e-3)


def test_an_entropy_bonus_raises_the_entropy(model_dir: Path) -> None:
    entropies = []
    for coefficient in (0.0, 1.0):
        model = PolicyModel.from_pretrained(model_dir)
        updater = engine(model, section(entropy_coefficient=coefficient))
        sequences = sampled(model)
        for _ in range(4):
            metrics = updater.update(sequences)
        entropies.append(metrics["entropy"])

    assert entropies[1] > entropies[0]


@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "ppo"])
def test_interrupted_and_resumed_is_bit_identical(model_dir: Path, algorithm: str) -> None:
    rl = section(algorithm=algorithm, updates_per_step=2, epochs_per_step=2,
                 optimizer={"learning_rate": 1e-3, "warmup_steps": 6})  # fmt: skip
    straight = PolicyModel.from_pretrained(model_dir)
    updater = engine(straight, rl, seed=3)
    assert (updater.critic is not None) is (algorithm == "ppo")
    first, second = sampled(straight, seed=1), sampled(straight, seed=2)
    updater.update(first)
    buffer = io.BytesIO()
    torch.save({"model": straight.state_dict(), "updater": updater.state_dict()}, buffer)
    expected = updater.update(second)

    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    resumed = PolicyModel.from_pretrained(model_dir)
    resumed.load_state_dict(saved["model"])
    again = engine(resumed, rl, seed=99)
    again.load_state_dict(saved["updater"])
    actual = again.update(second)

    assert same(weights(straight), weights(resumed))
    assert again.num_batches == 2
    if updater.critic is not None and again.critic is not None:
        assert same(weights(updater.critic), weights(again.critic))
    assert actual["loss"] == expected["loss"]
    assert actual["learning_rate"] == expected["learning_rate"]


def test_a_batch_is_divided_by_the_seed(model: PolicyModel) -> None:
    rows = sampled(model)
    unsaid, zero, one = (
        engine(model, section(updates_per_step=4), **seed)._split(rows) for seed in ({}, {"seed": 0}, {"seed": 1})
    )

    assert unsaid == zero
    assert zero != one


def test_only_who_needs_a_reference_has_one(model: PolicyModel) -> None:
    assert engine(model, section()).reference is None
    assert engine(model, section(kl={"coefficient": 0.1})).reference is not None
    given = model.frozen_copy()
    assert engine(model, section(kl={"coefficient": 0.1}), reference=given).reference is given


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"entropy_coefficient": -0.5}, "greater than or equal to 0"),
        ({"entropy_coefficient": {"start": -0.5, "end": 0.1, "steps": 3}}, "start and end must be at least 0"),
        ({"kl": {"coefficient": -0.5}}, "greater than or equal to 0"),
        ({"kl": {"coefficient": 0.5, "estimator": "k1"}}, "has no gradient in expectation"),
        ({"clip_low": 0.0}, "greater than 0"),
        ({"dual_clip": 1.0}, "greater than 1"),
    ],
)
def test_options_that_would_turn_a_term_around_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(PluginError, match=reason):
        algorithm_of(section(**options))


def test_an_estimator_may_be_named_while_its_weight_is_nothing() -> None:
    assert algorithm_of(section(kl={"estimator": "k1"})).options.kl.coefficient == 0.0


def test_ppo_learns_values_and_a_policy(model: PolicyModel) -> None:
    rl = section(algorithm="ppo", critic={"lam": 1.0, "optimizer": {"learning_rate": 1e-2}})
    updater = engine(model, rl)
    before = weights(model)
    sequences = sampled(model)

    losses = [updater.update(sequences)["value_loss"] for _ in range(6)]

    assert losses[0] == pytest.approx(0.5, rel=1e-4), "values start at 0 and every return is 1 or -1"
    assert losses[-1] < losses[0]
    assert not same(before, weights(model))


def test_ppo_learns_from_a_batch_of_one_token(model: PolicyModel) -> None:
    """Which has no spread that it could be divided by: its advantage stays as it is."""
    turn = make_turn((5, 6), (8,)).model_copy(update={"reward": 2.0})
    spec = make_spec(goal={"enabled": False}, environment={"credit": "per_turn"})
    (sequence,) = sequences_from_trajectory(scored(make_scored(turns=(turn,)).trajectory, spec))

    (prepared,) = prepared_by(engine(model, section(algorithm="ppo")), [sequence])

    assert prepared.fields["advantages"].tolist() == pytest.approx([0.0, 0.0, 2.0])


def test_each_turns_own_reward_reaches_the_tokens_that_led_to_it(model: PolicyModel) -> None:
    turns = tuple(make_turn((5, 6), (8, 9)).model_copy(update={"reward": gain}) for gain in (1.0, -2.0, 4.0))
    trajectory = make_scored(turns=turns).trajectory
    spec = make_spec(goal={"enabled": False}, environment={"credit": "per_turn"})
    (sequence,) = sequences_from_trajectory(scored(trajectory, spec))
    updater = engine(model, section(algorithm="ppo", critic={"lam": 1.0}))

    (prepared,) = prepared_by(updater, [sequence])

    # Values start at 0: a return is what is still to come. Two tokens of a prompt, two of a reply, three times.
    to_come = [0.0, 0.0, 3.0, 3.0, 0.0, 0.0, 2.0, 2.0, 0.0, 0.0, 4.0, 4.0]
    assert prepared.fields["returns"].tolist() == pytest.approx(to_come)
    assert sequence.total_reward == 3.0, "what grpo compares within a group"


@pytest.mark.parametrize(
    ("final_prompt", "to_come"),
    [
        # V is 0.8 everywhere and nothing was gained.
        pytest.param([5, 6], 0.8, id="cut by the recipe: as much is to come as was expected"),
        pytest.param(None, 0.0, id="ended by the environment: nothing is to come"),
    ],
)
def test_ppo_bootstraps_where_the_recipe_cut(
    model: PolicyModel, final_prompt: list[int] | None, to_come: float
) -> None:
    updater = engine(model, section(algorithm="ppo", critic={"lam": 1.0}))
    assert updater.critic is not None
    torch.nn.init.constant_(updater.critic.head.bias, 0.8)
    sequences = [
        train_sequence([5, 6, 7, 8, 9], "..x.x", final_prompt=final_prompt),
        train_sequence([5, 6, 7], ".xx", rewards=[0.0, 0.0, 0.8], name="run/group/1"),
    ]

    prepared = prepared_by(updater, sequences)

    assert prepared[0].fields["returns"].tolist() == pytest.approx([0.0, 0.0, to_come, 0.0, to_come], abs=1e-6)
    assert prepared[1].fields["returns"].tolist() == pytest.approx([0.0, 0.8, 0.8], abs=1e-6)
    assert bool(prepared[0].fields["advantages"][2] < prepared[1].fields["advantages"][1]) is (to_come < 0.8)
    assert [len(sequence.token_ids) for sequence in prepared] == [5, 3], "trained on what was written, as before"


class CriticSays:
    """Models of which only the values are asked for."""

    dtype = torch.float64

    def __init__(self, *values: list[float]) -> None:
        self._values = [torch.tensor(row, dtype=torch.float64) for row in values]

    def values(self, rows: list[TrainSequence]) -> list[Tensor]:
        assert [len(row.token_ids) for row in rows] == [len(values) for values in self._values]
        return self._values


def test_ppo_goes_on_from_one_row_of_an_episode_to_the_next() -> None:
    """By hand, with gamma = lambda = 1/2, from behind:

    cut        V(final) = 0.8
    row 2      delta = 1 + 0.5 * 0.8 - 0.6 = 0.8       A = 0.8                      return 1.4
    row 1      delta = 0 + 0.5 * 0.6 - 0.4 = -0.1      A = -0.1 + 0.25 * 0.8 = 0.1  return 0.5
    the other  delta = 2 - 1 = 1                       A = 1                        return 2
    """
    ppo = Ppo(PpoOptions.model_validate({"critic": {"gamma": 0.5, "lam": 0.5}}))
    rows = [
        train_sequence([5, 6, 7], "..x"),
        train_sequence([8, 9], ".x", rewards=[0.0, 1.0], final_prompt=[4]),
        train_sequence([5, 6], ".x", rewards=[0.0, 2.0], name="run/group/1"),
    ]
    critic = CriticSays([0.0, 0.0, 0.4], [0.0, 0.6, 0.0, 0.8], [0.0, 1.0])

    first, second, other = ppo.prepare(rows, critic)  # type: ignore[arg-type]

    assert first.fields["returns"].tolist() == pytest.approx([0.0, 0.0, 0.5])
    assert second.fields["returns"].tolist() == pytest.approx([0.0, 1.4])
    assert other.fields["returns"].tolist() == pytest.approx([0.0, 2.0])
    assert [row.fields["values"].tolist() for row in (first, second, other)] == [[0, 0, 0.4], [0, 0.6], [0, 1.0]]
    raw = torch.tensor([0.1, 0.8, 1.0], dtype=torch.float64)
    whitened = [row.fields["advantages"][-1].item() for row in (first, second, other)]
    assert whitened == pytest.approx(((raw - raw.mean()) / raw.std()).tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "advantages"),
    [
        pytest.param(Grpo(GrpoOptions(normalise_by_std=False)), (0.5, -0.5), id="grpo: returns 1 and 0, mean 0.5"),
        pytest.param(Rloo(ClippedOptions()), (1.0, -1.0), id="rloo: the other's return is the baseline"),
    ],
)
def test_all_rows_of_an_episode_get_its_advantage(kind: Any, advantages: tuple[float, float]) -> None:
    rows = [
        train_sequence([5, 6], ".x", rewards=[0.0, 0.25]),
        train_sequence([5, 6], ".x", name="run/group/1"),
        train_sequence([5, 6, 7], ".xx", rewards=[0.0, 0.0, 0.75]),
    ]

    prepared = kind.prepare(rows, CriticSays())

    good, bad = advantages
    assert [row.fields["advantages"].tolist() for row in prepared] == [[0, good], [0, bad], [0, good, good]]


def test_the_final_state_is_the_one_after_the_final_prompt(model: PolicyModel) -> None:
    updater = engine(model, section(algorithm="ppo"))
    torch.manual_seed(0)
    assert updater.critic is not None
    torch.nn.init.normal_(updater.critic.head.weight)
    sequences = [
        train_sequence([5, 6, 7, 8], "..xx", final_prompt=[9, 4, 3]),
        train_sequence([5, 6, 7], "..x", name="run/group/1"),
        train_sequence([5, 2, 7], "..x", final_prompt=[8], name="run/group/2"),
    ]

    _, final_values = values_of(sequences, updater)

    whole = [train_sequence([5, 6, 7, 8, 9, 4, 3, 1], ".......x"), train_sequence([5, 2, 7, 8, 1], "....x")]
    expected = [updater.critic.values(pack([sequence], 100)[0])[-1].item() for sequence in whole]
    assert final_values.tolist() == pytest.approx([expected[0], 0.0, expected[1]], abs=1e-5)
    assert abs(expected[0] - expected[1]) > 0.01


def test_a_cut_that_counts_as_an_end_is_worth_what_it_was_rewarded(model: PolicyModel) -> None:
    found = {}
    for cuts in ("go_on", "end"):
        updater = engine(model, section(algorithm="ppo", critic={"cuts": cuts, "gamma": 1.0, "lam": 1.0}))
        assert updater.critic is not None
        torch.nn.init.constant_(updater.critic.head.weight, 0.5)
        rows = [
            train_sequence([5, 6, 7, 8], "..xx", rewards=[0.0, 0.0, 0.0, 0.25], final_prompt=[9, 4, 3]),
            train_sequence([5, 6, 7], "..x", rewards=[0.0, 0.0, 1.0], name="run/group/1"),
        ]
        prepared = updater.algorithm.prepare(rows, updater)
        found[cuts] = [row.fields["returns"][row.mask()].tolist() for row in prepared]

    assert found["end"] == [pytest.approx([0.25, 0.25]), pytest.approx([1.0])]
    assert found["go_on"][0] != pytest.approx([0.25, 0.25], abs=0.01)
    assert found["go_on"][1] == pytest.approx([1.0])


def test_ppo_refuses_a_cut_without_its_final_prompt(model: PolicyModel) -> None:
    updater = engine(model, section(algorithm="ppo"))

    with pytest.raises(ValueError, match="run/group/0: cut by the recipe, without the tokens of its final observation"):
        updater.update([train_sequence([5, 6], ".x", final_prompt=[])])


def test_ppo_needs_no_group(model: PolicyModel) -> None:
    metrics = engine(model, section(algorithm="ppo")).update(sampled(model, groups=3, samples=1))

    assert metrics["num_updates"] == 1


def test_ppo_whitens_over_written_tokens(model: PolicyModel) -> None:
    updater = engine(model, section(algorithm="ppo"))

    prepared = prepared_by(updater, sampled(model))

    values = torch.cat([s.fields["advantages"][s.mask()] for s in prepared])
    assert values.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert values.std().item() == pytest.approx(1.0, abs=1e-4)
    assert not any(s.fields["advantages"][~s.mask()].any() for s in prepared)


def test_the_policy_stands_still_while_the_critic_warms_up(model: PolicyModel) -> None:
    rl = section(algorithm="ppo", critic={"warmup_steps": 1, "optimizer": {"learning_rate": 1e-2}})
    updater = engine(model, rl)
    assert updater.critic is not None
    before, critic_before = weights(model), weights(updater.critic)
    sequences = sampled(model)

    updater.update(sequences)

    assert same(before, weights(model))
    assert not same(critic_before, weights(updater.critic))
    updater.update(sequences)
    assert not same(before, weights(model))


def test_the_weight_of_the_kl_in_the_reward_stands_still_while_the_critic_warms_up(model: PolicyModel) -> None:
    kl = {"coefficient": 0.5, "placement": "reward", "target": 0.1}
    updater = engine(model, section(algorithm="ppo", kl=kl, critic={"warmup_steps": 1}))
    sequences = sampled(model)

    updater.update(sequences)
    assert updater.algorithm.state_dict() == {"kl_coefficient": 0.5}
    updater.update(sequences)
    assert updater.algorithm.state_dict() == {"kl_coefficient": pytest.approx(0.49)}


def demonstrations(model: PolicyModel) -> list[TrainSequence]:
    return random_sequences(model.config.vocab_size, groups=2, samples=3)


def test_supervised_epochs_lower_the_loss_that_they_report(model: PolicyModel) -> None:
    sft = SupervisedOptions.model_validate(
        {"epochs": 6, "tokens_per_batch": 64, "optimizer": {"learning_rate": 3e-3, "schedule": "linear"}}
    )
    sequences = demonstrations(model)
    num_tokens = sum(len(s.token_ids) for s in sequences)
    rows = logprobs(model, sequences)
    before = -sum(float(row.sum()) for row in rows) / sum(s.num_trained for s in sequences)
    updater = SftUpdater(model, sft, num_tokens=num_tokens)
    whole = copy.deepcopy(model)
    frozen = sft.model_copy(update={"optimizer": sft.optimizer.model_copy(update={"learning_rate": 0.0})})

    untouched = SftUpdater(whole, frozen, num_tokens=num_tokens).sft_epoch(sequences, 64, random.Random(0))
    metrics = [updater.sft_epoch(sequences, 64, random.Random(epoch)) for epoch in range(6)]

    assert untouched.loss == pytest.approx(before, rel=1e-5), "a mean over tokens, however they are batched"
    assert metrics[-1].loss < 0.8 * metrics[0].loss
    assert metrics[0].num_tokens == num_tokens
    assert [m.num_updates for m in metrics] == [math.ceil(num_tokens / 64)] * 6, "as the schedule counts on"
    assert metrics[-1].learning_rate == pytest.approx(3e-3 / updater.optimizer.num_steps), "ends at the end"
    assert metrics[0].num_trained_tokens == sum(s.num_trained for s in sequences)


def test_a_schedule_ends_with_the_epochs_even_if_sequences_are_longer_than_an_update(model: PolicyModel) -> None:
    optimizer = {"learning_rate": 1e-3, "schedule": "linear"}
    sft = SupervisedOptions.model_validate({"epochs": 2, "tokens_per_batch": 5, "optimizer": optimizer})
    sequences = demonstrations(model)
    num_parts = math.ceil(sum(len(s.token_ids) for s in sequences) / 5)
    updater = SftUpdater(model, sft, num_tokens=sum(len(s.token_ids) for s in sequences))

    metrics = [updater.sft_epoch(sequences, 5, random.Random(epoch)) for epoch in range(2)]

    assert [one.num_updates for one in metrics] == [6, 6], "one for each sequence"
    assert updater.optimizer.num_missed == 2 * (num_parts - 6)
    assert updater.optimizer.learning_rate == 0.0
    assert metrics[-1].learning_rate < 0.2 * 1e-3


@pytest.mark.parametrize(("warmup_steps", "told"), [(7, []), (8, ["sft.only_warms_up"])])
def test_a_warm_up_as_long_as_the_stage_is_told(model: PolicyModel, warmup_steps: int, told: list[str]) -> None:
    optimizer = {"warmup_steps": warmup_steps}
    sft = SupervisedOptions.model_validate({"epochs": 2, "tokens_per_batch": 50, "optimizer": optimizer})

    with capture_logs() as lines:
        SftUpdater(model, sft, num_tokens=200)

    assert [line["event"] for line in lines] == told


def test_supervised_training_resumes_bit_for_bit(model_dir: Path) -> None:
    sft = SupervisedOptions.model_validate({"epochs": 4, "optimizer": {"learning_rate": 1e-3, "schedule": "cosine"}})
    straight = PolicyModel.from_pretrained(model_dir)
    sequences = demonstrations(straight)
    updater = SftUpdater(straight, sft, num_tokens=200)
    updater.sft_epoch(sequences, 64, random.Random(0))
    resumed = copy.deepcopy(straight)
    second = SftUpdater(resumed, sft, num_tokens=20_000)  # of another epoch: the schedule is the first one's
    second.load_state_dict(copy.deepcopy(updater.state_dict()))

    updater.sft_epoch(sequences, 64, random.Random(1))
    second.sft_epoch(sequences, 64, random.Random(1))

    assert same(weights(straight), weights(resumed))
