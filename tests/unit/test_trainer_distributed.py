"""Pieces of training on several processes that need only one."""

import os
from pathlib import Path

import pytest
import torch
from gymfleet_contracts.recipe import RecipeError
from gymfleet_trainer.batching import pack
from gymfleet_trainer.checkpoint import Checkpoints
from gymfleet_trainer.errors import WorkersLost
from gymfleet_trainer.main import _learners
from gymfleet_trainer.parallel import Threads
from gymfleet_trainer.ranks import share
from gymfleet_trainer.ray_settings import prepare_ray
from gymfleet_trainer.record import RunDirectory, recipe_hash
from gymfleet_trainer.settings import TrainerSettings
from gymfleet_trainer.sharding import collected_state, sharded_like
from gymfleet_trainer.state import RunState

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


def test_ppo_is_refused_before_anything_starts(tmp_path: Path) -> None:
    recipe = make_recipe(rl={"algorithm": "ppo"}, trainer={"workers": 2})

    with (
        pytest.raises(RecipeError, match=r"trainer\.workers > 1 .* one worker"),
        _learners(recipe, RunDirectory(tmp_path), TrainerSettings()),
    ):
        raise AssertionError


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
