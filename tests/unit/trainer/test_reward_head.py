"""The reward model: the policy's body, a head that starts at 0, and the numbers that transformers computes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gymfleet_trainer.model.batching import TrainSequence, pack
from gymfleet_trainer.model.policy_model import PolicyModel
from gymfleet_trainer.model.reward_head import Reads, RewardModel
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from tests.models import build_tiny_model

HEADS: dict[Reads, Any] = {"episode": AutoModelForSequenceClassification, "turns": AutoModelForTokenClassification}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> PolicyModel:
    path = build_tiny_model(tmp_path_factory.mktemp("model"), tie_embeddings=True, seed=0)
    return PolicyModel.from_pretrained(path)


def row(ids: list[int], *read_at: int) -> TrainSequence:
    """A row whose numbers are read at some tokens."""
    nothing = [0.0] * len(ids)
    return TrainSequence(ids, [place in read_at for place in range(len(ids))], nothing, nothing, 0, "run/group/0")


ROWS = [row([5, 6, 7, 8, 9], 4), row([9, 8, 7], 1, 2), row([4, 4, 6, 9, 11, 13, 5], 2, 5)]


def drawn(policy: PolicyModel, reads: Reads) -> RewardModel:
    """A reward model with a random head."""
    model = RewardModel(policy, reads)
    torch.manual_seed(1)
    for parameter in model.hf.score.parameters():
        torch.nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize("reads", ["episode", "turns"])
def test_numbers_start_at_zero_and_can_be_learned(policy: PolicyModel, reads: Reads) -> None:
    model = RewardModel(policy, reads)
    (batch,) = pack(ROWS, 1000)

    numbers = model.numbers(batch)
    (numbers - 1.0).square().sum().backward()  # type: ignore[no-untyped-call]

    assert numbers.tolist() == [0.0] * 5
    assert float(model.hf.score.weight.grad.abs().sum()) > 0
    assert all(parameter.grad is None for parameter in policy.parameters()), "the policy is left alone"
    assert (model.hf.score.bias is not None) is (reads == "turns"), "as transformers has them"


@pytest.mark.parametrize("reads", ["episode", "turns"])
def test_saved_it_says_with_transformers_what_it_said_here(policy: PolicyModel, tmp_path: Path, reads: Reads) -> None:
    model = drawn(policy, reads)
    (batch,) = pack(ROWS, 1000)
    numbers = model.numbers(batch).tolist()
    model.save_pretrained(tmp_path)

    plain, loading = HEADS[reads].from_pretrained(tmp_path, output_loading_info=True)

    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert plain.config.num_labels == 1
    expected = []
    for place in batch.indices:
        hidden = plain.eval().model(torch.tensor([ROWS[place].token_ids])).last_hidden_state[0]
        scored = plain.score(hidden)[:, 0]
        expected += [scored[at].item() for at, read in enumerate(ROWS[place].loss_mask) if read]
    assert numbers == pytest.approx(expected, abs=1e-5)
    assert len({round(number, 3) for number in expected}) == 5


def test_its_weights_come_back(policy: PolicyModel) -> None:
    model, other = drawn(policy, "turns"), RewardModel(policy, "turns")
    (batch,) = pack(ROWS, 1000)

    other.load_weights(model.weights())

    assert torch.equal(other.numbers(batch), model.numbers(batch))


@pytest.mark.parametrize("reads", ["episode", "turns"])
def test_rows_that_begin_alike_have_the_numbers_and_the_gradients_that_each_has_alone(
    policy: PolicyModel, reads: Reads
) -> None:
    prompt = [5 + place % 11 for place in range(40)]
    rows = [row([*prompt, 7, 8, 9], 20, 42), row([*prompt, 4], 20, 40), row([*prompt, 7, 8, 5, 6], 39, 43)]
    model = drawn(policy, reads)
    (together,) = pack(rows, 1000)
    assert together.num_computed < together.num_tokens, "what they begin with is computed once"
    weights = torch.linspace(1.0, 2.0, 6)

    def gradients(numbers: torch.Tensor) -> list[torch.Tensor]:
        model.zero_grad()
        (numbers * weights).sum().backward()  # type: ignore[no-untyped-call]
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    order = [rows[index] for index in together.indices]
    shared = model.numbers(together)
    apart = torch.cat([model.numbers(batch) for one in order for batch in pack([one], 1000)])

    assert shared.tolist() == pytest.approx(apart.tolist(), abs=1e-5)
    for one, other in zip(gradients(shared), gradients(apart), strict=True):
        assert torch.allclose(one, other, atol=1e-4)
