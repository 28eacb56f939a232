"""The policy against transformers' own forward pass, one sequence at a time."""

import copy
import json
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
from gymfleet_contracts.recipe import RecipeError
from gymfleet_contracts.recipe_sections import LoraSection
from gymfleet_trainer.model import policy_model
from gymfleet_trainer.model.adapted_policy import AdaptedPolicy
from gymfleet_trainer.model.batching import PackedBatch, TrainSequence, pack
from gymfleet_trainer.model.critic import ValueModel
from gymfleet_trainer.model.policy_model import PolicyModel, selected_logprobs
from gymfleet_trainer.model.recast import RecastLinear
from gymfleet_trainer.model.reward_head import RewardModel
from gymfleet_trainer.model.streaming import streamed
from gymfleet_trainer.model.weight_files import write_config, write_weights
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from tests.fixtures.small_models import save_small_model
from tests.fixtures.train_sequences import random_sequences
from tests.models import build_tiny_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"), tie_embeddings=False, seed=0)


def sequences_for(model: PolicyModel) -> list[TrainSequence]:
    return random_sequences(model.config.vocab_size, groups=2, samples=3)


def one_by_one(model: Any, sequence: TrainSequence, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of the trained tokens, by transformers."""
    ids = torch.tensor([sequence.token_ids])
    logprobs = (model(ids).logits[0] / temperature).log_softmax(-1)[:-1]
    mask = torch.tensor(sequence.loss_mask)[1:]
    return logprobs.gather(-1, ids[0, 1:, None])[mask, 0], -(logprobs.exp() * logprobs).sum(-1)[mask]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_packed_equals_one_by_one_with_gradients(model_dir: Path, temperature: float) -> None:
    model = PolicyModel.from_pretrained(model_dir)
    plain = AutoModelForCausalLM.from_pretrained(str(model_dir))
    sequences = sequences_for(model)
    batches = pack(sequences, 90)
    assert len(batches) > 1

    expected_loss = torch.zeros(())
    expected = {index: one_by_one(plain, sequence, temperature) for index, sequence in enumerate(sequences)}
    for logprobs, entropy in expected.values():
        expected_loss = expected_loss + (logprobs.square() + 0.3 * entropy).sum()
    expected_loss.backward()  # type: ignore[no-untyped-call]
    for batch in batches:
        output = model.token_logprobs(batch, temperature=temperature, with_entropy=True)
        assert output.entropy is not None
        for place, index in enumerate(batch.indices):
            begin, end = batch.cu_seqlens[place : place + 2].tolist()
            chosen = batch.loss_mask.clone()
            chosen[:begin] = chosen[end:] = False
            assert torch.allclose(output.logprobs[chosen], expected[index][0], atol=1e-5)
            assert torch.allclose(output.entropy[chosen], expected[index][1], atol=1e-5)
        assert not output.logprobs[~batch.loss_mask].any()
        (output.logprobs.square() + 0.3 * output.entropy).sum().backward()  # type: ignore[no-untyped-call]

    grads = {name: parameter.grad for name, parameter in plain.named_parameters()}
    for name, parameter in model.hf.named_parameters():
        assert parameter.grad is not None, name
        # Float32 rounds in proportion to the sums' largest terms, in another order on every CPU.
        assert (parameter.grad - grads[name]).abs().max() <= 1e-5 * grads[name].abs().max(), name


def test_chunks_of_the_head_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(13, 6, generator=generator), torch.randn(11, 6, generator=generator)
    targets = torch.randint(11, (13,), generator=generator)
    slope = torch.randn(13, generator=generator)

    def run() -> list[Tensor]:
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        logprobs, entropy = selected_logprobs(h, w, targets, temperature=0.7, with_entropy=True)
        assert entropy is not None
        return [logprobs, entropy, *torch.autograd.grad((logprobs * slope + entropy * slope.flip(0)).sum(), [h, w])]

    whole = run()
    monkeypatch.setitem(policy_model.MAX_LOGITS, "cpu", 4 * 11)
    chunked = run()

    for one, other in zip(whole, chunked, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0)])
def test_the_heads_gradient_is_right(weights: tuple[float, float], softcap: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(5, 4, generator=generator, requires_grad=True)
    weight = torch.randn(7, 4, generator=generator, requires_grad=True)
    targets = torch.randint(7, (5,), generator=generator)
    logits = hidden @ weight.T
    plain = ((logits if softcap is None else softcap * torch.tanh(logits / softcap)) / 0.7).log_softmax(-1)
    parts = plain.gather(-1, targets[:, None]).square().sum(), (plain.exp() * plain).sum(-1).square().sum()
    loss = sum((share * part for share, part in zip(weights, parts, strict=True)), torch.zeros(()))
    wanted = torch.autograd.grad(loss, [hidden, weight])

    logprobs, entropy = selected_logprobs(hidden, weight, targets, temperature=0.7, softcap=softcap, with_entropy=True)
    assert entropy is not None
    used = [(share, part) for share, part in zip(weights, (logprobs, entropy), strict=True) if share]
    ours = sum((share * part.square().sum() for share, part in used), torch.zeros(()))

    for actual, expected in zip(torch.autograd.grad(ours, [hidden, weight]), wanted, strict=True):
        assert torch.allclose(actual, expected, atol=1e-5)


def test_greedy_sampling_has_no_log_probabilities() -> None:
    with pytest.raises(ValueError, match="temperature must be above 0"):
        selected_logprobs(torch.ones(1, 2), torch.ones(3, 2), torch.zeros(1, dtype=torch.int64), temperature=0.0)


def test_a_batch_without_a_trained_token_gives_zeros(model_dir: Path) -> None:
    model = PolicyModel.from_pretrained(model_dir)
    sequence = sequences_for(model)[0]
    sequence = replace(sequence, loss_mask=[True] + [False] * (len(sequence.token_ids) - 1))

    (batch,) = pack([sequence], 1000)
    output = model.token_logprobs(batch, with_entropy=True)

    assert output.logprobs.tolist() == [0.0] * batch.num_tokens
    output.logprobs.sum().backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_saved_weights_are_those_that_transformers_loads(tmp_path: Path, tie_embeddings: bool) -> None:
    source = build_tiny_model(tmp_path / "source", tie_embeddings=tie_embeddings, seed=3)
    model = PolicyModel.from_pretrained(source)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)

    model.save_pretrained(tmp_path / "saved")

    loaded = AutoModelForCausalLM.from_pretrained(str(tmp_path / "saved"))
    assert loaded.config.tie_word_embeddings is tie_embeddings
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) is tie_embeddings
    for name, parameter in model.hf.named_parameters():
        assert torch.equal(parameter, dict(loaded.named_parameters())[name]), name
        assert parameter.dtype == torch.float32


def test_a_frozen_copy_stays_where_it_was(model_dir: Path) -> None:
    model = PolicyModel.from_pretrained(model_dir)
    (batch, *_) = pack(sequences_for(model), 200)
    copy = model.frozen_copy()
    before = copy.token_logprobs(batch).logprobs
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)

    assert torch.equal(copy.token_logprobs(batch).logprobs, before)
    assert not torch.allclose(model.token_logprobs(batch).logprobs, before)
    assert not any(parameter.requires_grad for parameter in copy.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


def grads_of(model: PolicyModel, batch: PackedBatch) -> list[Tensor]:
    model.zero_grad()
    model.token_logprobs(batch).logprobs.sum().backward()  # type: ignore[no-untyped-call]
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def test_gradient_checkpointing_changes_nothing(model_dir: Path) -> None:
    plain = PolicyModel.from_pretrained(model_dir)
    saving = PolicyModel.from_pretrained(model_dir, gradient_checkpointing=True)
    (batch, *_) = pack(sequences_for(plain), 200)

    for one, other in zip(grads_of(plain, batch), grads_of(saving, batch), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def compiled_with(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """`aot_eager` traces as the default backend does, and generates no code, which takes most of the time."""
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend=backend))


@pytest.mark.filterwarnings("ignore")  # of torch, about what its compiler does
@pytest.mark.parametrize(
    ("backend", "dtype"),
    [("aot_eager", "float32"), pytest.param("inductor", "bfloat16", marks=pytest.mark.long)],
)
def test_compiled_layers_compute_the_same_and_are_compiled_once_for_all_lengths(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, backend: str, dtype: str
) -> None:
    compiled_with(monkeypatch, backend)
    plain = PolicyModel.from_pretrained(model_dir, dtype=dtype)
    compiled = PolicyModel.from_pretrained(model_dir, dtype=dtype, compiled=True, gradient_checkpointing=True)
    batches = [batch for limit in (90, 200) for batch in pack(sequences_for(plain), limit)]
    assert len({batch.num_tokens for batch in batches}) > 2

    graphs = []
    for batch in batches:
        expected, gradients = plain.token_logprobs(batch).logprobs, grads_of(plain, batch)
        exact = dtype == "float32"
        torch.testing.assert_close(
            compiled.token_logprobs(batch).logprobs, expected, atol=1e-5 if exact else 0.1, rtol=0
        )
        for one, other in zip(grads_of(compiled, batch), gradients, strict=True):
            largest = float(other.abs().max())
            torch.testing.assert_close(one, other, atol=(1e-5 if exact else 0.1) * largest, rtol=1e-4 if exact else 0.1)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])

    assert graphs[0] > 0, "nothing was compiled"
    assert graphs == graphs[:1] * len(batches), "a batch of another length was compiled anew"


def test_what_is_made_from_a_compiled_policy_is_compiled_too(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_with(monkeypatch, "aot_eager")
    policy = PolicyModel.from_pretrained(model_dir, compiled=True)
    section = LoraSection(rank=2)
    bodies = {
        "critic": ValueModel(policy).body,
        "reward model": RewardModel(policy, "turns").hf.model,
        "reference": policy.frozen_copy().body,
        "adapted": AdaptedPolicy.adapting(model_dir, section, compiled=True).body,
    }

    for name, body in bodies.items():
        assert all(layer._compiled_call_impl is not None for layer in body.layers), name
    plain = PolicyModel.from_pretrained(model_dir)
    for body in (plain.body, ValueModel(plain).body, plain.frozen_copy().body):
        assert all(layer._compiled_call_impl is None for layer in body.layers)


def test_without_a_compiler_nothing_begins(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")

    with pytest.raises(RecipeError, match=r"trainer\.compile needs a C\+\+ compiler, and there is no no-such-compiler"):
        PolicyModel.from_pretrained(model_dir, compiled=True)


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_weights(model_dir: Path) -> None:
    exact = PolicyModel.from_pretrained(model_dir)
    mixed = PolicyModel.from_pretrained(model_dir, dtype="bfloat16")
    (batch, *_) = pack(sequences_for(exact), 200)

    products: list[torch.dtype] = []

    def note(_: Any, __: Any, output: Tensor) -> None:
        assert not torch.is_autocast_cache_enabled(), "it would keep copies of all weights"
        products.append(output.dtype)

    for layer in mixed.hf.model.layers:
        layer.self_attn.q_proj.register_forward_hook(note)
        layer.mlp.down_proj.register_forward_hook(note)

    assert mixed.hidden_states(batch.inputs).dtype == torch.bfloat16
    assert products == [torch.bfloat16] * 2 * len(mixed.hf.model.layers)
    assert all(parameter.dtype == torch.float32 for parameter in mixed.parameters())
    difference = (exact.token_logprobs(batch).logprobs - mixed.token_logprobs(batch).logprobs).abs()
    assert 0 < difference[batch.loss_mask].mean() < 0.05
    assert all(grad.dtype == torch.float32 for grad in grads_of(mixed, batch))


def test_weights_in_bfloat16_are_computed_with_as_they_are(model_dir: Path) -> None:
    model = PolicyModel.from_pretrained(model_dir, dtype="bfloat16", masters=torch.bfloat16)
    (batch, *_) = pack(sequences_for(model), 200)

    assert (model.masters, model.dtype) == (torch.bfloat16, torch.float32)
    assert all(parameter.dtype == torch.bfloat16 for parameter in model.parameters())
    assert all(buffer.dtype == torch.float32 for buffer in model.buffers()), "positions are not rounded"
    assert model.token_logprobs(batch).logprobs.dtype == torch.float32
    assert all(grad.dtype == torch.bfloat16 for grad in grads_of(model, batch))


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_no_copy_of_a_weight_is_kept_for_the_backward_pass(model_dir: Path, gradient_checkpointing: bool) -> None:
    model = PolicyModel.from_pretrained(model_dir, dtype="bfloat16", gradient_checkpointing=gradient_checkpointing)
    (batch, *_) = pack(sequences_for(model), 200)
    shapes = {parameter.shape for parameter in model.parameters() if parameter.ndim == 2}
    assert (batch.num_tokens, model.config.hidden_size) not in shapes
    kept: list[torch.Size] = []

    def keep(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.bfloat16 and shapes & {tensor.shape, tensor.shape[::-1]}:
            kept.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.token_logprobs(batch)

    assert not kept


def test_rounded_weights_are_those_that_are_published(model_dir: Path, tmp_path: Path) -> None:
    model = PolicyModel.from_pretrained(model_dir)
    (batch, *_) = pack(sequences_for(model), 200)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.003)
    before = model.token_logprobs(batch).logprobs

    published_to = tmp_path / "published"
    published_to.mkdir()
    write_config(model.hf, published_to, torch.bfloat16)
    write_weights(published_to, streamed(model.hf, torch.bfloat16, None), 1 << 30, torch.bfloat16)
    with model.rounded(torch.bfloat16):
        rounded = model.token_logprobs(batch).logprobs

    published = PolicyModel.from_pretrained(published_to)
    stored = load_file(published_to / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.bfloat16}
    weights = sum(parameter.numel() for parameter in model.parameters())
    assert (published_to / "model.safetensors").stat().st_size < 2 * weights + 10_000
    assert published.config.dtype == torch.float32, "as it was asked for here"
    assert json.loads((published_to / "config.json").read_text())["dtype"] == "bfloat16"
    assert torch.equal(published.token_logprobs(batch).logprobs, rounded)
    assert not torch.allclose(before, rounded, atol=1e-5)
    assert torch.equal(model.token_logprobs(batch).logprobs, before), "the weights are again what they were"


@pytest.mark.parametrize("kind", ["qwen3", "gemma3_text", "qwen3_moe"])
def test_weights_that_are_cast_anyhow_are_not_rounded_beforehand(kind: str, tmp_path: Path) -> None:
    directory = save_small_model(kind, tmp_path)
    given = PolicyModel.from_pretrained(directory, dtype="bfloat16")
    with torch.no_grad():
        for parameter in given.parameters():
            parameter.mul_(1.003)
    (batch, *_) = pack(sequences_for(given), 200)
    by_hand = copy.deepcopy(given)
    with torch.no_grad():
        for parameter in by_hand.parameters():
            parameter.copy_(parameter.bfloat16())
    linears = [name for name, module in given.body.named_modules() if isinstance(module, RecastLinear)]
    places = {name: one.data_ptr() for name, one in given.body.named_parameters()}

    with given.rounded(torch.bfloat16):
        rounded = given.token_logprobs(batch).logprobs
        moved = {name for name, one in given.body.named_parameters() if one.data_ptr() != places[name]}
        changed = {id(one) for one in given.to_be_rounded(torch.bfloat16)}

    assert torch.equal(rounded, by_hand.token_logprobs(batch).logprobs)
    assert linears
    assert not moved & {f"{name}.weight" for name in linears}
    assert {"norm.weight", "embed_tokens.weight"} <= moved, "these compute with all that they have"
    assert changed == {id(one) for name, one in given.body.named_parameters() if name in moved}
    assert len(given.to_be_rounded(torch.float16)) == len([*given.parameters()]), "no layer casts to that"


def test_a_finer_dtype_rounds_nothing(model_dir: Path) -> None:
    model = PolicyModel.from_pretrained(model_dir)
    before = [parameter.data_ptr() for parameter in model.parameters()]

    with model.rounded(torch.float32):
        assert [parameter.data_ptr() for parameter in model.parameters()] == before
        (batch, *_) = pack(sequences_for(model), 200)
        assert model.token_logprobs(batch).logprobs.dtype == torch.float32
