"""Tiny but real models for tests: Qwen3's shape, random weights, a byte-level tokenizer of their own."""

from pathlib import Path
from typing import Any, Final

from gymfleet_kit.chat.tokenizer import ModelTokenizer

CHATML: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
EOS_TOKEN: Final = "<|im_end|>"
_CORPUS: Final = (
    "Thought: the goal is to the left, so I go left. Action: move left",
    "Thought: a wall is above me; I try the other way. Action: move right",
    "You are in a maze. You see a wall, a door and the goal. What do you do next?",
    'Invalid format. Answer with "Thought: <your reasoning> Action: <your action>".',
)


def build_tokenizer(
    *, chat_template: str = CHATML, eos_token: str = EOS_TOKEN, extra_tokens: tuple[str, ...] = ()
) -> Any:
    """A byte-level BPE tokenizer with every byte in its alphabet and a few merges; any text survives a round trip."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415 - heavy
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - heavy

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        show_progress=False,
        special_tokens=list(dict.fromkeys(["<|endoftext|>", "<|im_start|>", eos_token, *extra_tokens])),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_CORPUS * 8, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=eos_token, pad_token="<|endoftext|>", clean_up_tokenization_spaces=False
    )
    fast.chat_template = chat_template
    return fast


def build_tiny_model(
    path: Path, *, tie_embeddings: bool, seed: int, hidden_size: int = 64, num_layers: int = 2, scale: float = 0.08
) -> Path:
    """Write config, float32 safetensors and tokenizer of a random Qwen3 model (about 0.1 M parameters) to `path`.

    `scale` is the initialiser's standard deviation: large enough that two seeds
    give clearly different distributions.
    """
    import torch  # noqa: PLC0415 - heavy
    from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: PLC0415 - heavy

    tokenizer = build_tokenizer()
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=tie_embeddings,
        initializer_range=scale,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config).to(torch.float32)
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def build_adapter(path: Path, base: Path, *, seed: int, rank: int = 4) -> Path:
    """Write an adapter of `base` to `path`, as peft writes one, with random weights that change much."""
    import torch  # noqa: PLC0415 - heavy
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415 - heavy
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - heavy

    torch.manual_seed(seed)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(path)
    return path


def build_reward_model(
    path: Path, *, turns: bool = False, seed: int = 0, num_labels: int = 1, vocab_size: int | None = None,
    step_tag: str | None = None,
) -> Path:  # fmt: skip
    """Write a random Qwen3 with a head for sequence classification to `path`, or for tokens with `turns`."""
    import torch  # noqa: PLC0415 - heavy
    from transformers import (  # noqa: PLC0415 - heavy
        Qwen3Config,
        Qwen3ForSequenceClassification,
        Qwen3ForTokenClassification,
    )

    tokenizer = build_tokenizer(extra_tokens=() if step_tag is None else (step_tag,))
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab_size or len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=2048,
        initializer_range=0.2, num_labels=num_labels, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=None, dtype="float32",
    )  # fmt: skip
    model = (Qwen3ForTokenClassification if turns else Qwen3ForSequenceClassification)(config).to(torch.float32)
    if turns:
        torch.nn.init.normal_(model.score.bias)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def model_tokenizer(tokenizer: Any) -> ModelTokenizer:
    """What the rollout reads of a transformers tokenizer that `build_tokenizer` made."""
    return ModelTokenizer(tokenizer.backend_tokenizer, tokenizer.chat_template, tokenizer.special_tokens_map)
