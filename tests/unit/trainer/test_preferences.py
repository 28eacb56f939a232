"""DPO and its kin: losses by hand, and whole updates against an independent implementation, in float64."""

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from gymfleet_contracts.trajectory import ScoredTrajectory, Turn
from gymfleet_kit.plugins import PluginError, checked_options
from gymfleet_trainer.learning.algorithm import Sample, Verdict
from gymfleet_trainer.learning.engine import UpdateEngine
from gymfleet_trainer.learning.options import ReinforceOptions, UpdateOptions
from gymfleet_trainer.learning.plugins import ALGORITHMS, algorithm_of
from gymfleet_trainer.learning.preference_losses import DpoLoss, dpo_loss, kto_loss, log_odds_ratio
from gymfleet_trainer.learning.preferences import Preference
from gymfleet_trainer.model.batching import PackedBatch
from gymfleet_trainer.model.optimizer import OptimizerOptions
from gymfleet_trainer.model.policy_model import PolicyModel
from torch import Tensor
from transformers import Starcoder2Config, Starcoder2ForCausalLM

from tests.fixtures.reference_update import Adam, stock_model
from tests.fixtures.scored import make_scored, make_turn

VOCAB: Final = 24
TEMPERATURE: Final = 0.8
PRECISION: Final = 1e-9
DESCENT: Final = OptimizerOptions(learning_rate=1e5, betas=(0.0, 0.0), eps=1e6, max_grad_norm=1e3)
"""Without memory or scale: weights move by the gradient itself."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small are slower on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = Starcoder2Config(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, initializer_range=0.25, tie_word_embeddings=False,
        sliding_window=None, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    Starcoder2ForCausalLM(config).save_pretrained(path)
    return path


# --- by hand


@pytest.mark.parametrize(
    ("kind", "margin", "smoothing", "loss", "slope"),
    [
        pytest.param("sigmoid", 1.0, 0.0, 0.4740770, -0.1887703, id="sigmoid: -log s(0.5), -0.5 s(-0.5)"),
        pytest.param("sigmoid", 0.0, 0.0, math.log(2), -0.25, id="sigmoid: the policy is the reference"),
        pytest.param("sigmoid", 1.0, 0.1, 0.5240770, -0.1387703, id="smoothed: 0.9 x 0.474077 + 0.1 x 0.974077"),
        pytest.param("robust", 1.0, 0.1, 0.4115770, -0.2512703, id="robust: (0.9 x 0.474077 - 0.1 x 0.974077) / 0.8"),
        pytest.param("hinge", 1.0, 0.0, 0.5, -0.5, id="hinge: 1 - 0.5"),
        pytest.param("hinge", 3.0, 0.0, 0.0, 0.0, id="hinge: far enough"),
        pytest.param("ipo", 3.0, 0.0, 4.0, 4.0, id="ipo: (3 - 1)^2: beyond 1 / (2 beta) it is pushed back"),
    ],
)
def test_the_loss_of_one_pair(kind: DpoLoss, margin: float, smoothing: float, loss: float, slope: float) -> None:
    margins = torch.tensor([margin], dtype=torch.float64, requires_grad=True)

    found = dpo_loss(margins, kind=kind, beta=0.5, label_smoothing=smoothing)
    found.sum().backward()  # type: ignore[no-untyped-call]

    assert found.item() == pytest.approx(loss, abs=1e-6)
    assert margins.grad is not None
    assert margins.grad.item() == pytest.approx(slope, abs=1e-6)


def test_ktos_loss_of_a_good_and_a_bad_episode() -> None:
    """h = 1, z = 0.5, beta = 2: 3 (1 - s(1)) = 0.806824 and 0.5 (1 - s(-1)) = 0.365529."""
    found = kto_loss(
        torch.tensor([1.0, 1.0]), torch.tensor([True, False]), torch.tensor(0.5),
        beta=2.0, desirable_weight=3.0, undesirable_weight=0.5,
    )  # fmt: skip

    assert found.tolist() == pytest.approx([0.806824, 0.365529], abs=1e-5)


def test_the_odds_of_a_half_are_three_times_those_of_a_quarter() -> None:
    assert log_odds_ratio(torch.tensor([0.5]).log(), torch.tensor([0.25]).log()).item() == pytest.approx(math.log(3))
    certain = torch.zeros(1, requires_grad=True)
    log_odds_ratio(certain, torch.tensor([-1.0])).sum().backward()  # type: ignore[no-untyped-call]
    assert certain.grad is not None
    assert certain.grad.isfinite().all(), "a certain token has no infinite odds"


# --- whole updates

CASES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "dpo": ("dpo", {}),
    "dpo, beta": ("dpo", {"beta": 0.3}),
    "dpo, label_smoothing": ("dpo", {"label_smoothing": 0.1}),
    "dpo, hinge": ("dpo", {"loss": "hinge"}),
    "dpo, robust": ("dpo", {"loss": "robust", "label_smoothing": 0.1}),
    "dpo, length_normalised": ("dpo", {"length_normalised": True}),
    "dpo, nll_coefficient": ("dpo", {"nll_coefficient": 0.5}),
    "dpo, pairs.min_gap": ("dpo", {"pairs": {"min_gap": 0.73}}),
    "dpo, pairs.min_chosen_reward": ("dpo", {"pairs": {"min_chosen_reward": 0.95}}),
    "dpo, pairs.max_pairs_per_task": ("dpo", {"pairs": {"max_pairs_per_task": 3}}),
    "ipo": ("ipo", {}),
    "ipo, length_normalised": ("ipo", {"length_normalised": False}),
    "orpo": ("orpo", {}),
    "orpo, beta": ("orpo", {"beta": 0.5}),
    "orpo, nll_coefficient": ("orpo", {"nll_coefficient": 0.0}),
    "simpo": ("simpo", {}),
    "simpo, beta": ("simpo", {"beta": 1.0}),
    "simpo, gamma": ("simpo", {"gamma": 0.0}),
    "kto": ("kto", {}),
    "kto, beta": ("kto", {"beta": 0.5}),
    "kto, desirable_weight": ("kto", {"desirable_weight": 2.0}),
    "kto, undesirable_weight": ("kto", {"undesirable_weight": 2.0}),
    "kto, desirable_from": ("kto", {"desirable_from": 0.9}),
}


@pytest.fixture(scope="module")
def outcomes(model_dir: Path) -> dict[str, tuple[dict[str, Tensor], dict[str, float]]]:
    """The weights after two updates, and what the second one reported."""
    return {case: trained(model_dir, name, options) for case, (name, options) in CASES.items()}


@pytest.mark.parametrize("case", CASES)
def test_an_update_is_what_the_papers_say(
    case: str, model_dir: Path, outcomes: dict[str, tuple[dict[str, Tensor], dict[str, float]]]
) -> None:
    expected = Plain(model_dir, *CASES[case])
    for batch in batches():
        expected.update(batch)

    weights, told = outcomes[case]

    assert distance(weights, expected.policy.state_dict()) < PRECISION
    assert distance(weights, stock_model(model_dir).state_dict()) > 1e-4, "the weights moved"
    assert told["loss"] == pytest.approx(expected.told["loss"], abs=PRECISION)
    if CASES[case][0] == "kto":
        assert told["mismatched_kl"] == pytest.approx(expected.told["kl"], abs=PRECISION)
        assert case != "kto, desirable_weight" or expected.told["kl"] > 1e-3, "where good ones were learned, z moves"
    else:
        assert told["preference_margin"] == pytest.approx(expected.told["margin"], abs=PRECISION)
        assert told["preference_accuracy"] == pytest.approx(expected.told["accuracy"], abs=PRECISION)


def test_every_option_changes_an_update(outcomes: dict[str, tuple[dict[str, Tensor], dict[str, float]]]) -> None:
    cases = list(CASES)
    same = [
        (one, other)
        for place, one in enumerate(cases)
        for other in cases[:place]
        if distance(outcomes[one][0], outcomes[other][0]) < 1e-7
    ]
    assert not same


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_an_update_does_not_depend_on_packing(name: str, model_dir: Path) -> None:
    whole, _ = trained(model_dir, name, {}, tokens_per_microbatch=10_000)
    apart, _ = trained(model_dir, name, {}, tokens_per_microbatch=1)

    assert distance(whole, apart) < PRECISION


def test_entropies_are_not_computed(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    forward = PolicyModel.forward

    def watched(model: PolicyModel, batch: PackedBatch, temperature: float, with_entropy: bool) -> Any:
        asked.append(with_entropy)
        return forward(model, batch, temperature, with_entropy)

    monkeypatch.setattr(PolicyModel, "forward", watched)
    trained(model_dir, "dpo", {})

    assert asked
    assert not any(asked)


def test_groups_without_a_pair_are_dropped_or_replaced() -> None:
    equal = [make_scored("g", sample, total=0.0) for sample in range(2)]
    different = [
        make_scored("g", 0), make_scored("g", 1, total=0.0, turns=(make_turn(response=(1, 2)),)),
    ]  # fmt: skip

    assert algorithm_for("dpo", {}).select(equal) is Verdict.DROP
    assert algorithm_for("dpo", {"dynamic_sampling": True}).select(equal) is Verdict.ANOTHER
    assert algorithm_for("dpo", {}).select(different) is Verdict.KEEP
    assert algorithm_for("kto", {}).select(equal) is Verdict.KEEP, "single episodes can be learned from"
    assert algorithm_for("dpo", {}).facts.min_group_size == 2


def test_groups_that_differ_in_roles_alone_that_are_not_trained_have_no_pair() -> None:
    group = [make_scored("g", 0, turns=said("planner", 8)), make_scored("g", 1, total=0.0, turns=said("planner", 9))]

    verdicts = {
        roles: algorithm_of(ReinforceOptions(algorithm="dpo", roles=roles)).select(group)
        for roles in (None, ("planner",), ("agent",))
    }

    assert verdicts == {None: Verdict.KEEP, ("planner",): Verdict.KEEP, ("agent",): Verdict.DROP}


def said(role: str, token: int) -> tuple[Turn, ...]:
    """A turn of the agent, and one of the role with a reply of one token."""
    return make_turn(), make_turn(response=(token,)).model_copy(update={"role": role})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"loss": "hinge", "label_smoothing": 0.1}, 'label_smoothing has no effect with loss = "hinge"'),
        ({"label_smoothing": 0.5}, "label_smoothing"),
        ({"pairs": {"min_gap": 0.0}}, "min_gap"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], told: str) -> None:
    with pytest.raises(PluginError, match=told):
        algorithm_for("dpo", options)


# --- the same, written a second time


class Plain:
    """One sequence at a time through a stock model; the papers' formulas in plain Python."""

    def __init__(self, path: Path, name: str, options: dict[str, Any]) -> None:
        self.policy, self.reference = stock_model(path), stock_model(path)
        self.name = name
        self.options = options
        self.adam = Adam(self.policy, DESCENT, 2)
        self.told: dict[str, float] = {}

    def update(self, groups: list[list[ScoredTrajectory]]) -> None:
        loss = self.kto(groups) if self.name == "kto" else self.paired(groups)
        self.told["loss"] = loss.item()
        self.adam.step(loss)

    def option(self, name: str, default: Any) -> Any:
        return self.options.get(name, default)

    def paired(self, groups: list[list[ScoredTrajectory]]) -> Tensor:
        rule = self.option("pairs", {})
        losses: list[Tensor] = []
        margins: list[float] = []
        for group in groups:
            candidates = [
                (reward_of(one) - reward_of(other), one, other)
                for one in group
                for other in group
                if reward_of(one) - reward_of(other) >= rule.get("min_gap", 0.01)
                and reward_of(one) >= rule.get("min_chosen_reward", 0.7)
            ]
            candidates.sort(key=lambda found: -found[0])
            for _, better, worse in candidates[: rule.get("max_pairs_per_task", 1)]:
                loss, margin = self.pair(better, worse)
                losses.append(loss)
                margins.append(margin.item())
        self.told |= {
            "margin": sum(margins) / len(margins),
            "accuracy": sum(margin > 0 for margin in margins) / len(margins),
        }
        return torch.stack(losses).sum() / len(losses)

    def pair(self, better: ScoredTrajectory, worse: ScoredTrajectory) -> tuple[Tensor, Tensor]:
        shared = 0
        for one, other in zip(better.trajectory.turns, worse.trajectory.turns, strict=False):
            if one != other:
                break
            shared += 1
        own = [self.tokens_of(self.policy, side, shared) for side in (better, worse)]
        with torch.no_grad():
            theirs = [self.tokens_of(self.reference, side, shared) for side in (better, worse)]
        loss, margin = self.judged(own, theirs)
        nll = self.option("nll_coefficient", 1.0 if self.name == "orpo" else 0.0)
        return loss - nll * own[0].mean(), margin

    def judged(self, own: list[Tensor], theirs: list[Tensor]) -> tuple[Tensor, Tensor]:
        if self.name == "simpo":
            margin = own[0].mean() - own[1].mean()
            inner = self.option("beta", 2.0) * margin - self.option("gamma", 1.0)
            return torch.log(1 + torch.exp(-inner)), margin
        beta = self.option("beta", 0.1)
        if self.name == "orpo":
            chosen, rejected = own[0].mean().exp(), own[1].mean().exp()
            ratio = torch.log((chosen / (1 - chosen)) / (rejected / (1 - rejected)))
            return -beta * torch.log(1 / (1 + torch.exp(-ratio))), ratio
        gains = [policy - reference for policy, reference in zip(own, theirs, strict=True)]
        kind = self.option("loss", "ipo" if self.name == "ipo" else "sigmoid")
        if self.option("length_normalised", kind == "ipo"):
            margin = gains[0].mean() - gains[1].mean()
        else:
            margin = gains[0].sum() - gains[1].sum()
        if kind == "ipo":
            return (margin - 0.5 / beta) ** 2, margin
        if kind == "hinge":
            return (1 - beta * margin).clamp(min=0), margin
        right = -torch.log(1 / (1 + torch.exp(-beta * margin)))
        wrong = -torch.log(1 / (1 + torch.exp(beta * margin)))
        smoothing = self.option("label_smoothing", 0.0)
        if kind == "robust":
            return ((1 - smoothing) * right - smoothing * wrong) / (1 - 2 * smoothing), margin
        return (1 - smoothing) * right + smoothing * wrong, margin

    def kto(self, groups: list[list[ScoredTrajectory]]) -> Tensor:
        episodes = [(number, scored) for number, group in enumerate(groups) for scored in group]
        longest = max(len(ids) for _, scored in episodes for ids, _ in flat(scored, 0)[:1])
        gaps = []
        for place, (number, scored) in enumerate(episodes):
            after = [*episodes[place + 1 :], *episodes[:place]]
            other = next(one for group, one in after if group != number)
            prompt = list(scored.trajectory.turns[0].prompt_token_ids)
            ids, written = flat(other, 0)[0]
            first = len(other.trajectory.turns[0].prompt_token_ids)
            spliced = [*prompt, *ids[first:]][:longest]
            places = [at - first + len(prompt) for at in written]
            places = [at for at in places if at < longest]
            with torch.no_grad():
                gaps.append(sum((says(self.policy, spliced, places) - says(self.reference, spliced, places)).tolist()))
        kl = max(0.0, sum(gaps) / len(gaps))
        self.told["kl"] = kl
        losses = []
        for _, scored in episodes:
            with torch.no_grad():
                reference = self.tokens_of(self.reference, scored, 0).sum()
            gain = self.tokens_of(self.policy, scored, 0).sum() - reference
            beta = self.option("beta", 0.1)
            if reward_of(scored) >= self.option("desirable_from", 0.5):
                losses.append(self.option("desirable_weight", 1.0) * (1 - torch.sigmoid(beta * (gain - kl))))
            else:
                losses.append(self.option("undesirable_weight", 1.0) * (1 - torch.sigmoid(beta * (kl - gain))))
        return torch.stack(losses).mean()

    def tokens_of(self, model: Any, scored: ScoredTrajectory, shared: int) -> Tensor:
        """The log-probabilities of all tokens that count on a side."""
        return torch.cat([says(model, ids, written) for ids, written in flat(scored, shared) if written])


def flat(scored: ScoredTrajectory, shared: int) -> list[tuple[list[int], list[int]]]:
    """The token ids of each sequence, and where the replies behind the first `shared` turns stand."""
    found: list[tuple[list[int], list[int]]] = []
    for number, turn in enumerate(scored.trajectory.turns):
        if number == 0 or turn.context == "replaced":
            found.append(([], []))
        ids, written = found[-1]
        ids.extend(turn.prompt_token_ids)
        if number >= shared:
            written.extend(range(len(ids), len(ids) + len(turn.response_token_ids)))
        ids.extend(turn.response_token_ids)
    return found


def says(model: Any, ids: list[int], places: list[int]) -> Tensor:
    logits = model(torch.tensor([ids])).logits[0] / TEMPERATURE
    logprobs = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
    return torch.stack([logprobs[place - 1, ids[place]] for place in places]) if places else torch.zeros(0)


def reward_of(scored: ScoredTrajectory) -> float:
    assert scored.reward is not None
    return scored.reward.total


# --- what is trained, and on what


def algorithm_for(name: str, options: dict[str, Any]) -> Preference[Any]:
    kind = ALGORITHMS.find(name)
    algorithm = kind(checked_options(kind.Options, options, table="stages.preference", owner=name))
    assert isinstance(algorithm, Preference)
    return algorithm


def trained(
    path: Path, name: str, options: dict[str, Any], *, tokens_per_microbatch: int = 40
) -> tuple[dict[str, Tensor], dict[str, float]]:
    section = UpdateOptions(steps=2, tokens_per_microbatch=tokens_per_microbatch, optimizer=DESCENT)
    model = PolicyModel.from_pretrained(path, dtype=torch.float64)
    algorithm = algorithm_for(name, options)
    engine = UpdateEngine(model, algorithm, section, temperature=TEMPERATURE)
    told: dict[str, float] = {}
    for groups in batches():
        told = engine.update(
            [row for group in groups for row in algorithm.rows([Sample(scored, 0) for scored in group])]
        )
        assert told["num_nonfinite"] == 0
    return model.hf.state_dict(), told


def batches() -> list[list[list[ScoredTrajectory]]]:
    """Two batches of five groups of four episodes of several turns; in some all begin with the same turn.

    Four of the groups are the same in both.
    """
    rng = random.Random(3)
    first, second = [
        [group(rng, f"b{batch}g{number}", shares=number % 2 == 0) for number in range(5)] for batch in range(2)
    ]
    return [first, [*first[:4], second[4]]]


def group(rng: random.Random, name: str, *, shares: bool) -> list[ScoredTrajectory]:
    first = turn(rng)
    found = []
    for sample in range(4):
        opening = first if shares else turn(rng, first.prompt_token_ids)
        turns = [opening, *(turn(rng) for _ in range(rng.randint(1, 3)))]
        if sample == 1:
            turns.append(turn(rng).model_copy(update={"context": "replaced"}))
        reward = rng.uniform(0.75, 1.0) if sample == 0 else rng.uniform(0.0, 0.95)
        found.append(make_scored(name, sample, turns=tuple(turns), total=reward))
    return found


def turn(rng: random.Random, prompt: tuple[int, ...] = ()) -> Turn:
    """Tokens of a reply differ from those of a prompt, and replies of one place begin differently, or are the same."""
    drawn = tuple(rng.randrange(1, VOCAB) for _ in range(rng.randint(2, 4)))
    return make_turn(prompt or drawn, tuple(rng.randrange(1, VOCAB) for _ in range(rng.randint(2, 5))))


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)
