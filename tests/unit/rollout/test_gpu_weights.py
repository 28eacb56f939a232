"""Versions in the memory of a GPU, as far as it takes none: what is laid out, checked, sent, and refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gymfleet_contracts.recipe import RecipeError
from gymfleet_contracts.rollout import StageVersion
from gymfleet_contracts.weights import MANIFEST, WeightsManifest, WeightsOnGpu
from gymfleet_rollout.inference.base import EngineConfig, WeightsRejected
from gymfleet_rollout.inference.embedded import EmbeddedEngine
from gymfleet_rollout.inference.gpu_weights import require_same_bytes, tensors_in, tensors_on_gpu
from gymfleet_trainer.model.weight_files import write_weights
from gymfleet_trainer.publish.transfers import transfer_of
from gymfleet_trainer.publish.transfers.cuda_ipc import CudaIpc, described, fill
from pydantic import ValidationError

from tests.fixtures.numbered_engine import NumberedEngine
from tests.fixtures.scored import make_recipe

UUID = "01234567-89ab-cdef-0123-456789abcdef"
# As `UntypedStorage._share_cuda_` returns them, with bytes that are no text.
SHARED = (0, bytes(range(190, 256)), 4096, 512, b"/torch_12_34", 5, b"\xff" * 64, True)
TENSORS = {
    "a.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "b.weight": torch.tensor([1.5, -2.0, 3.25], dtype=torch.bfloat16),
    "c.mask": torch.tensor([True, False, True]),
    "d.weight": torch.arange(100, dtype=torch.int64),
}
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="what a machine without a GPU says")


@pytest.fixture
def version(tmp_path: Path) -> Path:
    path = tmp_path / "v000001"
    path.mkdir()
    write_weights(path, TENSORS.items(), 64)
    return path


def manifest_of(version: Path) -> WeightsManifest:
    return WeightsManifest.model_validate_json((version / MANIFEST).read_bytes())


def filled(version: Path) -> torch.Tensor:
    manifest = manifest_of(version)
    memory = torch.full((manifest.places[-1],), 99, dtype=torch.uint8)
    fill(memory, version, manifest)
    return memory


def test_buckets_are_placed_one_after_the_other_and_read_as_what_they_are(version: Path) -> None:
    manifest = manifest_of(version)

    assert [bucket.size_bytes for bucket in manifest.buckets] == [33, 800]
    assert manifest.places == (0, 256, 1280)
    memory = filled(version)
    require_same_bytes(memory, manifest)
    read = dict(tensors_in(memory, manifest))
    assert read.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)
        assert read[name].untyped_storage().data_ptr() == memory.data_ptr(), "without a copy"


def test_a_bit_that_flipped_on_the_way_is_refused_by_its_bucket(version: Path) -> None:
    memory = filled(version)
    memory[256 + 17] ^= 4

    with pytest.raises(WeightsRejected, match=r"bucket 2, model-00002-of-00002\.safetensors, has the checksum "):
        require_same_bytes(memory, manifest_of(version))


def test_handles_travel_as_json_and_come_back_bit_by_bit(version: Path) -> None:
    body = StageVersion(
        version=1, weights_path=str(version), probe_prompts=((1,),), on_gpu=described(UUID, SHARED)
    )  # fmt: skip

    received = StageVersion.model_validate_json(body.model_dump_json()).on_gpu

    assert received is not None
    fields = (
        0, received.handle, received.size_bytes, received.offset_bytes, received.ref_counter_handle,
        received.ref_counter_offset, received.event_handle, received.event_sync_required,
    )  # fmt: skip
    assert fields == SHARED
    assert "on_gpu" not in json.loads(body.model_copy(update={"on_gpu": None}).model_dump_json())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("device", "0", id="a number instead of a UUID"),
        pytest.param("handle", "?", id="no base64"),
        pytest.param("handle", "", id="nothing"),
        pytest.param("handle", "QUFB" * 1000, id="too long"),
        pytest.param("size_bytes", -1, id="a negative size"),
        pytest.param("event_sync_required", "yes", id="a word for a flag"),
        pytest.param("pickle", "gASV", id="a field that nobody knows"),
    ],
)
def test_what_is_no_handle_is_refused_as_it_comes_in(field: str, value: object) -> None:
    given = json.loads(described(UUID, SHARED).model_dump_json())

    with pytest.raises(ValidationError, match=field):
        WeightsOnGpu.model_validate_json(json.dumps(given | {field: value}))


def test_a_memory_that_is_too_small_is_refused_before_it_is_opened(version: Path) -> None:
    shared = (*SHARED[:2], 1279, *SHARED[3:])

    with pytest.raises(WeightsRejected, match=r"holds 1279 bytes on the GPU, and .*v000001 takes 1280"):
        tensors_on_gpu(version, described(UUID, shared))


@needs_no_gpu
def test_an_engine_without_a_gpu_says_so_in_a_line(version: Path) -> None:
    with pytest.raises(WeightsRejected, match=f"on the GPU {UUID}, and this engine has none; .*disk") as refused:
        tensors_on_gpu(version, described(UUID, SHARED))

    assert "\n" not in str(refused.value)


@needs_no_gpu
def test_a_trainer_without_a_gpu_says_so_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"cuda_ipc\": the trainer has no GPU; .*disk"):
        transfer_of(make_recipe(publish={"transfer": "cuda_ipc"}), tmp_path, "run", "nowhere")


def test_adapters_are_files_whatever_the_transfer_is(tmp_path: Path) -> None:
    recipe = make_recipe(publish={"transfer": "cuda_ipc"}, model={"path": "base", "lora": {}})

    assert not isinstance(transfer_of(recipe, tmp_path, "run", "nowhere"), CudaIpc)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"trainer_device": "cpu"}, 'trainer_device is "cpu"'),
        ({"trainer": {"workers": 2}}, "trainer.workers is 2, and one process has to hold the version"),
        ({"placement": {"trainer": [0], "engines": [1]}}, "placement gives trainer and engines other GPUs"),
    ],
)
def test_recipes_whose_engines_have_another_gpu_are_refused(more: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=f"on the trainer's GPU, and {why}: give"):
        make_recipe(publish={"transfer": "cuda_ipc"}, **more)


async def test_an_engine_that_reads_files_alone_refuses_a_handle(tmp_path: Path) -> None:
    engine = NumberedEngine("mine", tmp_path / "0")

    with pytest.raises(WeightsRejected, match=r'mine reads weights from files alone: publish.transfer = "cuda_ipc"'):
        await engine.load_from_gpu(tmp_path, described(UUID, SHARED))


async def test_the_embedded_engine_passes_the_handle_to_its_core(tmp_path: Path) -> None:
    class Core:
        loaded: list[tuple[Path, WeightsOnGpu | None]] = []  # noqa: RUF012 - one core

        def load(self, path: Path, on_gpu: WeightsOnGpu | None = None) -> None:
            self.loaded.append((path, on_gpu))

        def close(self) -> None: ...

    engine = EmbeddedEngine(EngineConfig(model=tmp_path), build=lambda _: Core())  # type: ignore[arg-type,return-value]
    await engine.start()
    handle = described(UUID, SHARED)
    await engine.load_from_gpu(tmp_path, handle)
    await engine.load(tmp_path)
    await engine.close()

    assert Core.loaded == [(tmp_path, handle), (tmp_path, None)]
