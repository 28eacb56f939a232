"""The models that the trainer can compute: families compared with transformers, and features that it refuses by name.

The trainer has its own attention over packed tokens and its own head. A model that needs more than these support would
get other log-probabilities than the engine's, so it is refused before anything is played.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.utils import find_adapter_config_file

from gymfleet_trainer.errors import UnsupportedModel

_LISTED: Final = 3


@dataclass(frozen=True, slots=True)
class Family:
    """Models of one architecture; tests compare their log-probabilities with those of transformers."""

    name: str
    model_type: str
    """As in `config.json`."""
    computed: str = ""
    """Its features beyond Llama's layers, and how they are computed."""
    in_engine: bool = False
    """Whether tests also compare it with vLLM."""
    in_loop: bool = False
    """Whether a test plays, trains, publishes and plays again with it, with all services."""


FAMILIES: Final = (
    Family("Llama, SmolLM, Yi, DeepSeek-R1-Distill", "llama", "", True, True),
    Family("Mistral", "mistral", "sliding window (7B v0.1)", True),
    Family("Mixtral", "mixtral", "experts; sliding window"),
    Family("Ministral", "ministral", "sliding window by layer"),
    Family("Qwen2, Qwen2.5, QwQ", "qwen2", "biases of query, key and value", True),
    Family("Qwen2-MoE", "qwen2_moe", "experts, one of them shared"),
    Family("Qwen3", "qwen3", "norms of query and key", True, True),
    Family("Qwen3-MoE", "qwen3_moe", "experts; norms of query and key", True, True),
    Family("Gemma", "gemma", "scaled embeddings"),
    Family("Gemma 2", "gemma2", "scaled embeddings; soft-capped scores and logits; sliding window by layer", True),
    Family("Gemma 3, text", "gemma3_text", "scaled embeddings; sliding window by layer; norms of query and key", True),
    Family("Gemma 3, with vision", "gemma3", "as its text; what sees images is kept as it is"),
    Family("Phi-3, Phi-3.5, Phi-4", "phi3", "fused projections; partial rotation; sliding window", True),
    Family("Qwen2-VL", "qwen2_vl", "positions in three parts; what sees images is kept as it is"),
    Family("Qwen2.5-VL", "qwen2_5_vl", "as Qwen2-VL"),
    Family("Qwen3-VL", "qwen3_vl", "as Qwen2-VL; norms of query and key"),
    Family("StarCoder2", "starcoder2", "biases; sliding window"),
    Family("OLMo 2", "olmo2", "norms after the layers; norms of query and key"),
    Family("OLMo 3", "olmo3", "as OLMo 2; sliding window by layer"),
    Family("SmolLM3", "smollm3", "layers without rotation"),
    Family("Cohere (Command R)", "cohere", "scaled logits; attention beside the feed-forward layer"),
    Family("Cohere 2 (Command A)", "cohere2", "as Cohere; sliding window by layer; layers without rotation"),
    Family("Granite 3", "granite", "multipliers of embeddings, residuals, scores and logits"),
    Family("GLM-4", "glm4", "partial rotation; norms after the layers"),
    Family("Seed-OSS", "seed_oss", "biases"),
    Family("EXAONE 4", "exaone4", "norms of query and key; sliding window by layer; layers without rotation"),
    Family("Hunyuan", "hunyuan_v1_dense", "norms of query and key"),
    Family("ERNIE 4.5", "ernie4_5", ""),
)  # fmt: skip
_KNOWN: Final = frozenset(family.model_type for family in FAMILIES)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that a model may have and the trainer lacks."""

    what: str
    """Its name in the message, after `it has`."""
    example: str
    why: str
    of_config: Callable[[Any], bool] | None = None
    """Whether a text config has it."""
    of_model: Callable[[Any], bool] | None = None
    """Whether a model has it."""


def _layer_types(config: Any) -> set[str]:
    return set(getattr(config, "layer_types", None) or ()) | set(getattr(config, "layers_block_type", None) or ())


def _recurrent(config: Any) -> bool:
    words = ("linear", "mamba", "conv", "recurrent", "delta", "ssm", "lightning")
    known = ("mamba_d_state", "ssm_state_size", "state_size", "linear_num_key_heads", "conv_L_cache", "lru_width")
    return any(word in kind for kind in _layer_types(config) for word in words) or any(
        getattr(config, name, None) for name in known
    )


def _parameter_called(*names: str) -> Callable[[Any], bool]:
    return lambda model: any(set(name.split(".")) & set(names) for name, _ in model.named_parameters())


def _module_called(word: str) -> Callable[[Any], bool]:
    return lambda model: any(word in type(module).__name__ for module in model.modules())


REFUSED: Final = (
    Refusal(
        "weights that are quantised", "GPTQ, AWQ and FP8 files", "they cannot be trained: take the unquantised ones",
        of_config=lambda config: bool(getattr(config, "quantization_config", None)),
    ),
    Refusal(
        "an encoder", "T5, BART", "prompts are part of one sequence of tokens",
        of_config=lambda config: bool(getattr(config, "is_encoder_decoder", False)),
    ),
    Refusal(
        "layers with a recurrent state (linear attention, state-space models, convolutions)",
        "Qwen3-Next, Qwen3.5, Mamba, Nemotron-H, Jamba, Granite 4, LFM2, MiniMax",
        "their state would run on from one packed sequence into the next",
        of_config=_recurrent,
    ),
    Refusal(
        "attention in chunks", "Llama 4", "packed attention has sliding windows alone",
        of_config=lambda config: any("chunked" in kind for kind in _layer_types(config)),
    ),
    Refusal(
        "attention sinks", "gpt-oss, MiMo-V2-Flash", "packed attention has no sinks",
        of_config=lambda config: getattr(config, "model_type", "") in ("gpt_oss", "mimo_v2_flash"),
        of_model=_parameter_called("sinks", "sink", "attention_sink_bias"),
    ),
    Refusal(
        "attention to what an indexer chose", "DeepSeek-V3.2, GLM-5", "packed attention has no indexer",
        of_config=lambda config: bool(getattr(config, "index_topk", None)), of_model=_module_called("Indexer"),
    ),
    Refusal(
        "attention to later tokens", "EmbeddingGemma", "packed attention is causal",
        of_config=lambda config: getattr(config, "use_bidirectional_attention", False) is True
        or not getattr(config, "is_causal", True),
    ),
    Refusal(
        "noise in its routers", "Mixtral and PhiMoE with `router_jitter_noise`", "its sampler has none: set it to 0",
        of_config=lambda config: any(
            getattr(config, name, 0) for name in ("router_jitter_noise", "input_jitter_noise")
        ),
    ),
    Refusal(
        "a head with a bias", "Phi-1, Phi-2, GPT-J", "the trainer's head has none",
        of_model=lambda model: getattr(getattr(model, "lm_head", None), "bias", None) is not None,
    ),
    Refusal(
        "no `lm_head`, or a decoder without `embed_tokens` and `layers`", "GPT-2, BLOOM, Falcon, MPT",
        "the trainer calls these",
        of_model=lambda model: not (
            isinstance(getattr(model, "lm_head", None), nn.Linear)
            and all(hasattr(decoder_of(model), name) for name in ("embed_tokens", "layers"))
        ),
    ),
)  # fmt: skip


def decoder_of(model: Any) -> Any:
    """Return the part of a transformers model that turns tokens into hidden states, without the part for images."""
    body = getattr(model, "model", None)
    return getattr(body, "language_model", body)


def logit_scale(config: Any) -> float:
    """Return the factor with which a model multiplies its logits: Cohere has a factor, Granite a divisor."""
    return float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)


def model_class(source: str | Path) -> Any:
    """Return the class that loads the model of a directory or hub id as a model that writes text."""
    return _class_of(AutoConfig.from_pretrained(str(source)))


def is_of_text(config: Any) -> bool:
    """Return whether a config belongs to a model that reads only text, or has a text model's class all the same."""
    return type(config) in AutoModelForCausalLM._model_mapping  # noqa: SLF001 - there is no other way to ask


def _class_of(config: Any) -> Any:
    return AutoModelForCausalLM if is_of_text(config) else AutoModelForImageTextToText


def empty_model(
    config: Any, *, device: str = "meta", attention: str | None = None, dtype: torch.dtype = torch.float32
) -> Any:
    """Return a model of a config with fresh weights: on the meta device only layers and shapes, without memory."""
    with torch.device(device):
        return _class_of(config).from_config(config, attn_implementation=attention, dtype=dtype)


def config_of(source: str | Path) -> Any:
    """Return the config of a directory or hub id. Raises UnsupportedModel if there is none, or an adapter with it."""
    if not Path(source).is_dir() and (str(source).startswith(("/", ".", "~")) or str(source).count("/") > 1):
        raise UnsupportedModel(f"no model directory at {source}")  # transformers would say what hub ids look like
    try:
        require_no_adapter(source)
        return AutoConfig.from_pretrained(str(source), trust_remote_code=False)  # else it asks on a terminal
    except UnsupportedModel:
        raise
    except Exception as error:  # transformers checks little: most faults of a config raise where they are met
        raise UnsupportedModel(f"{source}: transformers reads no config of a model there: {_reason(error)}") from error


def require_no_adapter(source: str | Path) -> None:
    """Raise UnsupportedModel for a directory or hub id with an adapter, whose base model transformers would load.

    Raises OSError if there is no such directory or hub id.
    """
    if find_adapter_config_file(str(source)) is not None:
        raise UnsupportedModel(
            f"{source} holds an adapter (adapter_config.json): merge it into its base model, and name the merged one"
        )


def examine(source: str | Path, *, context: int) -> Any:
    """Return the model of a directory or hub id on the meta device, if the trainer can compute it.

    Args:
        source: the recipe's `model.path`.
        context: the longest sequence, in tokens.

    Raises:
        UnsupportedModel: the trainer cannot compute it, or there is no such model; the message names every reason.
    """
    config = config_of(source)
    _refuse(source, _faults_of_config(config, context))
    try:
        model = empty_model(config)
    except Exception as error:  # as in `config_of`
        known = config.model_type in _KNOWN
        told = f"transformers makes no model of its config: {_reason(error)}" if known else _unknown(config)
        raise UnsupportedModel(f"{source} cannot be trained: {told}") from error
    require_supported(model, source=str(source), context=context)
    return model


def require_supported(model: Any, *, source: str = "the model", context: int | None = None) -> None:
    """Raise UnsupportedModel for a transformers model, on any device, that the trainer cannot compute."""
    faults = list(_faults_of_config(model.config, context))
    faults += [_told(one) for one in REFUSED if one.of_model is not None and one.of_model(model)]
    if not faults and model.config.model_type not in _KNOWN:
        faults.append(_unknown(model.config))
    _refuse(source, faults)


def _reason(error: Exception) -> str:
    told = " ".join(str(error).split())
    return f"{type(error).__name__}: {told:.200}"


def _unknown(config: Any) -> str:
    known = ", ".join(sorted(_KNOWN))
    return f"the family {config.model_type!r} was never compared with transformers' own computation; known: {known}"


def _faults_of_config(config: Any, context: int | None) -> Iterator[str]:
    text = config.get_text_config()
    for one in REFUSED:
        if one.of_config is not None and any(one.of_config(part) for part in (config, text)):
            yield _told(one)
    rope = getattr(text, "rope_parameters", None) or {}
    by_layer = rope.values() if rope and all(isinstance(one, dict) for one in rope.values()) else [rope]
    longest = getattr(text, "max_position_embeddings", None)
    for table in by_layer:
        kind = table.get("rope_type")
        trained = int(table.get("original_max_position_embeddings") or longest or 0)
        if kind in ("longrope", "dynamic") and context is not None and context > trained > 0:
            yield (
                f"it has positions ({kind}) that are others in sequences of more than {trained} tokens, and the "
                f"trainer packs long and short ones: set inference.max_model_len to at most {trained}, not {context}"
            )


def _told(refusal: Refusal) -> str:
    return f"it has {refusal.what}, as {refusal.example}: {refusal.why}"


def _refuse(source: str | Path, faults: Iterable[str]) -> None:
    if told := list(dict.fromkeys(faults)):
        raise UnsupportedModel(f"{source} cannot be trained: {'; '.join(told[:_LISTED])}")
