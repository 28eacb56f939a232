"""Adapters against peft's own model, numbers worked out by hand, and the same update of a whole layer."""

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gymfleet_contracts.recipe import RecipeError
from gymfleet_contracts.recipe_sections import LoraSection
from gymfleet_trainer.errors import RunDirectoryError
from gymfleet_trainer.learning.checkpoint_files import write_kept
from gymfleet_trainer.model import adapted_policy
from gymfleet_trainer.model.adapted_policy import AdaptedPolicy
from gymfleet_trainer.model.adapters import (
    POLICY,
    REFERENCE,
    AdaptedLinear,
    adapted_layers,
    adapter_tensors,
    applied,
    merged_weight,
    require_modules,
)
from gymfleet_trainer.model.batching import TrainSequence, pack
from gymfleet_trainer.model.critic import ValueModel
from gymfleet_trainer.model.families import decoder_of
from gymfleet_trainer.model.optimizer import OptimizerOptions, build_optimizer
from gymfleet_trainer.model.policy_model import PolicyModel
from gymfleet_trainer.model.reward_head import RewardModel
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from tests.fixtures.small_models import save_small_model
from tests.fixtures.train_sequences import random_sequences
from tests.models import build_tiny_model

SECTION = LoraSection(rank=4, alpha=8.0)


@pytest.fixture(scope="module", params=[False, True], ids=["head of its own", "tied head"])
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"), tie_embeddings=request.param, seed=0)


@pytest.fixture
def policy(model_dir: Path) -> AdaptedPolicy:
    return moved(AdaptedPolicy.adapting(model_dir, SECTION, seed=3))


def moved(policy: AdaptedPolicy, seed: int = 5) -> AdaptedPolicy:
    """The policy with an adapter that adds much, as after training."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in adapter_tensors(policy.hf).items():
            if ".lora_B." in name:
                value.copy_(0.2 * torch.randn(value.shape, generator=generator))
    return policy


def sequences(policy: PolicyModel) -> list[TrainSequence]:
    return random_sequences(policy.config.vocab_size, groups=2, samples=2)


def logprobs(policy: Any, given: list[TrainSequence]) -> Tensor:
    (batch,) = pack(given, 100_000)
    with torch.no_grad():
        return torch.as_tensor(policy.token_logprobs(batch).logprobs)[batch.loss_mask]


def by_transformers(model: Any, given: list[TrainSequence]) -> Tensor:
    found = []
    for sequence in given:
        ids = torch.tensor([sequence.token_ids])
        with torch.no_grad():
            table = model(ids).logits[0].log_softmax(-1)[:-1]
        mask = torch.tensor(sequence.loss_mask)[1:]
        found.append(table.gather(-1, ids[0, 1:, None])[mask, 0])
    return torch.cat(found)


def test_what_a_layer_adds_by_hand() -> None:
    config = LoraConfig(r=1, lora_alpha=6)
    base = nn.Linear(2, 2, bias=False)
    base.weight.data = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    layer = AdaptedLinear(base, POLICY, config=config, r=1, lora_alpha=6)
    layer.update_layer(REFERENCE, 1, lora_alpha=6, config=config)
    for adapter, scale in ((POLICY, 1.0), (REFERENCE, 10.0)):
        layer.lora_A[adapter].weight.data = torch.tensor([[1.0, -1.0]])
        layer.lora_B[adapter].weight.data = scale * torch.tensor([[0.5], [2.0]])
    given = torch.tensor([[3.0, 1.0]])  # W x = (5, 13), A x = 2, B A x = (1, 4), times alpha / r = 6

    assert layer(given).tolist() == [[11.0, 37.0]]
    with applied(None):
        assert layer(given).tolist() == [[5.0, 13.0]]
        with applied(REFERENCE):
            assert layer(given).tolist() == [[65.0, 253.0]]
        assert layer(given).tolist() == [[5.0, 13.0]]
    assert layer(given).tolist() == [[11.0, 37.0]]
    assert merged_weight(layer).tolist() == [[4.0, -1.0], [15.0, -8.0]]


def test_it_begins_as_the_model_is_and_as_the_seed_says(model_dir: Path) -> None:
    policy, again, other = (AdaptedPolicy.adapting(model_dir, SECTION, seed=seed) for seed in (3, 3, 4))
    given = sequences(policy)

    assert torch.equal(logprobs(policy, given), logprobs(PolicyModel.from_pretrained(model_dir), given))
    first, same, different = (adapter_tensors(one.hf) for one in (policy, again, other))
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert any(not torch.equal(first[name], different[name]) for name in first)
    assert {value.dtype for value in first.values()} == {torch.float32}


def test_only_the_policys_adapter_is_trained(policy: AdaptedPolicy) -> None:
    trained = {id(one) for one in policy.parameters() if one.requires_grad}
    assert trained == {id(one) for one in adapter_tensors(policy.hf).values()}
    # 7 linear layers in each of 2: q and k and v and o (64, 64, 32, 32), and three between 64 and 128.
    shapes = [(64, 64), (64, 32), (64, 32), (64, 64), (64, 128), (64, 128), (128, 64)]
    assert sum(one.numel() for one in policy.parameters() if one.requires_grad) == 2 * 4 * sum(map(sum, shapes))

    before = {name: value.clone() for name, value in policy.named_parameters()}
    optimizer = build_optimizer(policy, OptimizerOptions(learning_rate=1e-2), 1)
    (batch,) = pack(sequences(policy), 100_000)
    policy.token_logprobs(batch).logprobs.sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()

    changed = {name for name, value in policy.named_parameters() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if f".{POLICY}." in name}


def test_gradients_are_those_of_peft(model_dir: Path, policy: AdaptedPolicy, tmp_path: Path) -> None:
    policy.save_adapter(tmp_path / "adapter")
    theirs = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(str(model_dir)), str(tmp_path / "adapter"), is_trainable=True
    )
    given = sequences(policy)
    (batch,) = pack(given, 100_000)
    policy.token_logprobs(batch).logprobs.square().sum().backward()  # type: ignore[no-untyped-call]
    for sequence in given:
        ids = torch.tensor([sequence.token_ids])
        table = theirs(ids).logits[0].log_softmax(-1)[:-1]
        table.gather(-1, ids[0, 1:, None])[torch.tensor(sequence.loss_mask)[1:], 0].square().sum().backward()

    wanted = {name: value.grad for name, value in theirs.named_parameters() if value.grad is not None}
    ours = {name.replace(".weight", f".{POLICY}.weight"): one.grad for name, one in adapter_tensors(policy.hf).items()}
    assert ours.keys() == wanted.keys()
    for name, grad in ours.items():
        assert grad is not None
        assert (grad - wanted[name]).abs().max() <= 2e-5 * wanted[name].abs().max(), name


def test_peft_and_transformers_load_what_is_saved(model_dir: Path, policy: AdaptedPolicy, tmp_path: Path) -> None:
    given = sequences(policy)
    expected = logprobs(policy, given)
    assert (expected - logprobs(PolicyModel.from_pretrained(model_dir), given)).abs().mean() > 0.05

    policy.save_adapter(tmp_path / "adapter")
    policy.save_pretrained(tmp_path / "merged")

    base = AutoModelForCausalLM.from_pretrained(str(model_dir))
    adapted = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    assert torch.allclose(by_transformers(adapted, given), expected, atol=1e-4)
    merged = AutoModelForCausalLM.from_pretrained(str(tmp_path / "merged"))
    assert torch.allclose(by_transformers(merged, given), expected, atol=1e-4)
    theirs = adapted.merge_and_unload().state_dict()
    assert theirs.keys() == merged.state_dict().keys()
    for name, value in merged.state_dict().items():
        assert torch.allclose(value, theirs[name], atol=1e-6), name
    files = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert files == {"adapter_config.json", "adapter_model.safetensors"}
    assert {path.name for path in (tmp_path / "merged").iterdir()} >= {"config.json", "model.safetensors"}


def test_layers_are_merged_one_after_the_other_as_they_are_written(
    policy: AdaptedPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Tensor]] = []
    held: list[int] = []

    def counted(layer: AdaptedLinear) -> Tensor:
        held.append(sum(one() is not None for one in made))
        merged = merged_weight(layer)
        made.append(weakref.ref(merged))
        return merged

    monkeypatch.setattr(adapted_policy, "merged_weight", counted)

    policy.save_pretrained(tmp_path / "merged")

    assert len(made) == len(adapted_layers(policy.hf))
    assert max(held) <= 1, "the last one, until its parts are written"
    found = load_file(tmp_path / "merged" / "model.safetensors")
    for name, layer in adapted_layers(policy.hf).items():
        assert torch.equal(found[f"{name}.weight"], merged_weight(layer)), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layers_beside_experts_are_merged_too(dtype: str, tmp_path: Path) -> None:
    source = save_small_model("qwen3_moe", tmp_path / "source")
    policy = moved(AdaptedPolicy.adapting(source, SECTION, seed=3, dtype=dtype))
    assert "experts" not in " ".join(adapted_layers(policy.hf))

    policy.save_pretrained(tmp_path / "merged")

    base, found = load_file(source / "model.safetensors"), load_file(tmp_path / "merged" / "model.safetensors")
    assert found.keys() == base.keys()
    layers = adapted_layers(policy.hf)
    for name, value in base.items():
        layer = layers.get(name.removesuffix(".weight"))
        expected = value.to(getattr(torch, dtype)).float() if layer is None else merged_weight(layer)
        assert torch.equal(found[name], expected), name
        assert layer is None or not torch.allclose(found[name], value.float(), atol=1e-3)


def test_an_adapter_is_published_in_the_engines_dtype(policy: AdaptedPolicy, tmp_path: Path) -> None:
    policy.save_adapter(tmp_path / "a", dtype=torch.bfloat16)

    found = load_file(tmp_path / "a" / "adapter_model.safetensors")
    assert {value.dtype for value in found.values()} == {torch.bfloat16}
    for name, value in adapter_tensors(policy.hf).items():
        assert torch.equal(found[name], value.to(torch.bfloat16))
        assert value.dtype == torch.float32
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["bias"]) == (4, 8.0, "none")


def test_it_is_loaded_again_or_begins_anew(model_dir: Path, policy: AdaptedPolicy, tmp_path: Path) -> None:
    given = sequences(policy)
    expected = logprobs(policy, given)
    (tmp_path / "model").mkdir()
    policy.save_adapter(tmp_path / "model" / "adapter")
    other = AdaptedPolicy.adapting(model_dir, SECTION, seed=9)

    other.load_adapter(tmp_path / "model")
    assert torch.equal(logprobs(other, given), expected)
    other.load_adapter(None)
    first = adapter_tensors(AdaptedPolicy.adapting(model_dir, SECTION, seed=9).hf)
    assert all(torch.equal(value, first[name]) for name, value in adapter_tensors(other.hf).items())


def test_an_adapter_of_another_rank_is_refused(model_dir: Path, policy: AdaptedPolicy, tmp_path: Path) -> None:
    AdaptedPolicy.adapting(model_dir, SECTION.model_copy(update={"rank": 2})).save_adapter(tmp_path / "two")

    with pytest.raises(RunDirectoryError, match="of another model, rank or choice of layers"):
        policy.load_adapter(tmp_path / "two")
    with pytest.raises(RunDirectoryError, match="holds no adapter that can be read"):
        policy.load_adapter(tmp_path)


def test_a_reference_is_the_policy_at_its_start_without_a_copy_of_the_weights(model_dir: Path, tmp_path: Path) -> None:
    policy = AdaptedPolicy.adapting(model_dir, SECTION, seed=3)
    given = sequences(policy)
    plain = logprobs(policy, given)
    policy.save_adapter(tmp_path / "start")

    reference = policy.reference(tmp_path / "start")
    moved(policy)
    assert torch.equal(logprobs(reference, given), plain), "the base, with no adapter"
    assert reference._adapter is None

    reference.copy_weights(policy)
    now = logprobs(policy, given)
    moved(policy, seed=6)
    assert torch.equal(logprobs(reference, given), now), "a frozen copy of the adapter at the refresh"
    assert not torch.equal(logprobs(policy, given), now)

    write_kept({tmp_path / "refreshed": reference}, None)
    again = AdaptedPolicy.adapting(model_dir, SECTION, seed=3).reference(tmp_path / "refreshed")
    assert torch.equal(logprobs(again, given), now)


def test_policy_and_reference_in_one_loss_on_two_threads(policy: AdaptedPolicy) -> None:
    reference = policy.as_reference()
    moved(policy, seed=8)
    batches = [batch for one in sequences(policy) for batch in pack([one], 1000)] * 4
    alone = [
        (policy.token_logprobs(batch).logprobs.detach(), reference.token_logprobs(batch).logprobs) for batch in batches
    ]
    threads = policy.executor([one for one in policy.parameters() if one.requires_grad])
    threads.width = 2  # type: ignore[misc]

    def work(batch: Any) -> tuple[Tensor, Tensor]:
        return policy.token_logprobs(batch).logprobs.detach(), reference.token_logprobs(batch).logprobs

    for ours, expected in zip(threads.map(work, batches), alone, strict=True):
        assert torch.allclose(ours[0], expected[0], atol=1e-6)
        assert torch.allclose(ours[1], expected[1], atol=1e-6)


def test_activations_computed_anew_are_the_policys(model_dir: Path) -> None:
    """Also where the reference was asked in between."""
    found: list[list[Tensor]] = []
    for anew in (False, True):
        policy = moved(AdaptedPolicy.adapting(model_dir, SECTION, seed=3, gradient_checkpointing=anew))
        reference = policy.as_reference()
        moved(policy, seed=7)
        (batch,) = pack(sequences(policy), 100_000)
        logprobs = policy.token_logprobs(batch).logprobs
        gap = logprobs - reference.token_logprobs(batch).logprobs
        gap.square().sum().backward()  # type: ignore[no-untyped-call]
        found.append([value.grad for value in adapter_tensors(policy.hf).values() if value.grad is not None])

    assert len(found[0]) == len(found[1]) == 28
    for kept, computed in zip(*found, strict=True):
        assert (kept - computed).abs().max() <= 1e-5 * kept.abs().max()


@pytest.mark.parametrize("make", [ValueModel, lambda policy: RewardModel(policy, "episode")])
def test_models_of_their_own_begin_as_the_merged_policy(
    policy: AdaptedPolicy, tmp_path: Path, make: Callable[[PolicyModel], Any]
) -> None:
    policy.save_pretrained(tmp_path / "merged")
    merged = make(PolicyModel.from_pretrained(tmp_path / "merged"))

    ours = make(policy)

    given = merged.state_dict()
    assert ours.state_dict().keys() == given.keys()
    assert all(torch.allclose(value, given[name], atol=1e-6) for name, value in ours.state_dict().items())
    assert all(one.requires_grad for one in ours.parameters())


def test_dropout_is_for_updates_alone(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    policy = moved(AdaptedPolicy.adapting(model_dir, SECTION.model_copy(update={"dropout": 0.5}), seed=3))
    given = sequences(policy)
    (batch,) = pack(given, 100_000)

    assert torch.equal(logprobs(policy, given), logprobs(policy, given))
    one, other = (policy.token_logprobs(batch).logprobs.detach() for _ in range(2))
    assert not torch.equal(one, other)
    assert policy.executor([]).width == 1, "its masks are drawn in the order of the micro-batches"
    assert AdaptedPolicy.adapting(model_dir, SECTION).executor([]).width == 2
    assert torch.allclose(
        logprobs(policy, given), logprobs(moved(AdaptedPolicy.adapting(model_dir, SECTION, seed=3)), given), atol=1e-6
    )


def test_named_layers_alone_get_adapters(model_dir: Path) -> None:
    policy = AdaptedPolicy.adapting(model_dir, LoraSection(rank=1, target_modules=("self_attn.q_proj", "v_proj")))

    assert {name.rpartition(".")[2] for name in adapted_layers(policy.hf)} == {"q_proj", "v_proj"}
    assert len(adapted_layers(policy.hf)) == 4


@pytest.mark.parametrize("model_type", ["gemma3", "qwen2_5_vl"])
def test_what_sees_images_gets_no_adapters_though_its_layers_are_called_alike(model_type: str, tmp_path: Path) -> None:
    source = save_small_model(model_type, tmp_path / "source")

    policy = AdaptedPolicy.adapting(source, SECTION)
    policy.save_adapter(tmp_path / "adapter")

    adapted = set(adapted_layers(policy.hf))
    layers = decoder_of(policy.hf).layers
    assert adapted == {
        name
        for name, module in policy.hf.named_modules()
        if any(module is layer for layer in adapted_layers(layers).values())
    }
    assert adapted
    base = AutoModelForImageTextToText.from_pretrained(source)
    assert set(peft_layers(PeftModel.from_pretrained(base, str(tmp_path / "adapter")))) == adapted


def peft_layers(model: Any) -> list[str]:
    base = model.base_model.model
    return [name for name, module in base.named_modules() if hasattr(module, "lora_A")]


@pytest.mark.parametrize("name", ["w_proj", "lm_head", "embed_tokens", "proj", "norm"])
def test_a_layer_that_the_model_has_not_got_is_named(model_dir: Path, name: str) -> None:
    section = LoraSection(target_modules=("q_proj", name))

    wanted = f"no linear layer {name}; it has down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
    with pytest.raises(RecipeError, match=wanted):
        AdaptedPolicy.adapting(model_dir, section)
    with pytest.raises(RecipeError, match=wanted):
        require_modules(str(model_dir), section)
    require_modules(str(model_dir), SECTION)


@pytest.mark.parametrize(
    ("trainer", "adapter", "weights", "adapters", "values"),
    [
        ("float32", "float32", torch.float32, torch.float32, torch.float32),
        ("bfloat16", "float32", torch.bfloat16, torch.float32, torch.float32),
        ("bfloat16", "bfloat16", torch.bfloat16, torch.bfloat16, torch.float32),
        ("float64", "float32", torch.float64, torch.float64, torch.float64),
    ],
)
def test_dtypes(
    model_dir: Path, trainer: str, adapter: Any, weights: torch.dtype, adapters: torch.dtype, values: torch.dtype
) -> None:
    section = SECTION.model_copy(update={"dtype": adapter})
    policy = moved(AdaptedPolicy.adapting(model_dir, section, dtype=trainer))
    (batch,) = pack(sequences(policy), 100_000, dtype=policy.dtype)

    output = policy.token_logprobs(batch).logprobs
    output.sum().backward()  # type: ignore[no-untyped-call]

    assert policy.hf.lm_head.weight.dtype == weights
    assert {value.dtype for value in adapter_tensors(policy.hf).values()} == {adapters}
    assert (output.dtype, policy.dtype) == (values, values)
    assert all(value.grad is not None for value in adapter_tensors(policy.hf).values())
