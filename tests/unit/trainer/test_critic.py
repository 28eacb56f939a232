"""The value model: zero at first, aligned with the tokens, independent of the policy."""

from pathlib import Path

import pytest
import torch
from gymfleet_trainer.model.batching import pack
from gymfleet_trainer.model.critic import ValueModel
from gymfleet_trainer.model.policy_model import PolicyModel
from transformers import AutoModelForCausalLM

from tests.fixtures.train_sequences import random_sequences
from tests.models import build_tiny_model


@pytest.fixture
def policy(tmp_path: Path) -> PolicyModel:
    return PolicyModel.from_pretrained(build_tiny_model(tmp_path / "model", tie_embeddings=True, seed=0))


def test_values_start_at_zero_and_can_be_learned(policy: PolicyModel) -> None:
    critic = ValueModel(policy)
    (batch,) = pack(random_sequences(policy.config.vocab_size, groups=1, samples=3), 1000)
    values = critic.values(batch)
    assert values.tolist() == [0.0] * batch.num_tokens
    (values - 1.0)[batch.loss_mask].square().sum().backward()  # type: ignore[no-untyped-call]

    assert critic.head.weight.grad is not None
    assert critic.head.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("saving", [False, True])
def test_it_keeps_as_few_activations_as_the_policy(policy: PolicyModel, tmp_path: Path, saving: bool) -> None:
    policy.save_pretrained(tmp_path / "again")
    like = PolicyModel.from_pretrained(tmp_path / "again", gradient_checkpointing=saving)

    assert ValueModel(like).body.is_gradient_checkpointing is saving


def test_a_value_is_read_from_the_state_before_its_token(policy: PolicyModel, tmp_path: Path) -> None:
    critic = ValueModel(policy)
    torch.manual_seed(0)
    torch.nn.init.normal_(critic.head.weight)
    torch.nn.init.constant_(critic.head.bias, 0.5)
    sequences = random_sequences(policy.config.vocab_size, groups=2, samples=2)
    (batch,) = pack(sequences, 1000)

    values = critic.values(batch)

    policy.save_pretrained(tmp_path / "saved")
    plain = AutoModelForCausalLM.from_pretrained(str(tmp_path / "saved"))
    for index, row in zip(batch.indices, torch.split(values, list(batch.lengths)), strict=True):
        hidden = plain.model(torch.tensor([sequences[index].token_ids])).last_hidden_state[0]
        mask = torch.tensor(sequences[index].loss_mask)
        assert torch.allclose(row[1:][mask[1:]], critic.head(hidden)[:-1, 0][mask[1:]], atol=1e-5)
        assert not row[~mask].any()


def test_tables_of_positions_stay_exact_where_weights_are_held_in_bfloat16(policy: PolicyModel) -> None:
    critic = ValueModel(policy, torch.bfloat16)

    assert {parameter.dtype for parameter in critic.parameters()} == {torch.bfloat16}
    own, given = dict(critic.body.named_buffers()), dict(policy.body.named_buffers())
    assert own
    assert {name for name in own if not torch.equal(own[name], given[name])} == set()


def test_learning_values_leaves_the_policy_alone(policy: PolicyModel) -> None:
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    critic = ValueModel(policy.frozen_copy())
    assert all(parameter.requires_grad for parameter in critic.parameters())
    optimizer = torch.optim.SGD(ValueModel(policy).parameters(), lr=1.0)
    (batch,) = pack(random_sequences(policy.config.vocab_size, groups=1, samples=2), 1000)
    critic.values(batch).sum().backward()  # type: ignore[no-untyped-call]

    optimizer.step()

    assert all(parameter.grad is None for parameter in policy.parameters())
    assert all(torch.equal(one, other) for one, other in zip(before, policy.parameters(), strict=True))
