"""Families in a real vLLM: it samples from small models what the trainer says of the same tokens.

One family alone: `pytest tests/integration/test_model_families.py -k gemma2`.
"""

from pathlib import Path

import pytest
import torch
from gymfleet_rollout.inference.weights import require_same_tensors, tensor_shapes
from gymfleet_trainer.model.batching import pack
from gymfleet_trainer.model.families import FAMILIES
from gymfleet_trainer.model.policy_model import PolicyModel

from tests.fixtures.embedded_replies import Replies, embedded_replies
from tests.fixtures.small_models import VOCAB, WINDOW, save_small_model
from tests.fixtures.train_sequences import train_sequence

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
IN_ENGINE = [family.model_type for family in FAMILIES if family.in_engine]
TOLERANCES = {"float32": 1e-5, "bfloat16": 0.05}
"""Mean absolute difference. In bfloat16 the two round at different places."""


def mean_difference(policy: PolicyModel, prompts: list[list[int]], replies: Replies) -> float:
    rows = [
        train_sequence([*prompt, *tokens], "." * len(prompt) + "x" * len(tokens), name=f"run/g/{place}")
        for place, (prompt, (tokens, _)) in enumerate(zip(prompts, replies, strict=True))
    ]
    (batch,) = pack(rows, 1 << 16)
    with torch.no_grad():
        logprobs = policy.token_logprobs(batch).logprobs
    parts = dict(zip(batch.indices, torch.split(logprobs, list(batch.lengths)), strict=True))
    differences = [
        parts[place][len(prompts[place]) :] - torch.tensor(theirs) for place, (_, theirs) in enumerate(replies)
    ]
    assert all(len(tokens) > 1 for tokens, _ in replies)
    return float(torch.cat(differences).abs().mean())


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
@pytest.mark.parametrize("model_type", IN_ENGINE)
def test_the_engine_samples_what_the_trainer_computes(model_type: str, dtype: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(9, VOCAB, (size,), generator=generator).tolist() for size in (4, 2 * WINDOW, 3 * WINDOW)]
    first = save_small_model(model_type, tmp_path / "first")
    save_small_model(model_type, tmp_path / "second", seed=1)
    policies = [PolicyModel.from_pretrained(tmp_path / name, dtype=dtype) for name in ("first", "second")]
    policies[1].save_pretrained(published := tmp_path / "published")
    require_same_tensors(tensor_shapes(first), tensor_shapes(published), published)

    versions = embedded_replies(first, [published], prompts, dtype=dtype, max_tokens=32, place=tmp_path)

    for policy, replies in zip(policies, versions, strict=True):
        assert mean_difference(policy, prompts, replies) < TOLERANCES[dtype]
    assert mean_difference(policies[0], prompts, versions[1]) > 0.2, "another version says something else"
