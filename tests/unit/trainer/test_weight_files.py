"""Buckets as the trainer writes them and as the engine's worker takes or refuses them."""

import json
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.weights import MANIFEST
from gymfleet_kit.checksum import checksum
from gymfleet_rollout.inference.base import WeightsRejected
from gymfleet_rollout.inference.manifest import read_manifest, require_intact, require_loaded
from gymfleet_rollout.inference.weights import require_same_tensors, tensor_shapes
from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.model import weight_files
from gymfleet_trainer.model.policy_model import PolicyModel
from gymfleet_trainer.model.streaming import streamed
from gymfleet_trainer.model.weight_files import in_buckets, write_weights
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.fixtures.small_models import MODEL_TYPES, save_small_model
from tests.models import build_tiny_model

MIB = 1 << 20
TENSORS = {
    "a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "b": torch.arange(5, dtype=torch.bfloat16),
    "c": torch.tensor(7, dtype=torch.int64),
}


@pytest.fixture
def version(tmp_path: Path) -> Path:
    (directory := tmp_path / "v000001").mkdir()
    write_weights(directory, TENSORS.items(), 34)
    return directory


def test_a_checksum_is_the_sum_and_the_sum_by_place() -> None:
    assert checksum(torch.tensor([5, -1, 3])) == f"{7:016x}{5 - 2 + 9:016x}"
    assert checksum(torch.tensor([-1])) == "f" * 32
    assert checksum(torch.tensor([], dtype=torch.int64)) == "0" * 32


def test_a_checksum_goes_on_past_a_chunk_as_numpy_counts_it() -> None:
    words = np.random.default_rng(0).integers(-(2**63), 2**63, 2**20 + 3, dtype=np.int64)
    placed = (words.astype(np.uint64) * np.arange(1, len(words) + 1, dtype=np.uint64)).sum()

    assert checksum(torch.from_numpy(words)) == f"{words.astype(np.uint64).sum():016x}{placed:016x}"
    words[[0, 2**20 + 1]] = words[[2**20 + 1, 0]]
    assert checksum(torch.from_numpy(words))[16:] != f"{placed:016x}"


def test_buckets_end_where_the_next_tensor_would_be_too_much() -> None:
    sizes = {"one": 3, "two": 5, "large": 20, "four": 8, "five": 1}
    named = [(name, torch.zeros(size, dtype=torch.uint8)) for name, size in sizes.items()]

    assert [[name for name, _ in bucket] for bucket in in_buckets(named, 8)] == [
        ["one", "two"], ["large"], ["four"], ["five"],
    ]  # fmt: skip


def test_buckets_are_filled_with_what_is_written() -> None:
    named = [(name, torch.zeros(4)) for name in "abc"] + [("ids", torch.zeros(4, dtype=torch.int32))]

    assert [[name for name, _ in bucket] for bucket in in_buckets(named, 16, torch.bfloat16)] == [
        ["a", "b"], ["c"], ["ids"],
    ]  # fmt: skip


def test_four_buckets_are_written_at_a_time_and_no_more_are_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(4)
    given: list[str] = []
    given_when_written: list[int] = []
    write = weight_files._write

    def waiting(*arguments: Any) -> Any:
        if "-0000" in arguments[0].name and int(arguments[0].stem[-1]) <= 4:
            together.wait(20)  # breaks unless four threads come here
            given_when_written.append(len(given))
        return write(*arguments)

    def gathered() -> Iterator[tuple[str, Tensor]]:
        for number in range(9):
            given.append(str(number))
            yield str(number), torch.full((4,), float(number))

    monkeypatch.setattr(weight_files, "_write", waiting)
    threads = torch.get_num_threads()

    manifest = write_weights(tmp_path, gathered(), 16)

    assert max(given_when_written) <= 6, "the four that wait, the one that is next, and the first tensor after it"
    assert [one.file for one in manifest.buckets] == [f"model-{n:05d}-of-00009.safetensors" for n in range(1, 10)]
    assert [one.tensors[0].name for one in manifest.buckets] == [str(number) for number in range(9)]
    require_intact(tmp_path)
    assert torch.get_num_threads() == threads


def test_a_bucket_that_cannot_be_written_leaves_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "model-00002.safetensors").mkdir()

    with pytest.raises(IsADirectoryError, match="model-00002"):
        write_weights(tmp_path, TENSORS.items(), 10)

    assert not (tmp_path / MANIFEST).exists()


@pytest.mark.parametrize("copied", [1, 3, 8, 1 << 20])
def test_tensors_are_cast_and_summed_in_parts_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: int
) -> None:
    monkeypatch.setattr(weight_files, "_COPIED", copied)
    generator = torch.Generator().manual_seed(0)
    stacked = torch.randn(5, 3, generator=generator)
    named = {
        "turned": stacked.t(), "row": stacked[1], "odd": torch.randn(7, generator=generator),
        "half": torch.randn(9, generator=generator).to(torch.bfloat16)[2:], "ids": torch.arange(3),
        "one": torch.tensor(2.5),
    }  # fmt: skip

    write_weights(tmp_path, named.items(), 1 << 20, torch.bfloat16)

    require_intact(tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == named.keys()
    for name, tensor in named.items():
        assert torch.equal(found[name], tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor)
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert manifest.buckets[0].tensors[0].name == "ids", "elements of eight bytes are first"


def test_what_is_written_is_read_by_others(version: Path) -> None:
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert sorted(path.name for path in version.iterdir()) == [*files, "model.safetensors.index.json", MANIFEST]
    index = json.loads((version / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {"a": files[0], "b": files[0], "c": files[1]}
    found = {name: tensor for file in files for name, tensor in load_file(version / file).items()}
    assert found.keys() == TENSORS.keys()
    assert all(
        torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in TENSORS.items()
    )
    require_intact(version)


def test_the_checksum_is_of_the_files_bytes(version: Path) -> None:
    manifest = read_manifest(version)
    assert manifest is not None
    data = (version / manifest.buckets[0].file).read_bytes()
    (header,) = struct.unpack("<Q", data[:8])
    words = np.frombuffer(data[8 + header :] + bytes(6), dtype=np.uint64)  # 34 bytes, filled up to 40
    assert manifest.buckets[0].checksum == f"{words.sum():016x}{(words * np.arange(1, 6, dtype=np.uint64)).sum():016x}"


def test_a_flipped_bit_is_refused_by_the_name_of_bucket_and_file(version: Path) -> None:
    file = version / "model-00002-of-00002.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)

    read_manifest(version)  # the headers are as they were
    with pytest.raises(WeightsRejected, match=r"bucket 2, .*/model-00002-of-00002.safetensors, has the checksum"):
        require_intact(version)


def test_a_directory_without_a_manifest_is_taken_as_it_is(version: Path) -> None:
    (version / MANIFEST).unlink()
    (version / "model-00001-of-00002.safetensors").touch()

    assert read_manifest(version) is None
    require_intact(version)


def entry(manifest: dict[str, Any]) -> Any:
    return manifest["buckets"][0]["tensors"][1]


HOSTILE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a name": lambda m: entry(m).update(name="other"),
    "a dtype": lambda m: entry(m).update(dtype="F16"),
    "a shape": lambda m: m["buckets"][0]["tensors"][0].update(shape=[3, 2]),
    "too large": lambda m: entry(m).update(end=1 << 40),
    "negative": lambda m: entry(m).update(begin=-10),
    "overlapping": lambda m: entry(m).update(begin=14, end=24),
    "huge": lambda m: entry(m).update(shape=[1 << 62]),
    "many axes": lambda m: entry(m).update(shape=[1] * 1000),
    "a path": lambda m: m["buckets"][0].update(file="../model-00001-of-00002.safetensors"),
    "absolute": lambda m: m["buckets"][0].update(file="/etc/x.safetensors"),
    "twice": lambda m: m["buckets"].append(m["buckets"][0]),
    "a bucket less": lambda m: m["buckets"].pop(),
    "a tensor less": lambda m: m["buckets"].__setitem__(
        0, {**m["buckets"][0], "size_bytes": 24, "tensors": m["buckets"][0]["tensors"][:1]}
    ),
    "no buckets": lambda m: m.update(buckets=[]),
    "a field more": lambda m: m.update(load="me"),
    "more than is known": lambda m: m.update(transfer="pigeon"),
}


@pytest.mark.parametrize("lie", HOSTILE)
def test_a_manifest_that_lies_is_refused_in_one_line(version: Path, lie: str) -> None:
    manifest = json.loads((version / MANIFEST).read_text())
    HOSTILE[lie](manifest)
    (version / MANIFEST).write_text(json.dumps(manifest))

    with pytest.raises(WeightsRejected) as refused:
        read_manifest(version)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "[" * 100_000, "null", '{"buckets": [], "buckets": []}', "\udcff"])
def test_a_manifest_that_is_none_is_refused(version: Path, text: str) -> None:
    (version / MANIFEST).write_bytes(text.encode(errors="surrogateescape"))

    with pytest.raises(WeightsRejected, match=MANIFEST):
        read_manifest(version)


@pytest.mark.parametrize("change", [lambda file: file.unlink(), lambda file: file.write_bytes(file.read_bytes()[:-1])])
def test_a_file_that_is_missing_or_cut_short_is_refused(version: Path, change: Callable[[Path], Any]) -> None:
    change(version / "model-00001-of-00002.safetensors")

    with pytest.raises(WeightsRejected, match=r"model-00001-of-00002\.safetensors"):
        read_manifest(version)


def test_a_worker_that_refused_is_heard() -> None:
    require_loaded([{"num_heads": 1}])
    with pytest.raises(WeightsRejected, match=r"^bucket 2$"):
        require_loaded([{"num_heads": 1}, {"refused": "bucket 2"}])


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_streamed_tensors_are_those_of_the_models_own_files(model_type: str, tmp_path: Path) -> None:
    source = save_small_model(model_type, tmp_path / "source")

    found = dict(streamed(PolicyModel.from_pretrained(source).hf, torch.float32, None))

    expected = load_file(source / "model.safetensors")
    require_same_tensors(tensor_shapes(source), {name: tuple(one.shape) for name, one in found.items()}, source)
    assert all(torch.equal(expected[name], tensor) for name, tensor in found.items())


@pytest.mark.parametrize(("bucket_mib", "files"), [(1, "several"), (512, "one")])
def test_the_recipe_says_how_large_a_bucket_is(tmp_path: Path, bucket_mib: int, files: str) -> None:
    model = build_tiny_model(tmp_path / "model", tie_embeddings=True, seed=0, hidden_size=256, num_layers=4)
    recipe = Recipe.model_validate({
        "name": "buckets", "environments": [{"name": "maze"}], "model": {"path": str(model)},
        "publish": {"bucket_mib": bucket_mib}, "inference": {"dtype": "bfloat16"},
        "stages": [{"kind": "measure", "num_tasks": 1}],
    })  # fmt: skip
    (directory := tmp_path / "published").mkdir()

    LocalLearner(recipe, str(model), tmp_path / "references").save_weights(directory)

    manifest = read_manifest(directory)
    assert manifest is not None
    assert (len(manifest.buckets) > 1) == (files == "several")
    require_intact(directory)
    again: Any = AutoModelForCausalLM.from_pretrained(directory)
    given: Any = AutoModelForCausalLM.from_pretrained(model)
    assert again.dtype == torch.bfloat16
    names = [tensor.name for bucket in manifest.buckets for tensor in bucket.tensors]
    assert "lm_head.weight" not in names
    assert sum(one.size_bytes for one in manifest.buckets) == 2 * sum(one.numel() for one in given.parameters())
    for (name, ours), theirs in zip(again.named_parameters(), given.parameters(), strict=True):
        assert torch.equal(ours, theirs.to(torch.bfloat16)), name
