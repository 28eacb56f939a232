"""Two processes train what one trains: the same loss and the same weights, but for rounding.

Each rank sums the gradients of its own micro-batches and the sums are added, so that float32 rounds in another
order: single gradients differ by about 1e-7 of the largest. AdamW divides a gradient by its own size, which makes
that difference show where a gradient is next to nothing, and there it can move a weight by a part of the learning
rate, 1e-3 here. Hence 5e-5 for the largest difference of any weight, and 1e-7 for the mean.
"""

import errno
import math
import random
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from gymfleet_contracts.recipe import Recipe
from gymfleet_trainer.distributed.ranks import Ranks
from gymfleet_trainer.distributed.row_files import RowFile, WriteFailed, together
from gymfleet_trainer.distributed.sharding import whole
from gymfleet_trainer.learning.checkpoint_files import read_states
from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.model.batching import PackedBatch, TrainSequence, pack, sequences_from_trajectory
from gymfleet_trainer.model.critic import ValueModel
from gymfleet_trainer.model.microbatches import Sums
from gymfleet_trainer.model.policy_model import PolicyModel
from gymfleet_trainer.model.streaming import streamed
from gymfleet_trainer.model.weight_files import write_model, write_weights
from gymfleet_trainer.stages.reinforce import Reinforce
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.fixtures.forked_groups import forked_group
from tests.fixtures.scored import make_recipe, make_scored, make_turn
from tests.fixtures.train_sequences import random_sequences
from tests.fixtures.trainer_plans import stage_of
from tests.fixtures.trainer_ranks import RankPool, Work, groups_of, learn, rank_pool
from tests.models import build_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LARGEST: Final = 5e-5
MEAN: Final = 1e-7
METRIC: Final = 1e-5
"""Of a loss or a gradient norm, relative to it or absolute, whichever is more."""

RL: dict[str, Any] = {
    "steps": 4, "groups_per_step": 5, "group_size": 3, "tokens_per_microbatch": 40,
    "optimizer": {"learning_rate": 1e-3, "schedule": "cosine", "warmup_steps": 2},
}  # fmt: skip
FORKED: dict[str, Any] = {**RL, "tokens_per_microbatch": 128}
"""With room for two episodes that share turns."""
# A gradient that is next to nothing is divided by its own size in AdamW's first update: another order of the same sum
# then moves that weight visibly (9e-5 of one in 218,000), unless epsilon is above what rounding makes of it.
PPO: dict[str, Any] = {
    **RL, "algorithm": "ppo", "updates_per_step": 2, "epochs_per_step": 2,
    "optimizer": {**RL["optimizer"], "eps": 1e-6},
    "critic": {"warmup_steps": 1, "optimizer": {"learning_rate": 1e-3, "max_grad_norm": 0.1, "eps": 1e-6}},
}  # fmt: skip
PREFERRING: dict[str, Any] = {**RL, "optimizer": {**RL["optimizer"], "eps": 1e-6}}
PAIRS: Final = {"min_gap": 0.001, "min_chosen_reward": -100.0, "max_pairs_per_task": 2}
SFT: dict[str, Any] = {"epochs": 3, "tokens_per_batch": 30}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    with rank_pool(2, tmp_path_factory.mktemp("ranks")) as pool:
        yield pool


def weights(directory: Path) -> dict[str, Tensor]:
    """The policy's, and the critic's where there is one."""
    state: dict[str, Tensor] = load_file(directory / "checkpoint" / "model" / "model.safetensors")
    critic: dict[str, Tensor] = updater(directory).get("critic", {})
    return state | {f"critic.{name}": value for name, value in critic.items()}


def updater(directory: Path) -> dict[str, Any]:
    """The state that a checkpoint has of reinforcement learning."""
    state: dict[str, dict[str, Any]] = read_states(directory / "checkpoint")
    return state.get("rl", {})


def assert_agree(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    differences = torch.cat([(one[name] - other[name]).abs().flatten() for name in one])
    assert float(differences.max()) < LARGEST
    assert float(differences.mean()) < MEAN


def assert_metrics_agree(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        timeless = {name: value for name, value in mine.items() if not name.endswith("_s")}
        assert timeless == pytest.approx({name: theirs[name] for name in timeless}, rel=METRIC, abs=METRIC, nan_ok=True)


@pytest.mark.parametrize(
    "rl",
    [
        pytest.param(RL, id="one update"),
        pytest.param({**RL, "tokens_per_microbatch": 4096}, id="fewer sequences than two full micro-batches"),
        pytest.param(
            {**RL, "kl": {"coefficient": 0.1}, "updates_per_step": 2, "tokens_per_microbatch": 1, "epochs_per_step": 2,
             "optimizer": {"learning_rate": 1e-3, "max_grad_norm": 0.01}},
            id="several parts of odd numbers of micro-batches, a reference policy in the loss, clipped gradients",
        ),
        pytest.param(
            {**RL, "kl": {"coefficient": 0.1, "placement": "reward"}, "entropy_coefficient": 0.01,
             "aggregation": "sequence_mean_token_mean", "dual_clip": 3.0},
            id="a reference policy in the reward, an entropy bonus",
        ),
        pytest.param(
            {**RL, "algorithm": "kl_cov", "share": 0.1, "updates_per_step": 2, "epochs_per_step": 2,
             "kl": {"coefficient": 0.1, "target": 0.001, "horizon": 2.0, "refresh_every": 1}},
            id="tokens chosen over the batch, a coefficient that moves, a reference that is renewed",
        ),
        pytest.param(
            {**RL, "algorithm": "clip_cov", "share": 0.1, "covariance_low": 0.01, "updates_per_step": 2},
            id="tokens drawn over the batch",
        ),
        pytest.param(
            {**RL, "algorithm": "reinforce_pp", "group_size": 1, "groups_per_step": 7,
             "kl": {"coefficient": 0.1, "target": 0.001, "horizon": 2.0}},
            id="returns whitened over the batch, less a reference policy in the reward that moves",
        ),
        pytest.param(
            {**RL, "algorithm": "gspo", "updates_per_step": 2, "epochs_per_step": 2,
             "negative_aggregation": "token_mean"},
            id="ratios of sequences, two aggregations",
        ),
        pytest.param(
            {**PPO, "algorithm": "vapo", "clip_high": 0.28}, id="a critic, lambdas by length, imitation",
        ),
        pytest.param(PPO, id="a critic"),
        pytest.param(
            {**PPO, "group_size": 1, "groups_per_step": 7, "tokens_per_microbatch": 1, "kl": {"coefficient": 0.1},
             "aggregation": "sequence_mean_token_mean"},
            id="a critic, seven micro-batches of one episode each, a reference policy in the loss",
        ),
        pytest.param(
            {**PPO, "tokens_per_microbatch": 4096, "kl": {"coefficient": 0.1, "placement": "reward"}},
            id="a critic, fewer sequences than two full micro-batches, a reference policy in the reward",
        ),
        pytest.param({**PREFERRING, "algorithm": "dpo", "pairs": PAIRS}, id="pairs, and a reference"),
        pytest.param({**PREFERRING, "algorithm": "orpo", "pairs": PAIRS}, id="pairs alone"),
        pytest.param({**PREFERRING, "algorithm": "kto"}, id="single episodes, and mismatched replies"),
    ],
)  # fmt: skip
def test_two_workers_train_as_one(pair: RankPool, tiny_model: Path, tmp_path: Path, rl: dict[str, Any]) -> None:
    recipe = make_recipe(rl=rl, sft=SFT)
    one, two = (
        Work(recipe, tiny_model, tmp_path / name, sft_epochs=range(2), steps=range(3)) for name in ("one", "two")
    )

    alone = learn(None, one)
    together = pair.run(learn, two)

    assert_metrics_agree(alone, together[0])
    assert_agree(weights(one.directory), weights(two.directory))
    start = load_file(tiny_model / "model.safetensors")
    start |= {name.replace("model.", "critic.body.", 1): weight for name, weight in start.items()}
    moved = {name: (weight - start.get(name, 0.0)).abs().mean() for name, weight in weights(one.directory).items()}
    assert min(moved.values()) > 1000 * MEAN, "and training did move them"


@pytest.mark.parametrize(
    "rl",
    [
        pytest.param({**FORKED, "kl": {"coefficient": 0.1}}, id="grpo"),
        pytest.param({**PPO, "tokens_per_microbatch": 4096}, id="ppo, in as few micro-batches as there are workers"),
        pytest.param({**FORKED, "algorithm": "gigpo"}, id="gigpo"),
        pytest.param({**FORKED, "algorithm": "monte_carlo"}, id="monte_carlo"),
        pytest.param({**FORKED, "algorithm": "tree_grpo"}, id="tree_grpo"),
        pytest.param({**PPO, "algorithm": "turn_ppo", "tokens_per_microbatch": 128}, id="turn_ppo"),
    ],
)
def test_two_workers_train_as_one_on_episodes_that_share_turns(
    pair: RankPool, tiny_model: Path, tmp_path: Path, rl: dict[str, Any]
) -> None:
    recipe = make_recipe(rl=rl)
    one, two = (Work(recipe, tiny_model, tmp_path / name, steps=range(2), forked=True) for name in ("one", "two"))

    alone = learn(None, one)
    together = pair.run(learn, two)[0]

    for line in (*alone, *together):
        shared = line.pop("num_shared_tokens")  # micro-batches differ, and with them what is together in one
        assert shared > 0 or math.isnan(line["grad_norm"]), "or only the critic was trained"
    assert_metrics_agree(alone, together)
    assert_agree(weights(one.directory), weights(two.directory))


@pytest.mark.parametrize("writer", ["one writes", "two write"])
@pytest.mark.parametrize("rl", [pytest.param(RL, id="grpo"), pytest.param(PPO, id="ppo")])
def test_a_checkpoint_goes_on_with_another_number_of_workers(
    pair: RankPool, tiny_model: Path, tmp_path: Path, rl: dict[str, Any], writer: str
) -> None:
    recipe = make_recipe(rl={**rl, "kl": {"coefficient": 0.1}})
    through = Work(recipe, tiny_model, tmp_path / "through", steps=range(3))
    first = Work(recipe, tiny_model, tmp_path / "first", steps=range(2))
    rest = Work(
        recipe, tiny_model, tmp_path / "rest", steps=range(2, 3),
        resume=first.directory / "checkpoint", reference=first.directory / "reference",
    )  # fmt: skip

    undisturbed = learn(None, through)
    if writer == "one writes":
        learn(None, first)
        resumed = pair.run(learn, rest)[0]
    else:
        pair.run(learn, first)
        resumed = learn(None, rest)

    assert_metrics_agree(undisturbed[2:], resumed)
    assert_agree(weights(through.directory), weights(rest.directory))
    assert_same_state(updater(through.directory), updater(rest.directory))


def fill_up(ranks: Ranks, directory: Path) -> int | None:
    """Write a file while the second rank may not write behind its header; what the error says on this rank."""
    file = RowFile(directory / "file", {"weight": torch.ones(1000)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    together(ranks, file.create, first_alone=True)
    if not ranks.first:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8, limits[1]))
    try:
        together(ranks, lambda: None if ranks.first else assert_written(file))
    except WriteFailed as error:
        return error.errno
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return None


def assert_written(file: RowFile) -> None:
    assert file.write(replicated=True) == 4000


def test_a_write_that_fails_on_one_rank_fails_on_all(pair: RankPool, tmp_path: Path) -> None:
    assert pair.run(fill_up, tmp_path) == [errno.EFBIG, errno.EFBIG]


def rows_of(ranks: Ranks, model: Path, directory: Path) -> int:
    """How many bytes of a model a rank writes."""
    policy = PolicyModel.from_pretrained(model, ranks=ranks)
    file = RowFile(directory / "file", policy.rows()[1])
    counts: list[int] = []
    together(ranks, file.create, first_alone=True)
    together(ranks, lambda: counts.append(file.write(replicated=ranks.first)))
    return counts[0]


def test_no_rank_writes_more_than_its_rows(pair: RankPool, tiny_model: Path, tmp_path: Path) -> None:
    first, second = pair.run(rows_of, tiny_model, tmp_path)

    given, found = load_file(tiny_model / "model.safetensors"), load_file(tmp_path / "file")
    assert found.keys() == given.keys()
    assert all(torch.equal(found[name], value) for name, value in given.items())
    assert first == sum((len(value) + 1) // 2 * value[0].numel() * 4 for value in given.values())
    assert second == sum(len(value) // 2 * value[0].numel() * 4 for value in given.values())


def assert_same_state(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Of the optimisers: where they stand, and the moments of policy and critic."""
    assert one.keys() == other.keys()
    assert one["rng"] == other["rng"]
    assert one.get("num_batches") == other.get("num_batches")
    for name in one.keys() & {"optimizer", "critic_optimizer"}:
        assert one[name]["num_steps"] == other[name]["num_steps"] >= 3
        moments = [state[name]["adamw"]["state"] for state in (one, other)]
        assert moments[0].keys() == moments[1].keys()
        for index, state in moments[0].items():
            assert state["exp_avg"] == pytest.approx(moments[1][index]["exp_avg"], abs=1e-6)


def same_returns(ranks: Ranks, recipe: Recipe, model: Path, directory: Path) -> dict[str, Any]:
    learner = LocalLearner(recipe, str(model), directory / "reference", ranks)
    learner.begin("reinforce", stage_of(recipe, Reinforce).options)
    groups = groups_of(recipe, 0)
    return learner.update([groups[2]], {1: 0}.get)  # the third has no signal


def test_a_batch_without_signal_moves_nothing_and_nobody_waits(
    pair: RankPool, tiny_model: Path, tmp_path: Path
) -> None:
    metrics = pair.run(same_returns, make_recipe(rl=RL), tiny_model, tmp_path)

    assert [(line["num_updates"], line["num_trained_sequences"]) for line in metrics] == [(0, 0), (0, 0)]


def not_finite(ranks: Ranks, recipe: Recipe, model: Path, directory: Path) -> list[dict[str, Any]]:
    learner = LocalLearner(recipe, str(model), directory / "reference", ranks)
    learner.begin("reinforce", stage_of(recipe, Reinforce).options)
    groups = groups_of(recipe, 0)
    broken = groups[0].samples[0]
    turns = [turn.model_copy(update={"response_logprobs": (math.nan,) * len(turn.response_token_ids)})
             for turn in broken.trajectory.turns]  # fmt: skip
    groups[0].samples[0] = broken.model_copy(
        update={"trajectory": broken.trajectory.model_copy(update={"turns": tuple(turns)})}
    )
    return [learner.update(groups, {1: 0}.get), learner.update(groups_of(recipe, 1), {1: 0}.get)]


def test_a_gradient_that_is_not_finite_is_refused_by_all(pair: RankPool, tiny_model: Path, tmp_path: Path) -> None:
    refused, sound = pair.run(not_finite, make_recipe(rl=RL), tiny_model, tmp_path)[1]

    assert (refused["num_updates"], refused["num_nonfinite"]) == (1, 1)
    assert sound["num_nonfinite"] == 0
    assert math.isfinite(sound["loss"]), "the weights of either rank stayed as they were"


def probe(ranks: Ranks, recipe: Recipe, model: Path, directory: Path) -> tuple[list[list[float]], Any]:
    learner = LocalLearner(recipe, str(model), directory / "reference", ranks)
    rows = learner.sampled_logprobs([[5, 6, 7], [40]], [[8, 9], [10, 11, 12]])
    turn = make_turn((5, 6, 7), (8, 9)).model_copy(update={"response_logprobs": tuple(rows[0])})
    parity = learner.batch_parity([make_scored(turns=(turn,))], 1)
    if ranks.first:
        (directory / "published").mkdir()
    learner.save_weights(directory / "published")
    return rows, parity


@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_what_is_published_is_what_was_probed(pair: RankPool, tmp_path: Path, tie_embeddings: bool) -> None:
    given = build_tiny_model(tmp_path / "given", tie_embeddings=tie_embeddings, seed=3)

    (rows, parity), (other_rows, _) = pair.run(probe, make_recipe(), given, tmp_path)

    published = AutoModelForCausalLM.from_pretrained(str(tmp_path / "published")).eval()
    with torch.no_grad():
        logprobs = published(torch.tensor([[5, 6, 7, 8, 9]])).logits[0].log_softmax(-1)
    assert rows[0] == pytest.approx(logprobs[[2, 3], [8, 9]].tolist(), abs=1e-5)
    assert rows == other_rows
    assert (parity.num_tokens, parity.mean_abs) == (2, pytest.approx(0.0, abs=1e-6))
    assert load_file(given / "model.safetensors").keys() == load_file(tmp_path / "published/model.safetensors").keys()
    assert type(published).__name__ == "Qwen3ForCausalLM"


def written(ranks: Ranks | None, model: Path, directory: Path) -> list[str]:
    """The files that one process, or the first of several, writes in buckets of 50 kB; and what this one is given."""
    tensors = streamed(PolicyModel.from_pretrained(model, ranks=ranks).hf, torch.bfloat16, ranks)
    if ranks is None or ranks.first:
        directory.mkdir()
        write_weights(directory, tensors, 50_000, torch.bfloat16)
    return [name for name, _ in tensors]


@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_two_workers_publish_the_bytes_of_one(pair: RankPool, tmp_path: Path, tie_embeddings: bool) -> None:
    given = build_tiny_model(tmp_path / "given", tie_embeddings=tie_embeddings, seed=3)

    written(None, given, tmp_path / "alone")
    given_to = pair.run(written, given, tmp_path / "together")

    assert given_to == [[], []], "the second has no whole tensor"
    files = sorted(path.name for path in (tmp_path / "alone").iterdir())
    assert sum(name.endswith(".safetensors") for name in files) > 2
    assert files == sorted(path.name for path in (tmp_path / "together").iterdir())
    for name in files:
        assert (tmp_path / "alone" / name).read_bytes() == (tmp_path / "together" / name).read_bytes(), name


def written_in_vain(ranks: Ranks, model: Path, directory: Path) -> tuple[str, int]:
    """What this rank fails by, and how many tensors nobody has taken."""
    policy = PolicyModel.from_pretrained(model, ranks=ranks)
    tensors = streamed(policy.hf, torch.bfloat16, ranks)
    failed = ""
    try:
        write_model(directory, policy.hf, tensors, torch.bfloat16, writes=ranks.first)
    except OSError as error:
        failed = type(error).__name__
    left = len(list(tensors))
    assert torch.isfinite(whole(next(policy.parameters()))).all(), "the ranks can go on together"
    return failed, left


def test_a_worker_that_cannot_write_leaves_no_other_waiting(pair: RankPool, tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("no directory")

    assert pair.run(written_in_vain, tiny_model, tmp_path / "taken") == [("FileExistsError", 0), ("", 0)]


def checkpointed_gradient(
    ranks: Ranks | None, model: Path, gradient_checkpointing: bool, *, forked: bool = False, compiled: bool = False
) -> dict[str, Tensor]:
    """Of log-probabilities and values, with activations computed anew in the backward pass or kept."""
    policy = PolicyModel.from_pretrained(
        model, gradient_checkpointing=gradient_checkpointing, compiled=compiled, ranks=ranks
    )
    critic = ValueModel(policy)
    assert critic.body.is_gradient_checkpointing == gradient_checkpointing
    torch.nn.init.ones_(critic.head.weight)
    both = torch.nn.ModuleDict({"policy": policy, "critic": critic})
    parameters = list(both.parameters())
    batches = pack(forked_rows(), 100) if forked else pack(random_sequences(300, groups=1, samples=5), 1)
    assert len(batches) == (3 if forked else 5), "an odd number: one rank makes a pass that must not count"
    assert any(batch.shared is not None for batch in batches) == forked

    def loss_of(batch: PackedBatch) -> tuple[Tensor, Sums]:
        return policy.token_logprobs(batch, temperature=0.7).logprobs.sum() + critic.values(batch).sum(), {}

    policy.executor(parameters).accumulate(loss_of, batches, parameters)
    return {name: whole(p.grad) for name, p in both.named_parameters() if p.grad is not None}


def forked_rows() -> list[TrainSequence]:
    trajectories = forked_group(random.Random(0), "g", 300, shortest=8, longest=12)
    return [row for scored in trajectories for row in sequences_from_trajectory(scored)]


@pytest.mark.parametrize(
    ("forked", "compiled"), [(False, False), (True, False), pytest.param(False, True, marks=pytest.mark.long)]
)
def test_gradients_are_those_of_one_process_with_activations_computed_anew(
    pair: RankPool, tiny_model: Path, forked: bool, compiled: bool
) -> None:
    alone = checkpointed_gradient(None, tiny_model, gradient_checkpointing=False, forked=forked)
    ways = {"gradient_checkpointing": True, "forked": forked, "compiled": compiled}
    together = pair.run(checkpointed_gradient, tiny_model, **ways)[1]

    assert alone.keys() == together.keys()
    assert {name.partition(".")[0] for name in alone} == {"policy", "critic"}
    for name, gradient in alone.items():
        torch.testing.assert_close(together[name], gradient, rtol=1e-4, atol=1e-4 * float(gradient.abs().max()))
