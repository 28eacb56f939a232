"""Whole updates of a reward model against an implementation of their own, in float64; and every option is used."""

import copy
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from gymfleet_trainer.learning.options import BradleyTerryOptions, ProcessRewardOptions, RewardModelOptions
from gymfleet_trainer.learning.reward_update import LABELS, RewardUpdater
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.model.policy_model import PolicyModel
from transformers import AutoModelForCausalLM

from tests.models import build_tiny_model

RATE, EPS, BETAS = 1e-2, 1e-8, (0.9, 0.95)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"), tie_embeddings=True, seed=0, hidden_size=32)


def policy(path: Path, dtype: str = "float64") -> PolicyModel:
    return PolicyModel.from_pretrained(path, dtype=dtype)


def drawn_row(rng: random.Random, name: str, *, unit: str | None = None, num_turns: int = 1) -> TrainSequence:
    """Random tokens, read at the end of each of some turns; the labels of several turns are random too."""
    lengths = [rng.randint(2, 6) for _ in range(num_turns)]
    total = sum(lengths)
    ends = {sum(lengths[: turn + 1]) - 1 for turn in range(num_turns)}
    nothing = [0.0] * total
    tokens = [rng.randrange(300) for _ in range(total)]
    row = TrainSequence(tokens, [place in ends for place in range(total)], nothing, nothing, 0, name, unit=unit)
    if unit is not None:
        return row
    labels = torch.tensor([rng.choice((0.0, 0.25, 1.0)) if place in ends else 0.0 for place in range(total)])
    return row.with_fields(**{LABELS: labels})


def pair_rows(count: int) -> list[TrainSequence]:
    rng = random.Random(3)
    return [
        drawn_row(rng, f"run/g{number}/{side}", unit=f"pair {number}") for number in range(count) for side in range(2)
    ]


def turn_rows(count: int) -> list[TrainSequence]:
    rng = random.Random(4)
    return [drawn_row(rng, f"run/g{number}/0", num_turns=rng.randint(1, 3)) for number in range(count)]


class Plain:
    """A second reward model, written plainly: transformers' body, a linear head, Adam as in its paper."""

    def __init__(self, path: Path, *, bias: bool) -> None:
        body = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64).model
        self.body = body
        hidden = body.config.hidden_size
        self.weight = torch.zeros(hidden, dtype=torch.float64, requires_grad=True)
        self.bias = torch.zeros((), dtype=torch.float64, requires_grad=True) if bias else None
        self.parameters = [*body.parameters(), self.weight, *([self.bias] if self.bias is not None else [])]
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.parameters]
        self.time = 0

    def numbers(self, row: TrainSequence) -> list[torch.Tensor]:
        hidden = self.body(torch.tensor([row.token_ids])).last_hidden_state[0]
        said = [hidden[place] @ self.weight for place, read in enumerate(row.loss_mask) if read]
        return [one + self.bias for one in said] if self.bias is not None else said

    def step(self, loss: torch.Tensor, max_norm: float = 1.0) -> float:
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        found = [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, gradients, strict=True)]
        norm = math.sqrt(sum(float(g.square().sum()) for g in found))
        scale = min(1.0, max_norm / (norm + 1e-6))
        self.time += 1
        with torch.no_grad():
            for parameter, gradient, (first, second) in zip(self.parameters, found, self.moments, strict=True):
                first.mul_(BETAS[0]).add_((1 - BETAS[0]) * scale * gradient)
                second.mul_(BETAS[1]).add_((1 - BETAS[1]) * (scale * gradient) ** 2)
                corrected = first / (1 - BETAS[0] ** self.time), second / (1 - BETAS[1] ** self.time)
                parameter.sub_(RATE * corrected[0] / (corrected[1].sqrt() + EPS))
        return float(norm)


def plain_pairs(model: Plain, rows: Sequence[TrainSequence], centring: float) -> torch.Tensor:
    terms = []
    for chosen, rejected in zip(rows[::2], rows[1::2], strict=True):
        (good,), (bad,) = model.numbers(chosen), model.numbers(rejected)
        terms.append(torch.log(1 + torch.exp(bad - good)) + centring * (good + bad) ** 2)
    return torch.stack(terms).mean()


def plain_turns(model: Plain, rows: Sequence[TrainSequence]) -> torch.Tensor:
    terms = []
    for row in rows:
        labels = [float(row.fields[LABELS][place]) for place, read in enumerate(row.loss_mask) if read]
        for number, label in zip(model.numbers(row), labels, strict=True):
            likely = 1 / (1 + torch.exp(-number))
            terms.append(-label * torch.log(likely) - (1 - label) * torch.log(1 - likely))
    return torch.stack(terms).mean()


def parts_of(units: list[list[TrainSequence]], per_batch: int, rng: random.Random) -> list[list[TrainSequence]]:
    """The updates of an epoch, each of nearly equally many units."""
    rng.shuffle(units)
    number = -(-len(units) // per_batch)
    return [[row for unit in units[part::number] for row in unit] for part in range(number)]


OPTIMIZER: dict[str, Any] = {"learning_rate": RATE}
PAIRS = BradleyTerryOptions.model_validate(
    {"epochs": 2, "pairs_per_batch": 2, "centring": 0.05, "optimizer": OPTIMIZER}
)
TURNS = ProcessRewardOptions.model_validate({"epochs": 2, "episodes_per_batch": 3, "optimizer": OPTIMIZER})


@pytest.mark.parametrize("options", [PAIRS, TURNS], ids=["pairs", "turns"])
@pytest.mark.parametrize("tokens_per_microbatch", [8, 4096])
def test_epochs_are_those_of_a_plain_implementation(
    path: Path, options: RewardModelOptions, tokens_per_microbatch: int
) -> None:
    options = options.model_copy(update={"tokens_per_microbatch": tokens_per_microbatch})
    of_pairs = isinstance(options, BradleyTerryOptions)
    rows = pair_rows(5) if of_pairs else turn_rows(7)
    updater, plain = RewardUpdater(policy(path), options), Plain(path, bias=not of_pairs)
    units = [rows[place : place + 2] for place in range(0, 10, 2)] if of_pairs else [[row] for row in rows]

    for epoch in range(2):
        metrics = updater.epoch(rows, random.Random(epoch))
        losses, norms, counts = [], [], []
        for part in parts_of(list(units), options.per_batch, random.Random(epoch)):
            loss = plain_pairs(plain, part, 0.05) if of_pairs else plain_turns(plain, part)
            counts.append(len(part) // 2 if of_pairs else sum(sum(row.loss_mask) for row in part))
            losses.append(loss.item() * counts[-1])
            norms.append(plain.step(loss))
        assert metrics["loss"] == pytest.approx(sum(losses) / sum(counts), rel=1e-9)
        assert metrics["grad_norm"] == pytest.approx(sum(norms) / len(norms), rel=1e-7)
        assert metrics["num_updates"] == 3

    found = updater.numbers(rows)
    expected = [[number.item() for number in plain.numbers(row)] for row in rows]
    assert [pytest.approx(row, abs=1e-7) for row in expected] == found
    assert len({round(number, 4) for row in found for number in row}) > 5


def trained(path: Path, options: RewardModelOptions, rows: list[TrainSequence], epochs: int = 2) -> list[list[float]]:
    updater = RewardUpdater(policy(path), options)
    for epoch in range(epochs):
        updater.epoch(rows, random.Random(epoch))
    return updater.numbers(rows)


@pytest.mark.parametrize(
    "change",
    [
        {"centring": 1.0}, {"pairs_per_batch": 5}, {"optimizer": {"learning_rate": 2 * RATE}},
        {"epochs": 4, "optimizer": {"learning_rate": RATE, "schedule": "linear"}},
    ],
)  # fmt: skip
def test_an_option_of_pairs_changes_what_is_learned(path: Path, change: dict[str, Any]) -> None:
    options = BradleyTerryOptions.model_validate({**PAIRS.model_dump(), **change})

    assert trained(path, options, pair_rows(5)) != trained(path, PAIRS, pair_rows(5))


def test_an_option_of_turns_changes_what_is_learned(path: Path) -> None:
    options = TURNS.model_copy(update={"episodes_per_batch": 7})

    assert trained(path, options, turn_rows(7)) != trained(path, TURNS, turn_rows(7))


def test_which_side_is_better_is_what_is_learned(path: Path) -> None:
    rows = pair_rows(4)
    swapped = [row for place in range(0, 8, 2) for row in (rows[place + 1], rows[place])]
    options = PAIRS.model_copy(update={"epochs": 8})

    one, other = trained(path, options, rows, 8), trained(path, options, swapped, 8)

    assert all(good[0] > bad[0] for good, bad in zip(one[::2], one[1::2], strict=True))
    assert all(good[0] > bad[0] for good, bad in zip(other[::2], other[1::2], strict=True))


def test_the_policy_is_left_alone(path: Path) -> None:
    model = policy(path)
    before = {name: value.clone() for name, value in model.state_dict().items()}

    RewardUpdater(model, PAIRS).epoch(pair_rows(3), random.Random(0))

    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_it_goes_on_where_it_stood(path: Path) -> None:
    rows, options = turn_rows(7), TURNS.model_copy(update={"epochs": 3})
    undisturbed = RewardUpdater(policy(path), options)
    undisturbed.epoch(rows, random.Random(0))
    restored = RewardUpdater(policy(path), options)
    restored.load_state_dict(copy.deepcopy(undisturbed.state_dict()))

    for updater in (undisturbed, restored):
        updater.epoch(rows, random.Random(1))

    assert restored.numbers(rows) == undisturbed.numbers(rows)


def test_a_gradient_that_is_not_finite_is_counted_and_changes_nothing(path: Path) -> None:
    rows = turn_rows(2)
    rows[0] = rows[0].with_fields(**{LABELS: torch.full((len(rows[0].token_ids),), float("nan"))})
    updater = RewardUpdater(policy(path), TURNS)

    metrics = updater.epoch(rows, random.Random(0))

    assert metrics["num_nonfinite"] == 1
    assert all(number == 0.0 for row in updater.numbers(rows) for number in row)
