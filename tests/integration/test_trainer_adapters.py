"""A learner that trains adapters: what it keeps, how it goes on, and that two processes train what one trains."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.recipe_sections import LoraSection
from gymfleet_trainer.distributed.ranks import Ranks
from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.learning.options import PreferenceUpdates
from gymfleet_trainer.learning.pairs import PREFERRED
from gymfleet_trainer.model.adapted_policy import AdaptedPolicy
from gymfleet_trainer.model.adapters import adapter_tensors
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.model.optimizer import OptimizerOptions
from gymfleet_trainer.stages.reinforce import Reinforce
from gymfleet_trainer.stages.sft import Supervised
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.fixtures.scored import make_recipe
from tests.fixtures.trainer_plans import stage_of
from tests.fixtures.trainer_ranks import RankPool, Work, demonstrations, groups_of, learn, rank_pool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MODEL: Final = {"path": "unused", "lora": {"rank": 3, "alpha": 6.0}}
RL: dict[str, Any] = {
    "steps": 4, "groups_per_step": 5, "group_size": 3, "tokens_per_microbatch": 40,
    "optimizer": {"learning_rate": 1e-3, "schedule": "cosine", "warmup_steps": 2, "eps": 1e-6},
}  # fmt: skip
KL: dict[str, Any] = {**RL, "updates_per_step": 2, "kl": {"coefficient": 0.1}}
PPO: dict[str, Any] = {
    **RL, "algorithm": "ppo", "updates_per_step": 2,
    "critic": {"optimizer": {"learning_rate": 1e-3, "max_grad_norm": 0.1, "eps": 1e-6}},
}  # fmt: skip
PAIRS: Final = {"min_gap": 0.001, "min_chosen_reward": -100.0, "max_pairs_per_task": 2}
DPO: dict[str, Any] = {**RL, "algorithm": "dpo", "pairs": PAIRS}
SFT: dict[str, Any] = {"epochs": 3, "tokens_per_batch": 30}
PROMPTS: Final = [[5, 6, 7], [8, 9]]
SAMPLES: Final = [[20, 21], [30, 31, 32]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    with rank_pool(2, tmp_path_factory.mktemp("ranks")) as pool:
        yield pool


def adapter(directory: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = load_file(directory / "checkpoint" / "model" / "adapter_model.safetensors")
    return tensors


def logprobs_by(model: Any) -> list[float]:
    found = []
    for prompt, sample in zip(PROMPTS, SAMPLES, strict=True):
        with torch.no_grad():
            table = model(torch.tensor([[*prompt, *sample]])).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        found += [float(table[place, token]) for place, token in enumerate(sample)]
    return found


def flat(rows: list[list[float]]) -> list[float]:
    return [value for row in rows for value in row]


def assert_metrics_agree(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        timeless = {name: value for name, value in mine.items() if not name.endswith("_s")}
        assert timeless == pytest.approx({name: theirs[name] for name in timeless}, rel=1e-4, abs=1e-5, nan_ok=True)


@pytest.mark.parametrize(
    "rl",
    [
        pytest.param(KL, id="a reference in the loss"),
        pytest.param({**KL, "kl": {"coefficient": 0.1, "refresh_every": 1}}, id="a reference that is renewed"),
        pytest.param(PPO, id="a critic"),
        pytest.param(DPO, id="pairs"),
    ],
)
def test_two_workers_train_as_one(pair: RankPool, tiny_model: Path, tmp_path: Path, rl: dict[str, Any]) -> None:
    recipe = make_recipe(rl=rl, sft=SFT, model=MODEL)
    one, two = (
        Work(recipe, tiny_model, tmp_path / name, sft_epochs=range(2), steps=range(2)) for name in ("one", "two")
    )

    alone = learn(None, one)
    together = pair.run(learn, two)[0]

    assert_metrics_agree(alone, together)
    ours, theirs = adapter(one.directory), adapter(two.directory)
    assert ours.keys() == theirs.keys()
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) < 5e-5
    assert all(float(value.abs().mean()) > 1e-4 for name, value in ours.items()), "and training did move them"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_workers_hold_frozen_weights_in_bfloat16(
    pair: RankPool, tiny_model: Path, tmp_path: Path, dtype: str
) -> None:
    """Beside adapters of either precision; sums of bfloat16 differ by their order, so a first update is compared."""
    model = {"path": "unused", "lora": {**MODEL["lora"], "dtype": dtype}}  # type: ignore[dict-item]
    recipe = make_recipe(rl={**RL, "kl": {"coefficient": 0.1}}, model=model, trainer_dtype="bfloat16")
    one, two = (Work(recipe, tiny_model, tmp_path / name, steps=range(1)) for name in ("one", "two"))

    (alone,) = learn(None, one)
    (together,) = pair.run(learn, two)[0]

    assert together["grad_norm"] == pytest.approx(alone["grad_norm"], rel=0.02)
    assert together["num_trained_tokens"] == alone["num_trained_tokens"]
    for directory in (one.directory, two.directory):
        assert {str(value.dtype) for value in adapter(directory).values()} == {f"torch.{dtype}"}


@pytest.mark.parametrize("writer", ["one writes", "two write"])
def test_a_checkpoint_goes_on_with_another_number_of_workers(
    pair: RankPool, tiny_model: Path, tmp_path: Path, writer: str
) -> None:
    recipe = make_recipe(rl={**KL, "kl": {"coefficient": 0.1, "refresh_every": 1}}, model=MODEL)
    through = Work(recipe, tiny_model, tmp_path / "through", steps=range(3))
    first = Work(recipe, tiny_model, tmp_path / "first", steps=range(2))
    rest = Work(
        recipe, tiny_model, tmp_path / "rest", steps=range(2, 3),
        resume=first.directory / "checkpoint", reference=first.directory / "reference",
    )  # fmt: skip

    undisturbed = learn(None, through)
    if writer == "one writes":
        learn(None, first)
        resumed = pair.run(learn, rest)[0]
    else:
        pair.run(learn, first)
        resumed = learn(None, rest)

    assert_metrics_agree(undisturbed[2:], resumed)
    ours, theirs = adapter(through.directory), adapter(rest.directory)
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) < 5e-5


def saved(ranks: Ranks | None, recipe: Recipe, model: Path, directory: Path) -> list[float]:
    """What a learner that was trained says, after it saved all there is to save."""
    learner = LocalLearner(recipe, str(model), directory / "reference", ranks)
    learner.begin("reinforce", stage_of(recipe, Reinforce).options)
    for step in range(2):
        learner.update(groups_of(recipe, step), {1: 0}.get)
    for name in ("model", "published", "checkpoint"):
        if ranks is None or ranks.first:
            (directory / name).mkdir(parents=True)
        if ranks is not None:
            ranks.agree(None)
    learner.save_model(directory / "model")
    learner.save_weights(directory / "published")
    learner.save_checkpoint(directory / "checkpoint")
    return flat(learner.sampled_logprobs(PROMPTS, SAMPLES))


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_saved_says_what_the_learner_says(
    pair: RankPool, tiny_model: Path, tmp_path: Path, workers: int
) -> None:
    recipe = make_recipe(rl=RL, model=MODEL, inference={"dtype": "bfloat16"})
    ours = (
        saved(None, recipe, tiny_model, tmp_path) if workers == 1 else pair.run(saved, recipe, tiny_model, tmp_path)[0]
    )

    base = AutoModelForCausalLM.from_pretrained(str(tiny_model))
    assert max(abs(a - b) for a, b in zip(logprobs_by(base), ours, strict=True)) > 1e-3
    merged = AutoModelForCausalLM.from_pretrained(str(tmp_path / "model"))
    assert AutoTokenizer.from_pretrained(str(tmp_path / "model")).get_vocab()
    adapted = PeftModel.from_pretrained(base, str(tmp_path / "model" / "adapter"))
    assert logprobs_by(merged) == pytest.approx(logprobs_by(adapted), abs=1e-4)
    for parameter in adapted.parameters():  # what is probed is the policy in the precision of the engine
        parameter.data = parameter.data.bfloat16().float()
    assert logprobs_by(adapted) == pytest.approx(ours, abs=1e-4)

    published = load_file(tmp_path / "published" / "adapter_model.safetensors")
    assert {value.dtype for value in published.values()} == {torch.bfloat16}
    assert {path.name for path in (tmp_path / "published").iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors",
    }  # fmt: skip
    kept = {path.name for path in (tmp_path / "checkpoint" / "model").iterdir()}
    assert "adapter_model.safetensors" in kept
    assert "tokenizer.json" in kept
    assert not {"model.safetensors", "config.json"} & kept, "the base is never written again"


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param(Reinforce, {**KL, "kl": {"coefficient": 0.1, "refresh_every": 1}}, id="reinforce"),
        pytest.param(Supervised, SFT, id="sft"),
    ],
)
def test_it_goes_on_where_it_stood(
    tiny_model: Path, tmp_path: Path, kind: type[Reinforce | Supervised], options: dict[str, Any]
) -> None:
    """Bit for bit."""
    sft = kind is Supervised
    recipe = make_recipe(rl=None if sft else options, sft=options if sft else None, model=MODEL)
    stage = stage_of(recipe, kind)

    def train(learner: LocalLearner, step: int) -> None:
        if sft:
            learner.sft_epoch(learner.sequences(demonstrations()), step)
        else:
            learner.update(groups_of(recipe, step), {1: 0}.get)

    undisturbed = LocalLearner(recipe, str(tiny_model), tmp_path / "references")
    undisturbed.begin(stage.name, stage.options)
    train(undisturbed, 0)
    (tmp_path / "checkpoint").mkdir()
    undisturbed.save_checkpoint(tmp_path / "checkpoint")
    restored = LocalLearner(recipe, str(tiny_model), tmp_path / "references")
    restored.load_checkpoint(tmp_path / "checkpoint")
    restored.begin(stage.name, stage.options)
    for learner in (undisturbed, restored):
        train(learner, 1)

    one, other = (adapter_tensors(learner._model.hf) for learner in (undisturbed, restored))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert (tmp_path / "checkpoint" / "reference" / "adapter_model.safetensors").is_file() != sft


def test_a_stage_starts_from_the_model_of_another_or_from_the_beginning(tiny_model: Path, tmp_path: Path) -> None:
    recipe = make_recipe(rl={**RL, "kl": {"coefficient": 0.1}}, sft=SFT, model=MODEL)
    learner = LocalLearner(recipe, str(tiny_model), tmp_path / "references")
    start = learner.sampled_logprobs(PROMPTS, SAMPLES)
    learner.begin("sft", stage_of(recipe, Supervised).options)
    learner.sft_epoch(learner.sequences(demonstrations()), 0)
    learner.end()
    (tmp_path / "sft").mkdir()
    learner.save_model(tmp_path / "sft")
    imitated = learner.sampled_logprobs(PROMPTS, SAMPLES)
    learner.begin("reinforce", stage_of(recipe, Reinforce).options)
    metrics = learner.update(groups_of(recipe, 0), {1: 0}.get)

    assert abs(metrics["reference_kl"]) < 1e-9, "the reference is the policy after imitation and not the bare model"
    learner.start_from(tmp_path / "sft")
    assert learner.sampled_logprobs(PROMPTS, SAMPLES) == imitated != start
    learner.start_from(None)
    assert learner.sampled_logprobs(PROMPTS, SAMPLES) == start
    assert isinstance(learner._model, AdaptedPolicy)


def test_a_stage_of_preferences_compares_with_the_policy_at_its_start(tiny_model: Path, tmp_path: Path) -> None:
    learner = LocalLearner(make_recipe(model=MODEL), str(tiny_model), tmp_path / "references")
    nothing = [0.0] * 4
    rows = [
        TrainSequence(
            [5, 6, 7, 8 + sample], [False, False, False, True], nothing, nothing, 1, f"run-1/g/{sample}", unit="pair",
            fields={PREFERRED: torch.full((4,), preferred)},
        )
        for sample, preferred in enumerate((1.0, 0.0))
    ]  # fmt: skip
    updates = PreferenceUpdates(algorithm="dpo", optimizer=OptimizerOptions(learning_rate=1e-2))

    for stage in ("better", "again"):
        learner.begin(stage, updates)
        margins = [learner.update_rows(rows)["preference_margin"] for _ in range(3)]
        assert margins[0] == 0.0
        assert margins[2] > margins[1] > 0.0
    learner.begin("by another", updates.model_copy(update={"reference": str(tiny_model)}))
    assert learner.update_rows(rows)["preference_margin"] > margins[2], "what both stages gained"


def test_what_a_judge_begins_as_is_whole(tiny_model: Path, tmp_path: Path) -> None:
    learner = LocalLearner(make_recipe(rl=RL, model=MODEL), str(tiny_model), tmp_path / "references")
    learner.begin("reinforce", stage_of(make_recipe(rl=RL), Reinforce).options)
    learner.update(groups_of(make_recipe(rl=RL), 0), {1: 0}.get)

    kept = AutoModelForCausalLM.from_pretrained(str(learner._kept_policy(whole=True)))

    assert logprobs_by(kept) == pytest.approx(flat(learner.sampled_logprobs(PROMPTS, SAMPLES)), abs=1e-4)


def test_without_the_table_the_recipe_says_what_it_said() -> None:
    recipe = make_recipe()

    assert "lora" not in recipe.model_dump(mode="json")["model"]
    assert make_recipe(model=MODEL).model.lora == LoraSection(rank=3, alpha=6.0)
