"""Pieces of training on several processes that need only one."""

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from gymfleet_trainer.distributed.ranks import Ranks, share
from gymfleet_trainer.distributed.ray_settings import prepare_ray
from gymfleet_trainer.distributed.sharding import (
    Placement,
    collected_state,
    first_row,
    local,
    sharded_like,
    zero_rows,
)
from gymfleet_trainer.distributed.sharding import (
    shard as cut,
)
from gymfleet_trainer.errors import WorkersLost
from gymfleet_trainer.learning.engine import UpdateEngine
from gymfleet_trainer.learning.losses import GlobalCounts
from gymfleet_trainer.learning.options import ReinforceOptions
from gymfleet_trainer.learning.plugins import algorithm_of
from gymfleet_trainer.main import _learners
from gymfleet_trainer.model.batching import PackedBatch, pack
from gymfleet_trainer.model.critic import ValueModel
from gymfleet_trainer.model.microbatches import Threads
from gymfleet_trainer.model.policy_model import PolicyModel
from gymfleet_trainer.run.checkpoint import Checkpoints
from gymfleet_trainer.run.run_directory import RunDirectory, recipe_hash
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.settings import TrainerSettings
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.fixtures.scored import make_recipe
from tests.fixtures.train_sequences import train_sequence


@pytest.mark.parametrize(
    ("num_batches", "width", "rounds"),
    [
        pytest.param(4, 2, 2, id="even"),
        pytest.param(5, 2, 3, id="one is left over"),
        pytest.param(1, 3, 1, id="fewer than ranks"),
        pytest.param(0, 2, 0, id="none"),
    ],
)
def test_every_batch_counts_once_and_all_ranks_make_equally_many_passes(
    num_batches: int, width: int, rounds: int
) -> None:
    lengths = [9, 4, 7, 8, 6][:num_batches]
    batches = [pack([train_sequence([1] * n, "." + "x" * (n - 1))], 10)[0] for n in lengths]

    shares = [share(batches, rank, width) for rank in range(width)]

    assert [len(own) for own in shares] == [rounds] * width
    counted = [batch.num_tokens for own in shares for batch, counts in own if counts]
    assert sorted(counted) == sorted(lengths)
    spare = [batch.num_tokens for own in shares for batch, counts in own if not counts]
    assert set(spare) <= {min(lengths, default=0)}, "what does not count is the cheapest there is"


def test_the_number_of_workers_is_no_part_of_what_a_recipe_means() -> None:
    assert recipe_hash(make_recipe()) == recipe_hash(make_recipe(trainer={"workers": 4}))


def test_weights_of_one_process_are_whole_already() -> None:
    tied = torch.nn.Parameter(torch.ones(2, 3))

    state = collected_state({"embedding": tied, "head": tied})

    assert state["embedding"] is state["head"], "tied weights stay tied"
    assert torch.equal(state["head"], torch.ones(2, 3))
    assert sharded_like(tied, state["head"]) is state["head"]


@pytest.fixture
def second_of_two() -> Iterator[Ranks]:
    """A rank whose other never speaks: enough for what needs no meeting."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield Ranks()
    dist.destroy_process_group()


def second_half(weight: Tensor) -> Tensor:
    """Rows; of an odd number, here the only one, the first rank has one more."""
    return weight[(len(weight) + 1) // 2 :]


def test_a_critic_is_cut_as_its_policy_is_and_takes_its_part_of_a_whole_one(
    second_of_two: Ranks, tiny_model: Path
) -> None:
    given = load_file(tiny_model / "model.safetensors")
    critic = ValueModel(PolicyModel.from_pretrained(tiny_model, ranks=second_of_two))
    shards = {name: value for name, value in critic.state_dict().items() if isinstance(value, DTensor)}

    assert len(shards) == len(list(critic.parameters()))
    for name, shard in shards.items():
        start = given[name.replace("body.", "model.", 1)] if name.startswith("body.") else torch.zeros(shard.shape)
        assert torch.equal(shard.to_local(), second_half(start)), name
    assert all(parameter.requires_grad and parameter.device.type == "cpu" for parameter in critic.parameters())

    other = {name: torch.arange(shard.numel(), dtype=torch.float32).view(shard.shape) for name, shard in shards.items()}
    critic.load_weights(other)

    for name, parameter in critic.named_parameters():
        assert isinstance(parameter, DTensor)
        assert torch.equal(parameter.to_local(), second_half(other[name])), name


def test_values_and_advantages_count_the_whole_batch_however_it_is_shared(tiny_model: Path) -> None:
    # Values start at 0, nothing is discounted: four tokens of return 1, one of -3. Their mean is 1/5, their variance
    # (4 * 0.64 + 10.24) / 4 = 3.2. The value loss is half of (4 * 1 + 9) / 5, of which the first episode has 4 / 5.
    sequences = [
        train_sequence([1] * 5, ".xxxx", rewards=[0.0, 0.0, 0.0, 0.0, 1.0], name="run/0/0"),
        train_sequence([1] * 2, ".x", rewards=[0.0, -3.0], name="run/1/0"),
    ]
    rl = ReinforceOptions.model_validate({"algorithm": "ppo", "critic": {"lam": 1.0}})
    updater = UpdateEngine(PolicyModel.from_pretrained(tiny_model), algorithm_of(rl), rl)

    prepared = updater.algorithm.prepare(sequences, updater)

    assert prepared[0].fields["advantages"].tolist() == pytest.approx([0.0, *[0.8 / 3.2**0.5] * 4])
    assert prepared[1].fields["advantages"].tolist() == pytest.approx([0.0, -3.2 / 3.2**0.5])
    counts = GlobalCounts.of(row.num_trained for row in prepared)

    def added(batch: PackedBatch) -> float:
        outputs = updater._outputs(batch, counts, updater.algorithm.trains(0))
        return float(updater.algorithm.loss(outputs, batch).parts["value_loss"])

    batches = pack(prepared, 1)
    losses = [[added(batch) for batch, counted in share(batches, rank, 3) if counted] for rank in range(3)]
    assert [len(own) for own in losses] == [1, 1, 0]
    assert sorted(chain(*losses)) == pytest.approx([0.4, 0.9])


def test_one_worker_needs_no_ray(tmp_path: Path) -> None:
    with _learners(make_recipe(), RunDirectory(tmp_path), TrainerSettings()) as learner:
        assert learner.__name__ == "LocalLearner"


def test_what_the_operator_says_to_ray_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"RAY_USAGE_STATS_ENABLED": "1"})

    prepare_ray()

    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "1"
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64


def test_a_clusters_own_authentication_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"RAY_ADDRESS": "head:6379"})

    prepare_ray()

    assert "RAY_AUTH_TOKEN" not in os.environ
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_a_checkpoint_whose_workers_died_is_no_failed_write(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    state = RunState(run_id="r", recipe_hash="h")

    def die(directory: Path) -> None:
        raise WorkersLost("group 1 of the workers died")

    with pytest.raises(WorkersLost):
        checkpoints.save(state, die)
    assert list(tmp_path.iterdir()) == [], "and nothing half-written stays"
    assert state.serial == 0


def test_threads_are_for_small_models_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)

    assert Threads(torch.device("cpu"), [torch.empty(10)]).width == 4
    assert Threads(torch.device("cpu"), [torch.empty(50_000_001, device="meta")]).width == 1
    assert Threads(torch.device("cuda"), [torch.empty(10)]).width == 1


def test_a_process_alone_may_keep_its_weights_in_shards_too(tiny_model: Path) -> None:
    (batch,) = pack([train_sequence([5, 6, 7, 8], ".xxx")], 100)
    plain = PolicyModel.from_pretrained(tiny_model)
    try:
        ranks = Ranks.alone()
        kept = PolicyModel.from_pretrained(tiny_model, ranks=ranks, cpu_offload=True)

        assert (ranks.rank, ranks.width) == (Ranks.alone().rank, Ranks.alone().width) == (0, 1)
        for model in (plain, kept):
            model.token_logprobs(batch).logprobs.sum().backward()  # type: ignore[no-untyped-call]
        for one, other in zip(plain.parameters(), kept.parameters(), strict=True):
            assert isinstance(other.grad, DTensor)
            assert one.grad is not None
            assert torch.equal(other.grad.full_tensor(), one.grad)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("rows", [1, 4, 5])
def test_rows_are_counted_as_they_are_cut(second_of_two: Ranks, rows: int) -> None:
    module = torch.nn.Linear(3, rows, bias=False)
    cut(module, [], Placement(second_of_two, torch.device("cpu"), torch.float32))

    assert first_row(module.weight) == (rows + 1) // 2
    assert local(zero_rows(module.weight, (2,), torch.uint8)).shape == (rows // 2, 2)
    assert first_row(torch.ones(rows, 3)) == 0
