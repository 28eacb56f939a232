"""What each of several workers reads of a model, against the whole of it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import pytest
import torch
import torch.distributed as dist
import transformers.modeling_utils
from gymfleet_contracts.recipe_sections import LoraSection
from gymfleet_trainer.distributed.ranks import Ranks
from gymfleet_trainer.errors import UnsupportedModel
from gymfleet_trainer.model.adapted_policy import AdaptedPolicy
from gymfleet_trainer.model.policy_model import PolicyModel
from gymfleet_trainer.model.reward_head import Reads, RewardModel
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.fixtures.small_models import MODEL_TYPES, save_small_model

WORKERS: Final = {"first": (0, 4), "middle": (1, 3), "last": (4, 5)}
"""Rank and number of all. No two are of as many: torch keeps what it found out of the group before."""

REWARDS: Final[list[tuple[str, Reads]]] = [("qwen3", "episode"), ("qwen3", "turns"), ("gemma2", "turns")]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of every family one, written before there are workers, of whom the first alone would write."""
    places = {name: tmp_path_factory.mktemp(name) for name in MODEL_TYPES}
    for name, place in places.items():
        save_small_model(name, place)
    return places


@pytest.fixture(params=WORKERS)
def ranks(request: pytest.FixtureRequest, models: dict[str, Path]) -> Iterator[Ranks]:
    """One of several workers; the others never speak."""
    rank, width = WORKERS[request.param]
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=width)
    yield Ranks()
    dist.destroy_process_group()


def own_rows(whole: Tensor, ranks: Ranks) -> Tensor:
    chunks = whole.chunk(ranks.width)
    return chunks[ranks.rank] if ranks.rank < len(chunks) else whole[:0]


def assert_is_its_part(part: PolicyModel, whole: PolicyModel, ranks: Ranks) -> None:
    """Also of what no file holds, such as tables of positions, and of what is tied."""
    expected = dict(whole.named_parameters())
    for name, parameter in part.named_parameters():
        assert isinstance(parameter, DTensor)
        assert torch.equal(parameter.to_local(), own_rows(expected[name], ranks)), name
        assert parameter.dtype == expected[name].dtype
        assert parameter.requires_grad == expected[name].requires_grad, name
        assert parameter.to_local().device.type == "cpu"
    assert [name for name, _ in part.named_parameters()] == list(expected), "what is tied counts once, as it did"
    buffers = dict(whole.named_buffers())
    assert {name for name, _ in part.named_buffers()} == set(buffers)
    for name, buffer in part.named_buffers():
        assert torch.equal(buffer, buffers[name]), name
    assert part.training == whole.training


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_worker_has_its_rows_of_what_one_worker_has(model_type: str, ranks: Ranks, models: dict[str, Path]) -> None:
    part = PolicyModel.from_pretrained(models[model_type], ranks=ranks)

    whole = PolicyModel.from_pretrained(models[model_type])
    assert_is_its_part(part, whole, ranks)
    assert part.hf.generation_config == whole.hf.generation_config
    assert part.hf.config.to_diff_dict() == whole.hf.config.to_diff_dict()


@pytest.mark.parametrize("ranks", ["middle"], indirect=True)
@pytest.mark.parametrize("masters", [torch.bfloat16, torch.float64])
def test_in_another_dtype(masters: torch.dtype, ranks: Ranks, tiny_model: Path) -> None:
    part = PolicyModel.from_pretrained(tiny_model, masters=masters, ranks=ranks, frozen=True)

    assert_is_its_part(part, PolicyModel.from_pretrained(tiny_model, masters=masters, frozen=True), ranks)


def test_adapters_begin_as_those_of_one_worker(ranks: Ranks, tiny_model: Path) -> None:
    section = LoraSection(rank=3, target_modules=("q_proj", "down_proj"))

    part = AdaptedPolicy.adapting(tiny_model, section, seed=5, ranks=ranks)

    whole = AdaptedPolicy.adapting(tiny_model, section, seed=5)
    assert any(value.any() for name, value in whole.named_parameters() if "lora_A" in name)
    assert_is_its_part(part, whole, ranks)


@pytest.fixture(scope="module")
def rewards(tmp_path_factory: pytest.TempPathFactory, models: dict[str, Path]) -> dict[tuple[str, Reads], Path]:
    """Reward models with random heads, written before there are workers."""
    places = {}
    for name, reads in REWARDS:
        model = RewardModel(PolicyModel.from_pretrained(models[name]), reads)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        places[name, reads] = tmp_path_factory.mktemp(f"{name}-{reads}")
        model.save_pretrained(places[name, reads])
    return places


@pytest.mark.parametrize(("model_type", "reads"), REWARDS)
def test_a_worker_reads_its_rows_of_a_reward_model(
    model_type: str,
    reads: Reads,
    rewards: dict[tuple[str, Reads], Path],
    ranks: Ranks,
    models: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = RewardModel(PolicyModel.from_pretrained(models[model_type], ranks=ranks), reads)
    opened = transformers.modeling_utils.safe_open
    monkeypatch.setattr(
        transformers.modeling_utils, "safe_open", lambda *args, **kwargs: Counted(opened(*args, **kwargs))
    )

    part.load_pretrained(rewards[model_type, reads])

    whole = RewardModel(PolicyModel.from_pretrained(models[model_type]), reads)
    monkeypatch.undo()
    whole.load_pretrained(rewards[model_type, reads])
    assert whole.hf.score.weight.any()
    expected = dict(whole.named_parameters())
    assert [name for name, _ in part.named_parameters()] == list(expected)
    for name, parameter in part.named_parameters():
        assert isinstance(parameter, DTensor)
        assert torch.equal(parameter.to_local(), own_rows(expected[name], ranks)), name
        assert (parameter.dtype, parameter.requires_grad) == (torch.float32, True), name
    for (name, buffer), other in zip(part.named_buffers(), whole.buffers(), strict=True):
        assert torch.equal(buffer, other), name


class Counted:
    """A file of weights that counts what is read of it."""

    num_bytes = 0

    def __init__(self, opened: Any) -> None:
        self._opened = opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.__exit__(*error)

    def get_tensor(self, name: str) -> Tensor:
        raise AssertionError(f"{name} is read whole")

    def get_slice(self, name: str) -> "CountedSlice":
        return CountedSlice(self._opened.get_slice(name))


class CountedSlice:
    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    def __getitem__(self, place: Any) -> Tensor:
        read: Tensor = self._rows[place]
        Counted.num_bytes += read.nbytes
        return read


@pytest.mark.parametrize("model_type", ["llama", "qwen3_moe"])
def test_it_reads_no_other_rows(
    model_type: str, ranks: Ranks, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = transformers.modeling_utils.safe_open
    monkeypatch.setattr(
        transformers.modeling_utils, "safe_open", lambda *given, **options: Counted(opened(*given, **options))
    )
    Counted.num_bytes = 0

    part = PolicyModel.from_pretrained(models[model_type], ranks=ranks)

    # Experts are one tensor here, and several in the files: whole experts are read.
    assert Counted.num_bytes == sum(
        value.to_local().nbytes for value in part.parameters() if isinstance(value, DTensor)
    )


@pytest.mark.parametrize("workers", [None, 1])
@pytest.mark.parametrize(
    ("rows", "told"),
    [
        pytest.param(0, "its files have no {name}, which its config has", id="none"),
        pytest.param(5, "{name} is (5, 128) in its files and (64, 128) by its config", id="another"),
    ],
)
def test_files_of_another_model_are_refused(
    rows: int, told: str, workers: int | None, tiny_model: Path, tmp_path: Path
) -> None:
    weights = load_file(tiny_model / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    weight = weights.pop(name)
    (tmp_path / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    save_file({**weights, **({name: weight[:rows]} if rows else {})}, tmp_path / "model.safetensors")
    ranks = Ranks.alone() if workers else None

    with pytest.raises(UnsupportedModel, match=re.escape(told.format(name=name))):
        PolicyModel.from_pretrained(tmp_path, ranks=ranks)

    if workers:
        dist.destroy_process_group()
