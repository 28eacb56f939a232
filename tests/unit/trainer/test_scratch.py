"""The model from scratch: exact text, short replies, and files that transformers loads."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.recipe_sections import ScratchModel
from gymfleet_trainer.model.scratch import build_scratch_model, build_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

REPLY = "Thought: the goal is to the left. Action: move left"
TEXTS = [
    "You are in a maze of 12 x 7 cells. You see a wall above and a door below.\nThe goal is at (3, 5).",
    'Answer with "Thought: <your reasoning> Action: <your action>".',
    *[REPLY.replace("left", side) for side in ("left", "right", "up", "down")],
] * 10
SECTION = ScratchModel(
    vocab_size=400, hidden_size=32, intermediate_size=64, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=16
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_scratch_model(TEXTS, SECTION, tmp_path_factory.mktemp("scratch"), 7, max_position=256)


@pytest.fixture(scope="module")
def tokenizer(built: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(built))


@pytest.mark.parametrize(
    "text",
    [
        REPLY,
        "",
        " leading, trailing and  double  spaces ",
        "\n\n\tlines\r\n",
        "Ünïcödé 漢字 🙂 \u200b\ufeff",
        "nul \x00 and \x7f",
        "it's 1234567890, isn't it?",
        "words that were never seen: xylophone",
        "e\u0301 is not \u00e9",
    ],
)
def test_every_text_survives_exactly(tokenizer: Any, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)

    assert tokenizer.decode(ids) == text


def test_the_environments_phrases_are_single_tokens(tokenizer: Any) -> None:
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode(REPLY, add_special_tokens=False))

    assert [token.replace("Ġ", " ") for token in tokens] == [
        "Thought", ":", " the goal is to the left", ".", " Action", ":", " move left",
    ]  # fmt: skip


def test_an_unseen_phrase_is_made_of_known_words(tokenizer: Any) -> None:
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode(". the left goal", add_special_tokens=False))

    assert [token.replace("Ġ", " ") for token in tokens] == [".", " the", " left", " goal"]


def test_digits_stand_alone(tokenizer: Any) -> None:
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("(12, 7)"))[1:3] == ["1", "2"]


def test_chat_template_is_chatml(tokenizer: Any) -> None:
    messages = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "Go."}]

    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    assert text == ("<|im_start|>system\nRules.<|im_end|>\n<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n")
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    start, end = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    assert (ids.count(start), ids.count(end)) == (3, 2)
    assert len({start, end, tokenizer.pad_token_id}) == 3
    assert tokenizer.eos_token_id == end


def test_transformers_loads_the_model(built: Path, tokenizer: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(str(built))

    assert model.config.model_type == "qwen3"
    assert model.config.vocab_size == len(tokenizer) <= SECTION.vocab_size
    assert model.config.max_position_embeddings == tokenizer.model_max_length == 256
    assert (model.config.eos_token_id, model.config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    assert model.model.layers[0].mlp.gate_proj.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert model.model.layers[0].mlp.down_proj.weight.std().item() == pytest.approx(0.02 / 2, rel=0.1)


def test_embeddings_are_tied_on_request(tmp_path: Path) -> None:
    section = SECTION.model_copy(update={"tie_embeddings": True})

    model = AutoModelForCausalLM.from_pretrained(str(build_scratch_model(TEXTS, section, tmp_path, 7, max_position=64)))

    assert model.lm_head.weight is model.model.embed_tokens.weight


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def test_the_same_seed_writes_the_same_files(built: Path, tmp_path: Path) -> None:
    again = build_scratch_model(TEXTS, SECTION, tmp_path / "again", 7, max_position=256)
    other = build_scratch_model(TEXTS, SECTION, tmp_path / "other", 8, max_position=256)

    assert digests(again) == digests(built)
    changed = {name for name, digest in digests(other).items() if digest != digests(built)[name]}
    assert changed == {"model.safetensors"}


def test_a_vocabulary_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size 258 is too small: 256 bytes, 3 special tokens and 3 words"):
        build_tokenizer(TEXTS, 258)
