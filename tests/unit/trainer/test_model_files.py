"""Published models as they lie on disks: loaded whole, and saved with all that an engine starts from."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gymfleet_contracts.recipe import Recipe
from gymfleet_rollout.inference.weights import require_same_tensors, tensor_shapes
from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.model.policy_model import PolicyModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.fixtures.small_models import MODEL_TYPES, save_small_model, small_model
from tests.models import build_tiny_model

GENERATION = {"do_sample": False, "temperature": 0.6, "eos_token_id": [2, 1], "of_its_own": "kept"}
"""Not one that transformers would write: it refuses a temperature without sampling."""


def learner(model: Path, directory: Path) -> LocalLearner:
    recipe = {
        "name": "files", "environments": [{"name": "maze"}], "model": {"path": str(model)},
        "stages": [{"kind": "measure", "num_tasks": 1}],
    }  # fmt: skip
    return LocalLearner(Recipe.model_validate(recipe), str(model), directory / "references")


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_saved_model_has_the_tensors_that_it_was_loaded_from(model_type: str, tmp_path: Path) -> None:
    source, saved = save_small_model(model_type, tmp_path / "source"), tmp_path / "saved"

    PolicyModel.from_pretrained(source).save_pretrained(saved)

    require_same_tensors(tensor_shapes(source), tensor_shapes(saved), saved)
    before, after = load_file(source / "model.safetensors"), load_file(saved / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in after)


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A tied model in several files, with everything beside it that is found in published ones."""
    directory = build_tiny_model(tmp_path / "published", tie_embeddings=True, seed=0)
    AutoModelForCausalLM.from_pretrained(directory).save_pretrained(directory, max_shard_size="100KB")
    whole = directory / "model.safetensors"
    whole.unlink(missing_ok=True)
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    shard = directory / index["weight_map"]["model.norm.weight"]
    tables = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(16)}
    save_file({**load_file(shard), **tables}, shard, metadata={"format": "pt"})
    index["weight_map"] |= dict.fromkeys(tables, shard.name)
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({"tok_embeddings.weight": torch.ones(1)}, directory / "consolidated.safetensors")
    (directory / "pytorch_model.bin").write_bytes(b"the same once more")
    (directory / "generation_config.json").write_text(json.dumps(GENERATION))
    (directory / "preprocessor_config.json").write_text("{}")
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "rag.jinja").write_text("{{ messages }}")
    (directory / "README.md").write_text("a card")
    return directory


def test_a_published_directory_is_trained_and_published_again(published: Path, tmp_path: Path) -> None:
    ours = learner(published, tmp_path)
    (weights := tmp_path / "weights").mkdir()
    (model := tmp_path / "model").mkdir()

    ours.save_weights(weights)
    ours.save_model(model)

    assert len(list(published.glob("model-*.safetensors"))) > 1
    require_same_tensors(tensor_shapes(published), tensor_shapes(weights), weights)
    found: Any = AutoModelForCausalLM.from_pretrained(published)
    again: Any = AutoModelForCausalLM.from_pretrained(model)
    for (name, one), other in zip(found.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other), name
    for directory in (weights, model):
        assert json.loads((directory / "generation_config.json").read_text()) == GENERATION
    assert AutoTokenizer.from_pretrained(model).chat_template == AutoTokenizer.from_pretrained(published).chat_template
    assert {path.name for path in model.iterdir()} >= {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        "chat_template.jinja", "additional_chat_templates", "preprocessor_config.json",
    }  # fmt: skip
    assert (model / "additional_chat_templates" / "rag.jinja").read_text() == "{{ messages }}"
    assert not (model / "README.md").exists()


def test_a_head_that_a_tied_file_holds_all_the_same_is_no_other_model(tmp_path: Path) -> None:
    source = save_small_model("gemma2", tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    save_file(
        tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, source / "model.safetensors",
        metadata={"format": "pt"},
    )  # fmt: skip

    PolicyModel.from_pretrained(source).save_pretrained(tmp_path / "saved")

    require_same_tensors(tensor_shapes(source), tensor_shapes(tmp_path / "saved"), tmp_path / "saved")
    assert torch.equal(
        load_file(tmp_path / "saved/model.safetensors")["model.embed_tokens.weight"],
        dict(small_model("gemma2").named_parameters())["model.embed_tokens.weight"],
    )


def test_a_saved_model_caches_what_it_has_read_as_it_did_before(published: Path, tmp_path: Path) -> None:
    config = json.loads((published / "config.json").read_text())
    (published / "config.json").write_text(json.dumps({**config, "use_cache": True}))

    (model := tmp_path / "model").mkdir()
    learner(published, tmp_path).save_model(model)

    assert AutoModelForCausalLM.from_pretrained(model)(torch.tensor([[1, 2, 3]])).past_key_values is not None
