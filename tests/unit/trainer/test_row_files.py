"""Files that ranks write together, each its own rows; and what a learner keeps in them."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gymfleet_trainer.distributed.ranks import Ranks
from gymfleet_trainer.distributed.row_files import RowFile, read_rows
from gymfleet_trainer.learning.checkpoint_files import (
    begin_kept,
    random_states,
    read_states,
    restore_random_states,
    write_kept,
)
from gymfleet_trainer.model.families import FAMILIES, model_class
from gymfleet_trainer.model.policy_model import PolicyModel
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.fixtures.small_models import save_small_model

FIVE_ROWS = torch.arange(1.0, 16.0).view(5, 3)


@pytest.fixture
def second_of_two() -> Iterator[Ranks]:
    """A rank whose other never speaks: enough for what needs no meeting."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield Ranks()
    dist.destroy_process_group()


def last_two_rows() -> DTensor:
    """Of five rows the first rank has three."""
    return DTensor.from_local(
        FIVE_ROWS[3:], init_device_mesh("cpu", (2,)), [Shard(0)], run_check=False, shape=torch.Size((5, 3)),
        stride=(3, 1),
    )  # fmt: skip


def written(path: Path, tensors: dict[str, Tensor], *, replicated: bool) -> int:
    file = RowFile(path, tensors)
    file.create()
    return file.write(replicated=replicated)


def test_a_rank_writes_its_own_rows_and_nothing_else(second_of_two: Ranks, tmp_path: Path) -> None:
    tensors = {"bias": torch.tensor([7.0, 8.0]), "weight": last_two_rows()}

    count = written(tmp_path / "file", tensors, replicated=second_of_two.first)

    found = load_file(tmp_path / "file")
    assert count == 2 * 3 * 4
    assert found["weight"].tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 0], [10, 11, 12], [13, 14, 15]]
    assert found["bias"].tolist() == [0, 0], "the first rank writes what all have whole"


def test_a_rank_reads_its_own_rows_and_nothing_else(second_of_two: Ranks, tmp_path: Path) -> None:
    tensors = {
        "columns": torch.tensor([7.0, 8.0]),
        "step": torch.tensor(4.0),
        "weight": FIVE_ROWS,
        "one": FIVE_ROWS[:1],
    }
    assert written(tmp_path / "file", tensors, replicated=True) == (2 + 1 + 15 + 3) * 4

    found = read_rows(tmp_path / "file", second_of_two, lambda name: name == "columns")

    weight, one = found["weight"], found["one"]
    assert isinstance(weight, DTensor)
    assert isinstance(one, DTensor)
    assert (weight.shape, weight.to_local().tolist()) == ((5, 3), [[10, 11, 12], [13, 14, 15]])
    assert (one.shape, one.to_local().shape) == ((1, 3), (0, 3))
    assert (found["columns"].tolist(), float(found["step"])) == ([7, 8], 4)


def test_one_process_writes_and_reads_every_dtype_and_shape(tmp_path: Path) -> None:
    tied = torch.randn(3, 2).to(torch.bfloat16)
    tensors = {
        "codes": torch.arange(3, dtype=torch.uint8), "a": tied, "b": tied, "none": torch.zeros(0, 4),
        "number": torch.tensor(3.5), "double": torch.randn(2).double(), "columns": torch.randn(4, 6)[:, ::2],
    }  # fmt: skip

    written(tmp_path / "file", tensors, replicated=True)

    found = read_rows(tmp_path / "file", None, lambda _: False)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in tensors.items())
    assert found["a"] is found["b"], "what is one tensor stays one"
    assert load_file(tmp_path / "file").keys() == tensors.keys() - {"b"}


def test_states_come_back_as_they_were(tmp_path: Path) -> None:
    states: dict[str, Any] = {
        "rl": {"state": {3: {"exp_avg": FIVE_ROWS, "step": torch.tensor(2.0)}, 4: {}}, "rng": (3, (1, 2), None)},
        "stage": "train", "torch": torch.get_rng_state(), "rows": [torch.ones(2)],
    }  # fmt: skip

    begin_kept({}, None, states=(tmp_path, states)).write()
    found = read_states(tmp_path)

    assert found.keys() == states.keys()
    assert found["rl"]["state"].keys() == {3, 4}
    assert torch.equal(found["rl"]["state"][3]["exp_avg"], FIVE_ROWS)
    assert (found["rl"]["state"][4], found["rl"]["rng"], found["stage"]) == ({}, (3, (1, 2), None), "train")
    assert torch.equal(found["torch"], states["torch"])
    assert torch.equal(found["rows"][0], torch.ones(2))


def test_a_rank_has_its_rows_of_moments_and_all_of_what_knows_no_shards(second_of_two: Ranks, tmp_path: Path) -> None:
    random_state = torch.get_rng_state()
    states = {"rl": {"moments": FIVE_ROWS, "algorithm": {"seen": FIVE_ROWS}}, "torch": random_state}
    begin_kept({}, None, states=(tmp_path, states)).write()

    found = read_states(tmp_path, second_of_two)

    assert found["rl"]["moments"].to_local().tolist() == [[10, 11, 12], [13, 14, 15]]
    assert torch.equal(found["rl"]["algorithm"]["seen"], FIVE_ROWS)
    assert torch.equal(found["torch"], random_state)


@pytest.mark.parametrize("model_type", [family.model_type for family in FAMILIES])
def test_a_kept_model_is_one_that_transformers_loads(model_type: str, tmp_path: Path) -> None:
    policy = PolicyModel.from_pretrained(save_small_model(model_type, tmp_path / "model"))

    write_kept({tmp_path / "kept": policy}, None)

    kept = model_class(tmp_path / "kept").from_pretrained(str(tmp_path / "kept"), dtype=torch.float32).state_dict()
    own = policy.hf.state_dict()
    assert kept.keys() == own.keys()
    assert all(torch.equal(kept[name], value) for name, value in own.items())


@pytest.mark.parametrize("now", ["cuda", "cpu"])
def test_a_gpu_goes_on_with_its_own_random_numbers(now: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch has a generator for each device: the dropout of adapters draws from it."""
    taken: list[tuple[list[int], str]] = []
    monkeypatch.setattr("torch.cuda.get_rng_state", lambda _: torch.tensor([3, 1, 4], dtype=torch.uint8))
    monkeypatch.setattr("torch.cuda.set_rng_state", lambda state, on: taken.append((state.tolist(), str(on))))

    begin_kept({}, None, states=(tmp_path, random_states(torch.device("cuda:1")))).write()
    drawn = torch.rand(3)
    states = read_states(tmp_path)
    restore_random_states(states, torch.device(now))

    assert torch.equal(torch.rand(3), drawn)
    assert taken == ([([3, 1, 4], "cuda")] if now == "cuda" else [])
    assert not states


def test_files_become_durable_after_the_rows_and_not_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    files = begin_kept({}, None, states=(tmp_path, {"rl": {"moments": FIVE_ROWS}}))
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink().name))

    files.write()
    assert synced == [], "what changes the tensors does not wait for the disk"
    files.sync()

    assert synced == ["optimizer.safetensors"]
