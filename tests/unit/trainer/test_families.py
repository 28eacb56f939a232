"""Every family that the trainer knows against transformers' own forward of each row, and what is refused by name."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from gymfleet_trainer.errors import UnsupportedModel
from gymfleet_trainer.model import trees
from gymfleet_trainer.model.batching import TrainSequence, pack
from gymfleet_trainer.model.families import FAMILIES, REFUSED, empty_model, examine, require_supported
from gymfleet_trainer.model.policy_model import PolicyModel
from torch import Tensor
from transformers import CONFIG_MAPPING

from tests.fixtures.small_models import MODEL_TYPES, VOCAB, WINDOW, config_of, save_small_model, small_model
from tests.fixtures.train_sequences import train_sequence

WHOLE: Final = 1 << 16
NEVER: Final = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rows() -> list[TrainSequence]:
    """Three rows that share 40 tokens, two of them 60, and one alone; all but one are longer than a window."""
    generator = torch.Generator().manual_seed(1)
    first, second, third, own = (
        torch.randint(9, VOCAB, (length,), generator=generator).tolist() for length in (40, 20, 30, WINDOW // 2)
    )
    tails = [torch.randint(9, VOCAB, (5,), generator=generator).tolist() for _ in range(3)]
    made = [[*first, *second, *tails[0]], [*first, *second, *tails[1]], [*first, *third, *tails[2]], own]
    return [
        train_sequence(tokens, "." * 8 + "x" * (len(tokens) - 8), name=f"run/g/{place}")
        for place, tokens in enumerate(made)
    ]


def one_by_one(model: Any, given: list[TrainSequence], temperature: float) -> list[Tensor]:
    """What transformers says of each row by itself, with its own attention and head."""
    found = []
    for one in given:
        tokens = torch.tensor(one.token_ids)
        logits = model(input_ids=tokens[None]).logits[0].float()
        logprobs = torch.log_softmax(logits[:-1] / temperature, -1).gather(-1, tokens[1:, None])[:, 0]
        found.append(torch.where(one.mask()[1:], logprobs, 0.0))
    return found


def packed(policy: PolicyModel, given: list[TrainSequence], temperature: float, *, shared: bool) -> list[Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        if not shared:
            patch.setattr(trees, "SHORTEST", NEVER)
        (batch,) = pack(given, WHOLE)
    assert (batch.shared is not None) == shared
    logprobs = policy.token_logprobs(batch, temperature=temperature).logprobs
    by_place = dict(zip(batch.indices, torch.split(logprobs, list(batch.lengths)), strict=True))
    return [by_place[place][1:] for place in range(len(given))]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_log_probabilities_and_gradients_are_those_of_transformers(model_type: str, tmp_path: Path) -> None:
    save_small_model(model_type, tmp_path)
    theirs, policy = small_model(model_type), PolicyModel.from_pretrained(tmp_path)
    given, temperature = rows(), 0.8

    expected = one_by_one(theirs, given, temperature)
    ways = {shared: packed(policy, given, temperature, shared=shared) for shared in (False, True)}

    assert float(torch.cat(expected).detach().std()) > 0.3, "a model that says nothing would agree with anything"
    for found in ways.values():
        for actual, wanted in zip(found, expected, strict=True):
            assert torch.allclose(actual, wanted, atol=1e-5, rtol=0), float((actual - wanted).detach().abs().max())
    parts = [name for name, parameter in policy.hf.named_parameters() if parameter.requires_grad]
    own = torch.autograd.grad(_loss(ways[True]), [p for p in policy.parameters() if p.requires_grad], allow_unused=True)
    others = dict(theirs.named_parameters())
    wanted_grads = torch.autograd.grad(_loss(expected), [others[name] for name in parts], allow_unused=True)
    assert len(parts) > 10
    for name, actual_grad, wanted_grad in zip(parts, own, wanted_grads, strict=True):
        assert (actual_grad is None) == (wanted_grad is None), name
        if actual_grad is not None and wanted_grad is not None:
            assert torch.allclose(actual_grad, wanted_grad, atol=1e-4, rtol=1e-3), name


def _loss(logprobs: list[Tensor]) -> Tensor:
    together = torch.cat(logprobs)
    return (together * torch.linspace(-1.0, 2.0, len(together))).mean()


# --- what is refused

QWEN3: Final[dict[str, Any]] = {"model_type": "qwen3"}
REFUSED_BY: Final = {
    "weights that are quantised": {**QWEN3, "quantization_config": {"quant_method": "gptq", "bits": 4}},
    "an encoder": {"model_type": "t5"},
    "layers with a recurrent state": {"model_type": "qwen3_next"},
    "attention in chunks": {"model_type": "llama4_text"},
    "attention sinks": {"model_type": "gpt_oss"},
    "attention to what an indexer chose": {"model_type": "deepseek_v32"},
    "attention to later tokens": {"model_type": "gemma3_text", "use_bidirectional_attention": True},
    "noise in its routers": {"model_type": "mixtral", "router_jitter_noise": 0.1},
    "a head with a bias": {"model_type": "phi", "num_hidden_layers": 1, "hidden_size": 64},
    "no `lm_head`, or a decoder without": {"model_type": "gpt2", "n_layer": 1, "n_embd": 48},
}  # fmt: skip


def written(directory: Path, config: dict[str, Any]) -> Path:
    made = CONFIG_MAPPING[config["model_type"]](**{key: value for key, value in config.items() if key != "model_type"})
    made.save_pretrained(directory)
    return directory


@pytest.mark.parametrize(("reason", "config"), REFUSED_BY.items(), ids=REFUSED_BY)
def test_what_the_trainer_lacks_is_refused_by_name(reason: str, config: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel) as refused:
        examine(written(tmp_path, config), context=64)

    message = str(refused.value)
    assert message.startswith(f"{tmp_path} cannot be trained: it has {reason}")
    assert "\n" not in message


def test_every_refusal_has_its_test() -> None:
    assert all(any(one.what.startswith(reason) for reason in REFUSED_BY) for one in REFUSED)
    assert len(REFUSED) == len(REFUSED_BY)


@pytest.mark.parametrize(
    "model_type", ["qwen3_5_text", "mamba", "nemotron_h", "jamba", "granitemoehybrid", "lfm2", "minimax", "falcon_h1"]
)
def test_layers_with_a_state_are_found_in_the_configs_of_many(model_type: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="layers with a recurrent state"):
        examine(written(tmp_path, {"model_type": model_type}), context=64)


def test_sinks_are_found_in_the_layers_of_a_model_whose_config_does_not_tell() -> None:
    model = empty_model(config_of("qwen3"))
    require_supported(model)
    model.model.layers[0].self_attn.sinks = torch.nn.Parameter(torch.zeros(4))

    with pytest.raises(UnsupportedModel, match="attention sinks"):
        require_supported(model)


def test_a_family_that_was_never_compared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"the family 'stablelm' was never compared .* known: cohere, .*qwen3"):
        examine(written(tmp_path, {"model_type": "stablelm"}), context=64)


@pytest.mark.parametrize("given", [None, "{}", '{"model_type": "no-such"}', "nonsense"])
def test_what_is_no_model_is_said_in_one_line(given: str | None, tmp_path: Path) -> None:
    if given is not None:
        (tmp_path / "config.json").write_text(given)

    with pytest.raises(UnsupportedModel, match="transformers reads no config of a model there") as refused:
        examine(tmp_path, context=64)

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("path", ["/none", "./none", "../none", "~/none", "models/of/none"])
def test_a_path_that_leads_nowhere_is_taken_for_no_hub_id(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UnsupportedModel, match=f"^no model directory at {path}$"):
        examine(path, context=64)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden_size": "wide"}, "reads no config of a model there: .*'hidden_size'"),
        ({"layer_types": ["full_attention"]}, "reads no config of a model there: .*`layer_types`"),
        ({"dtype": "float99"}, "reads no config of a model there: .*float99"),
        ({"auto_map": {"AutoConfig": "x.Y"}, "model_type": "own"}, "reads no config of a model there: .*custom code"),
        ({"hidden_act": "no-such"}, "cannot be trained: transformers makes no model of its config: .*no-such"),
        ({"num_key_value_heads": 0}, "cannot be trained: transformers makes no model of its config"),
    ],
)
def test_a_config_with_a_fault_is_said_in_one_line(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of("llama").to_dict() | change))

    with pytest.raises(UnsupportedModel, match=reason) as refused:
        examine(tmp_path, context=64)

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("alone", [True, False])
def test_an_adapter_is_no_model_even_beside_one(alone: bool, tmp_path: Path) -> None:
    """Given such a directory, transformers would load the adapter's base model, wherever that is."""
    if not alone:
        save_small_model("qwen3", tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "elsewhere"}))

    for read in (partial(examine, context=64), PolicyModel.from_pretrained):
        with pytest.raises(UnsupportedModel, match=r"holds an adapter .*: merge it into its base model"):
            read(tmp_path)


def test_positions_that_depend_on_the_length_are_refused_beyond_the_trained_length(tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
    config = config_of("phi3").to_dict() | {
        "rope_parameters": {**rope, "original_max_position_embeddings": 128, "partial_rotary_factor": 1.0},
        "original_max_position_embeddings": 128,
    }
    written(tmp_path, config)

    examine(tmp_path, context=128)
    with pytest.raises(UnsupportedModel, match=r"\(longrope\) .* more than 128 tokens.* to at most 128, not 129"):
        examine(tmp_path, context=129)


def test_a_policy_is_checked_where_it_is_loaded(tmp_path: Path) -> None:
    model = small_model("qwen3")
    model.config.router_jitter_noise = 0.1
    model.save_pretrained(tmp_path)

    with pytest.raises(UnsupportedModel, match="noise in its routers"):
        PolicyModel.from_pretrained(tmp_path)


def test_what_sees_images_is_neither_trained_nor_changed(tmp_path: Path) -> None:
    save_small_model("gemma3", tmp_path / "source")
    policy = PolicyModel.from_pretrained(tmp_path / "source")

    trained = {name.split(".")[1] for name, one in policy.hf.named_parameters() if one.requires_grad}
    policy.save_pretrained(tmp_path / "saved")

    assert trained == {"language_model"}, "its head is tied"
    assert policy.config.vocab_size == VOCAB
    assert not any(
        one.requires_grad for one in PolicyModel.from_pretrained(tmp_path / "saved", frozen=True).parameters()
    )


def test_every_family_stands_once() -> None:
    assert len({family.model_type for family in FAMILIES}) == len(FAMILIES)
