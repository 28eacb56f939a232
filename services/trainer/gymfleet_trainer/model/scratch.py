"""A small model from scratch: a tokenizer built for the environment's words, and random Qwen3 weights.

The tokenizer is byte-level, so that every text survives encoding and decoding exactly; the rest of the vocabulary
is used for the words that save the most tokens. A reply in the environment's own words is then about ten tokens long.
"""

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import torch
from gymfleet_contracts.recipe_sections import ScratchModel
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

TURN_START: Final = "<|im_start|>"
TURN_END: Final = "<|im_end|>"
PADDING: Final = "<|pad|>"
SPECIAL_TOKENS: Final = (TURN_START, TURN_END, PADDING)

_CHATML: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_TOOLS: Final = """\
{%- if tools %}
{{- '<|im_start|>system' }}
{%- for tool in tools %}
{{- '\\n' + tool.function.name + '(' + tool.function.parameters.properties | join(', ') + '): ' }}
{{- tool.function.description }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}
{{- '<think>' + (message.reasoning_content or '') + '</think>' }}
{{- message.content or '' }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + call.function.name }}
{%- for name, value in call.function.arguments.items() %}
{{- '<arg_key>' + name + '<arg_value>' + (value if value is string else value | tojson) }}
{%- endfor %}
{{- '</tool_call>' }}
{%- endfor %}
{%- else %}
{{- message.content }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n<think>' }}
{{- '</think>' if enable_thinking is defined and not enable_thinking else '' }}
{%- endif %}"""
CHAT_TEMPLATES: Final = {"chatml": _CHATML, "tools": _TOOLS}
MARKERS: Final = {
    "chatml": (),
    "tools": ("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "<arg_value>"),
}
"""Tokens of a template that are not special tokens: replies are written with them."""

_TEMPLATE_WORDS: Final = ("system", "user", "assistant")
_INIT_STD: Final = 0.02
_PHRASE: Final = r"[0-9]|[^A-Za-z0-9 ]| ?[^0-9.,:;!?()<>\"\n]+"
"""Digits and marks are separate; a run of words between them may become one token (cf. SuperBPE, arXiv:2503.13423)."""


def build_scratch_model(
    texts: list[str], section: ScratchModel, out_dir: str | Path, seed: int, *, max_position: int
) -> Path:
    """Write tokenizer and model to `out_dir` in Hugging Face format; the same arguments write the same files.

    Args:
        texts: the environment's texts and the replies, from which the words are chosen.
        section: the shape of the model.
        out_dir: the output directory, created if necessary.
        seed: the seed of the weights.
        max_position: the longest sequence, in tokens.

    Returns:
        `out_dir`.

    Raises:
        ValueError: the vocabulary cannot hold the bytes and the special tokens.
    """
    directory = Path(out_dir)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(texts, section.vocab_size, section.chat_template)
    tokenizer.model_max_length = max_position
    tokenizer.save_pretrained(str(directory))
    config = scratch_config(
        section, max_position, len(tokenizer), end=tokenizer.eos_token_id, padding=tokenizer.pad_token_id
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
        _scale_residual_outputs(model)
    model.save_pretrained(str(directory), safe_serialization=True)
    return directory


def build_tokenizer(texts: Iterable[str], vocab_size: int, chat_template: str = "chatml") -> Any:
    """Return a `PreTrainedTokenizerFast` with ChatML's special tokens and at most `vocab_size` entries.

    The chat template brings the vocabulary that it needs: its markers, each of which is one token.

    Texts are cut at digits and punctuation, so that the fixed phrases of an environment can be single tokens. The
    phrases and words that save the most tokens over `texts` are chosen; ties are broken alphabetically. A phrase that
    was not chosen is split into the fewest pieces (a unigram model whose pieces have equal cost).
    """
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PHRASE), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    markers = MARKERS[chat_template]
    room = vocab_size - len(alphabet) - len(SPECIAL_TOKENS) - len(markers)
    words = (*_TEMPLATE_WORDS, "tool") if markers else _TEMPLATE_WORDS
    if room < len(words):
        raise ValueError(
            f"vocab_size {vocab_size} is too small: {len(alphabet)} bytes, {len(SPECIAL_TOKENS) + len(markers)} "
            f"special tokens and {len(words)} words of the chat template need {vocab_size - room + len(words)}"
        )
    counts = _piece_counts(texts, splitter)
    saved = {word: count * (len(word) - 1) for word, count in counts.items() if word not in words}
    ranked = sorted(saved, key=lambda word: (-saved[word], word))
    pieces = [*SPECIAL_TOKENS, *markers, *alphabet, *words, *ranked[: room - len(words)]]
    backend = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=None, byte_fallback=False))
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(marker, normalized=False) for marker in markers])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=TURN_END,
        pad_token=PADDING,
        extra_special_tokens=[TURN_START],
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATES[chat_template],
    )


def _piece_counts(texts: Iterable[str], splitter: Any) -> Counter[str]:
    """Return how often each phrase and each word occurs; an unknown phrase is composed of words."""
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    counts: Counter[str] = Counter()
    for text, occurrences in Counter(texts).items():
        pieces = {*splitter.pre_tokenize_str(text), *words.pre_tokenize_str(text)}  # a one-word phrase counts once
        for piece, _ in pieces:
            if len(piece) > 1 and not any(mark in piece for mark in "0123456789"):
                counts[piece] += occurrences
    return counts


def scratch_config(
    section: ScratchModel, max_position: int, vocab_size: int, *, end: int | None = None, padding: int | None = None
) -> Any:
    """Return the transformers config of a model from scratch; `end` and `padding` are ids of its tokens."""
    return Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=section.hidden_size,
        intermediate_size=section.intermediate_size,
        num_hidden_layers=section.num_layers,
        num_attention_heads=section.num_heads,
        num_key_value_heads=section.num_kv_heads,
        head_dim=section.head_dim,
        max_position_embeddings=max_position,
        tie_word_embeddings=section.tie_embeddings,
        initializer_range=_INIT_STD,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=padding,
        use_cache=True,
    )


def _scale_residual_outputs(model: Any) -> None:
    """Shrink each block's addition to the residual stream, so that the variance does not grow with depth (GPT-2)."""
    factor = 1 / math.sqrt(2 * len(model.model.layers))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(factor)
            layer.mlp.down_proj.weight.mul_(factor)
