"""From a recipe to the weights: whole updates of a small model against an independent implementation, in float64.

Each test runs two batches of trajectories, of four optimiser updates each unless the recipe says otherwise, over
several micro-batches, with episodes of several turns and of different lengths. The base recipe's AdamW has neither
memory nor scale (betas 0, an epsilon far above the gradients), so that weights move by the gradient itself.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
import torch
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.trajectory import FinishReason, ScoredTrajectory, Turn
from gymfleet_trainer.algorithms.grpo import GrpoOptions
from gymfleet_trainer.algorithms.ppo import PpoOptions
from gymfleet_trainer.learning.actor_critic import CriticOptions
from gymfleet_trainer.learning.checkpoint_files import read_states
from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.learning.options import ReinforceOptions
from gymfleet_trainer.learning.policy_gradient import CorrectionOptions, KlOptions
from gymfleet_trainer.model.optimizer import OptimizerOptions
from gymfleet_trainer.run.group_planner import PlannedGroup
from gymfleet_trainer.run.groups import Group
from gymfleet_trainer.stages.reinforce import Reinforce
from safetensors.torch import load_file
from torch import Tensor
from transformers import Starcoder2Config, Starcoder2ForCausalLM

from tests.fixtures.reference_update import ReferenceTrainer, episodes_of, stock_model
from tests.fixtures.scored import make_recipe, make_scored, make_turn
from tests.fixtures.trainer_plans import make_planner, stage_of, training_plan

VOCAB: Final = 24
FRESH, STALE = 7, 6
"""Policy versions."""
NUM_BATCHES: Final = 2
PRECISION: Final = 1e-9

DESCENT: Final = {"learning_rate": 2e5, "betas": [0.0, 0.0], "eps": 1e6, "max_grad_norm": 100.0}
ADAM: Final = {"learning_rate": 0.02, "betas": [0.9, 0.95], "eps": 1e-4, "max_grad_norm": 100.0}
RL: Final[dict[str, Any]] = {
    "steps": 3,
    "groups_per_step": 4,
    "group_size": 3,
    "updates_per_step": 2,
    "epochs_per_step": 2,
    "tokens_per_microbatch": 40,
    "optimizer": DESCENT,
}
PPO: Final[dict[str, Any]] = {"algorithm": "ppo", "critic": {"optimizer": {**DESCENT, "learning_rate": 4e4}}}

Batch: TypeAlias = list[list[ScoredTrajectory]]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small are slower on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With layer norms: other architectures' norms are float32 in transformers, whatever the weights are."""
    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = Starcoder2Config(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, initializer_range=0.25, tie_word_embeddings=False,
        sliding_window=None, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    Starcoder2ForCausalLM(config).save_pretrained(path)
    return path


def recipe_of(options: dict[str, Any], **more: Any) -> Recipe:
    return make_recipe(rl=_merged(RL, options), **{"seed": 3, "trainer_dtype": "float64", **more})


def _merged(base: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in options.items():
        merged[name] = _merged(base.get(name, {}), value) if isinstance(value, dict) else value
    return merged


# --- the data


def batch(model_dir: Path, number: int, *, noise: float = 0.5) -> Batch:
    """Four groups of three episodes. One group gains nothing; in the second batch each has a stale episode.

    The log-probabilities of fresh episodes are off by `noise`, as of a sampler that is not quite the model.
    """
    rng = random.Random(number)
    groups = []
    for place in range(4):
        group = []
        for sample in range(3):
            version = STALE if number and sample == place % 3 else FRESH
            cut = (FinishReason.MAX_TURNS, None, FinishReason.CONTEXT_LENGTH)[(place + sample) % 3]
            turns = tuple(_turn(rng, version, role) for role in ("agent", "critic", "agent")[: rng.randint(1, 3)])
            total = 0.0 if place == 2 else rng.choice([1.0, -1.0, 0.25]) + sample
            scored = make_scored(
                f"reinforce.s{number + 1:06d}-g{place:02d}", sample, turns=turns, total=total, version=version, cut=cut,
                final_prompt=tuple(_words(rng, 1, 4)) if cut else (),
            )  # fmt: skip
            rewarded = scored if place == 2 else _with_turn_rewards(scored, rng)
            group.append(_sampled(model_dir, rewarded, rng, 0.5 if version == STALE else noise))
        groups.append(group)
    return groups


def _words(rng: random.Random, low: int, high: int) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(rng.randint(low, high))]


def _turn(rng: random.Random, version: int, role: str) -> Turn:
    turn = make_turn(tuple(_words(rng, 1, 4)), tuple(_words(rng, 1, 5)), version=version)
    return turn.model_copy(update={"role": role})


def _with_turn_rewards(scored: ScoredTrajectory, rng: random.Random) -> ScoredTrajectory:
    """Every turn gains something on its last token."""
    reward = scored.reward
    assert reward is not None
    rows = tuple((*row[:-1], row[-1] + rng.uniform(-0.5, 0.5)) for row in reward.token_rewards)
    total = math.fsum(value for row in rows for value in row)
    return scored.model_copy(update={"reward": reward.model_copy(update={"token_rewards": rows, "total": total})})


def _sampled(model_dir: Path, scored: ScoredTrajectory, rng: random.Random, noise: float) -> ScoredTrajectory:
    """With the model's own log-probabilities, but for the noise."""
    trajectory = scored.trajectory
    tokens = [t for turn in trajectory.turns for t in (*turn.prompt_token_ids, *turn.response_token_ids)]
    with torch.no_grad():
        table = stock_model(model_dir)(torch.tensor([tokens])).logits[0].log_softmax(-1)
    turns, place = [], 0
    for turn in trajectory.turns:
        place += len(turn.prompt_token_ids)
        exact = [table[place + i - 1, token].item() for i, token in enumerate(turn.response_token_ids)]
        place += len(exact)
        turns.append(turn.model_copy(update={"response_logprobs": tuple(e + rng.gauss(0, noise) for e in exact)}))
    return scored.model_copy(update={"trajectory": trajectory.model_copy(update={"turns": tuple(turns)})})


@cache
def batches(model_dir: Path) -> list[Batch]:
    return [batch(model_dir, number) for number in range(NUM_BATCHES)]


# --- both sides


@dataclass(frozen=True)
class Outcome:
    """What a run of the batches led to."""

    metrics: list[dict[str, float]]
    weights: dict[str, Tensor]
    """Of the policy, and of the critic where there is one."""


def learned(recipe: Recipe, model_dir: Path, directory: Path, given: list[Batch] | None = None) -> Outcome:
    """The trainer's."""
    learner = LocalLearner(recipe, str(model_dir), directory / "reference")
    learner.begin("reinforce", stage_of(recipe, Reinforce).options)
    staleness = {FRESH: 0, STALE: 2}.get
    metrics = [learner.update(as_groups(recipe, groups), staleness) for groups in given or batches(model_dir)]
    checkpoint = directory / "checkpoint"
    checkpoint.mkdir()
    learner.save_checkpoint(checkpoint)
    critic = read_states(checkpoint)["rl"].get("critic", {})
    weights = load_file(checkpoint / "model" / "model.safetensors")
    return Outcome(metrics, weights | {f"critic.{name}": value for name, value in critic.items()})


def as_groups(recipe: Recipe, groups: Batch) -> list[Group]:
    made = []
    for place, trajectories in enumerate(groups):
        request = make_planner(recipe, 50).train(training_plan(recipe), PlannedGroup(place))
        group_id = trajectories[0].trajectory.group_id
        samples = dict(enumerate(trajectories))
        made.append(Group(request.model_copy(update={"group_id": group_id}), samples=samples))
    return made


def expected(recipe: Recipe, model_dir: Path, given: list[Batch] | None = None) -> Outcome:
    """The reference's."""
    reference = ReferenceTrainer(recipe, model_dir)
    options = stage_of(recipe, Reinforce).options
    given = given or batches(model_dir)
    metrics = [reference.update(episodes_of(groups, {STALE}, options.roles)) for groups in given]
    weights = {name: value.detach() for name, value in reference.policy.named_parameters()}
    if options.algorithm in {"ppo", "vapo"}:
        weights |= {f"critic.{name}": value.detach() for name, value in reference.critic.named_parameters()}
    return Outcome(metrics, weights)


@cache
def base(model_dir: Path, algorithm: str, optimizer: str = "") -> Outcome:
    """What the reference makes of the recipe that the options are changes of."""
    return expected(recipe_of(base_options(algorithm, optimizer)), model_dir)


def base_options(algorithm: str, optimizer: str = "") -> dict[str, Any]:
    options: dict[str, Any] = PPO if algorithm == "ppo" else {}
    if optimizer == "policy":
        options = _merged(options, {"optimizer": ADAM})
    if optimizer == "critic":
        options = _merged(options, {"critic": {"optimizer": ADAM}})
    return options


def distance(one: Outcome, other: Outcome, model_dir: Path) -> float:
    """How far apart the policy's weights, or the critic's, are, as a share of how far the second's moved."""
    start = load_file(model_dir / "model.safetensors")
    shares = []
    for name in one.weights.keys() & other.weights.keys():
        before = start.get(name.replace("critic.body.", "model."), torch.zeros_like(other.weights[name]))
        moved = (other.weights[name] - before).abs().max().item()
        difference = (one.weights[name] - other.weights[name]).abs().max().item()
        shares.append(difference / moved if moved else float(difference > 0))
    return max(shares)


def assert_agrees(actual: Outcome, wanted: Outcome, model_dir: Path, precision: float = PRECISION) -> None:
    for ours, theirs in zip(actual.metrics, wanted.metrics, strict=True):
        own = {name: value for name, value in ours.items() if name != "update_s"}
        assert _counted(own) == pytest.approx(_counted(theirs), rel=precision, abs=precision)
    assert actual.weights.keys() == wanted.weights.keys()
    # A bias of the keys adds the same to all scores of a query: its gradient is rounding alone.
    kept = {name: value for name, value in wanted.weights.items() if not name.endswith("k_proj.bias")}
    assert distance(actual, Outcome([], kept), model_dir) < precision


def _counted(metrics: dict[str, float]) -> dict[str, float]:
    """Without means over nothing."""
    return {name: value for name, value in metrics.items() if not math.isnan(value)}


def check(recipe: Recipe, model_dir: Path, tmp_path: Path) -> Outcome:
    wanted = expected(recipe, model_dir)
    assert_agrees(learned(recipe, model_dir, tmp_path), wanted, model_dir)
    return wanted


def differs(one: Outcome, other: Outcome, model_dir: Path) -> bool:
    """Visibly: by a thousandth of the movement, where agreement is to a millionth and better."""
    return distance(one, other, model_dir) > 1e-3


# --- the tests


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_the_base_recipe_exercises_what_the_options_bound(model_dir: Path, tmp_path: Path, algorithm: str) -> None:
    outcome = check(recipe_of(base_options(algorithm)), model_dir, tmp_path)

    first, second = outcome.metrics
    assert first["num_updates"] == 4
    assert 0.02 < first["clip_fraction"] < 0.9, "some ratios are clipped"
    assert first["ratio_max"] > 1.3
    assert first["importance_mean"] != pytest.approx(1.0, abs=0.01)
    assert first["parity"] > 0.1
    assert math.isnan(second["parity"]), "not over stale episodes"
    assert first["num_trained_sequences"] == (12 if algorithm == "ppo" else 9), "one group has no signal"


GRPO_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "algorithm": PPO,
    "algorithm, rloo": {"algorithm": "rloo"},
    "roles": {"roles": ["critic"]},
    "updates_per_step": {"updates_per_step": 3},
    "epochs_per_step": {"epochs_per_step": 1},
    "clip_low": {"clip_low": 0.05},
    "clip_high": {"clip_high": 0.05},
    "dual_clip": {"dual_clip": 1.05},
    "aggregation": {"aggregation": "token_mean"},
    "aggregation, second": {"aggregation": "sequence_mean_token_sum", "optimizer": {"learning_rate": 1e5}},
    "norm_tokens": {"aggregation": "sequence_mean_token_sum_norm", "norm_tokens": 7},
    "negative_aggregation": {"negative_aggregation": "token_mean"},
    "normalise_by_std": {"normalise_by_std": False},
    "entropy_coefficient": {"entropy_coefficient": 0.3},
    "entropy_coefficient, scheduled": {"entropy_coefficient": {"start": 0.1, "end": 0.5, "steps": 3}},
    "correction.cap": {"correction": {"cap": 1.1}},
    "correction.mode": {"correction": {"mode": "mask"}},
    "correction.mode, off": {"correction": {"mode": "off"}},
    "correction.level": {"correction": {"level": "sequence"}},
    "correction.level, geometric": {"correction": {"level": "sequence_geometric", "cap": 1.2}},
    "correction.level, masked": {"correction": {"level": "sequence", "mode": "mask"}},
    "kl.coefficient": {"kl": {"coefficient": 0.5}},
    "kl.estimator": {"kl": {"coefficient": 0.5, "estimator": "k2"}},
    "kl.placement": {"kl": {"coefficient": 0.5, "placement": "reward"}},
    "kl.placement, k1": {"kl": {"coefficient": 0.5, "placement": "reward", "estimator": "k1"}},
    "kl.placement, k2": {"kl": {"coefficient": 0.5, "placement": "reward", "estimator": "k2"}},
    "kl.target": {"kl": {"coefficient": 0.5, "target": 0.01}},
    "kl.horizon": {"kl": {"coefficient": 0.5, "target": 0.01, "horizon": 1.0}},
    "kl.refresh_every": {"kl": {"coefficient": 0.5, "refresh_every": 1}},
}
PPO_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "roles": {"roles": ["agent"]},
    "clip_high": {"clip_high": 0.05},
    "clip_low": {"clip_low": 0.05},
    "dual_clip": {"dual_clip": 1.05},
    "aggregation": {"aggregation": "sequence_mean_token_mean"},
    "entropy_coefficient": {"entropy_coefficient": 0.3},
    "correction.cap": {"correction": {"cap": 1.1}},
    "kl.coefficient": {"kl": {"coefficient": 0.5}},
    "kl.placement": {"kl": {"coefficient": 0.5, "placement": "reward", "estimator": "k1"}},
    "critic.gamma": {"critic": {"gamma": 0.8}},
    "critic.lam": {"critic": {"lam": 0.5}},
    "critic.value_clip": {"critic": {"value_clip": 0.02}},
    "critic.cuts": {"critic": {"cuts": "end"}},
    "critic.warmup_steps": {"critic": {"warmup_steps": 1}},
}
OPTIMIZER_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "learning_rate": {"learning_rate": 0.01},
    "betas": {"betas": [0.5, 0.95]},
    "betas, second": {"betas": [0.9, 0.7]},
    "weight_decay": {"weight_decay": 0.5},
    "eps": {"eps": 1e-2},
    "warmup_steps": {"warmup_steps": 3},
    "schedule": {"schedule": "cosine"},
    "schedule, second": {"schedule": "linear", "warmup_steps": 2},
    "min_lr_ratio": {"schedule": "linear", "min_lr_ratio": 0.5},
    "max_grad_norm": {"max_grad_norm": 0.05},
}


@pytest.mark.parametrize("option", GRPO_OPTIONS)
def test_an_option_of_grpo_changes_the_update_as_it_should(model_dir: Path, tmp_path: Path, option: str) -> None:
    wanted = check(recipe_of(GRPO_OPTIONS[option]), model_dir, tmp_path)

    assert differs(base(model_dir, "grpo"), wanted, model_dir)


@pytest.mark.parametrize("option", PPO_OPTIONS)
def test_an_option_of_ppo_changes_the_update_as_it_should(model_dir: Path, tmp_path: Path, option: str) -> None:
    wanted = check(recipe_of(_merged(PPO, PPO_OPTIONS[option])), model_dir, tmp_path)

    assert differs(base(model_dir, "ppo"), wanted, model_dir)


@pytest.mark.parametrize("which", ["policy", "critic"])
@pytest.mark.parametrize("option", OPTIMIZER_OPTIONS)
def test_an_option_of_an_optimiser_changes_the_update_as_it_should(
    model_dir: Path, tmp_path: Path, which: str, option: str
) -> None:
    changes = {"optimizer": OPTIMIZER_OPTIONS[option]}
    algorithm = "ppo" if which == "critic" else "grpo"
    options = _merged(base_options(algorithm, which), {"critic": changes} if which == "critic" else changes)

    wanted = check(recipe_of(options), model_dir, tmp_path)

    assert differs(base(model_dir, algorithm, which), wanted, model_dir)


@pytest.mark.parametrize("temperature", [0.7, 1.4])
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_log_probabilities_are_those_at_the_temperature_of_the_sampling(
    model_dir: Path, tmp_path: Path, algorithm: str, temperature: float
) -> None:
    options = _merged(base_options(algorithm), {"kl": {"coefficient": 0.2}, "entropy_coefficient": 0.1})

    recipe = recipe_of(options, rollout={"sampling": {"temperature": temperature}})
    wanted = check(recipe, model_dir, tmp_path)

    assert differs(base(model_dir, algorithm), wanted, model_dir)


@pytest.mark.parametrize("tokens", [40, 10_000])
def test_each_episode_is_trained_at_the_temperature_at_which_it_was_sampled(
    model_dir: Path, tmp_path: Path, tokens: int
) -> None:
    given = [
        [[_at(scored, (0.7, None, 1.4)[sample]) for sample, scored in enumerate(group)] for group in groups]
        for groups in batches(model_dir)
    ]
    recipe = recipe_of({"tokens_per_microbatch": tokens, "entropy_coefficient": 0.1})

    wanted = expected(recipe, model_dir, given)

    assert_agrees(learned(recipe, model_dir, tmp_path, given), wanted, model_dir)
    assert differs(expected(recipe, model_dir), wanted, model_dir)


def _at(scored: ScoredTrajectory, temperature: float | None) -> ScoredTrajectory:
    trajectory = scored.trajectory.model_copy(update={"temperature": temperature})
    return scored.model_copy(update={"trajectory": trajectory})


def test_the_seed_deals_the_groups_to_the_updates(model_dir: Path, tmp_path: Path) -> None:
    wanted = check(recipe_of({}, seed=4), model_dir, tmp_path)

    assert differs(base(model_dir, "grpo"), wanted, model_dir)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_micro_batches_change_nothing(model_dir: Path, tmp_path: Path, algorithm: str) -> None:
    options = _merged(base_options(algorithm), {"tokens_per_microbatch": 10_000})

    assert_agrees(learned(recipe_of(options), model_dir, tmp_path), base(model_dir, algorithm), model_dir)


@pytest.mark.parametrize(
    ("noise", "more"),
    [
        pytest.param(0.0, {}, id="an exact sampler, but stale episodes"),
        pytest.param(0.5, {"inference": {"dtype": "bfloat16"}}, id="a sampler of less precision"),
        pytest.param(0.5, {"rollout": {"sampling": {"top_p": 0.9}}}, id="a sampler that cuts the distribution off"),
        pytest.param(0.5, {"rollout": {"sampling": {"top_k": 9}}}, id="a sampler that knows a few words only"),
    ],
)
def test_old_log_probabilities_are_those_of_the_weights_before_the_batch(
    model_dir: Path, tmp_path: Path, noise: float, more: dict[str, Any]
) -> None:
    recipe = recipe_of({}, trainer_dtype="float32", **more)
    given = [batch(model_dir, 1, noise=noise)]

    actual, wanted = learned(recipe, model_dir, tmp_path, given), expected(recipe, model_dir, given)

    assert_agrees(actual, wanted, model_dir, precision=1e-4)


def test_every_option_is_tried() -> None:
    elsewhere = {
        "steps": "the schedule's end: see `schedule`",
        "groups_per_step": "how many groups the run asks for",
        "group_size": "how many episodes the run asks for",
        "tokens_per_microbatch": "changes nothing, as a test above says",
        "max_staleness": "which groups the run accepts",
        "dynamic_sampling": "which groups the run asks for",
        "keep_share": "which groups the run trains on",
        "max_redraws": "which groups the run asks for",
        "max_diverged_steps": "when the run ends",
        "max_wall_s": "likewise",
        "max_env_steps": "likewise",
        "exploration": "a table, of which test_exploration.py tries each",
        "kl": "a table",
        "correction": "a table",
        "critic": "a table",
        "optimizer": "a table",
    }
    tried = {name.partition(",")[0] for name in (*GRPO_OPTIONS, *PPO_OPTIONS)}
    tried_of_optimizer = {name.partition(",")[0] for name in OPTIMIZER_OPTIONS}

    in_test_master_optimizers = {"kind", "master_dtype"}
    assert set(OptimizerOptions.model_fields) == tried_of_optimizer | in_test_master_optimizers
    assert {f"kl.{name}" for name in KlOptions.model_fields} <= tried
    assert {f"correction.{name}" for name in CorrectionOptions.model_fields} <= tried
    assert {f"critic.{name}" for name in CriticOptions.model_fields if name != "optimizer"} <= tried
    known = {*ReinforceOptions.model_fields, *GrpoOptions.model_fields, *PpoOptions.model_fields}
    assert known == {name for name in tried if "." not in name} | set(elsewhere)
