"""What is trained with less memory: by two workers as by one, and resumed bit for bit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.recipe_sections import LoraSection
from gymfleet_trainer.learning.checkpoint_files import read_states
from gymfleet_trainer.learning.learner import LocalLearner
from safetensors.torch import load_file
from torch import Tensor

from tests.fixtures.scored import make_recipe
from tests.fixtures.trainer_ranks import RankPool, Work, learn, rank_pool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

# As test_trainer_distributed.py has it, whose docstring says why; epsilon is above what rounding makes of nothing.
LARGEST: Final = 5e-5
MEAN: Final = 1e-7
LARGEST_IN_8_BITS: Final = 2e-4
"""A moment next to the middle of two codes goes to either: that moves a weight by a part of the learning rate, 1e-3."""
OPTIMIZER: Final = {"learning_rate": 1e-3, "eps": 1e-6, "weight_decay": 0.1}
RL: Final[dict[str, Any]] = {
    "steps": 3, "groups_per_step": 5, "group_size": 3, "tokens_per_microbatch": 40, "updates_per_step": 2,
}  # fmt: skip
CRITIC: Final = {"algorithm": "ppo", "critic": {"optimizer": OPTIMIZER}}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    with rank_pool(2, tmp_path_factory.mktemp("ranks")) as pool:
        yield pool


def recipe_of(rl: dict[str, Any] | None = None, dtype: str = "float32", **optimizer: Any) -> Recipe:
    own = {**OPTIMIZER, **optimizer}
    table: dict[str, Any] = {**RL, **(rl or {}), "optimizer": own}
    if "critic" in table:
        table["critic"] = {"optimizer": own}
    if optimizer.get("master_dtype") == "bfloat16":
        dtype = "bfloat16"
    return make_recipe(rl=table, trainer_dtype=dtype, inference={"max_model_len": 4096, "dtype": dtype})


def weights(directory: Path) -> Tensor:
    state: dict[str, Tensor] = load_file(directory / "checkpoint" / "model" / "model.safetensors")
    return torch.cat([state[name].flatten() for name in sorted(state)])


def states(directory: Path) -> dict[str, Tensor]:
    """All tensors of the optimisers and the critic in a checkpoint, by where they stand."""
    found = read_states(directory / "checkpoint")["rl"]

    def tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, dict):
            for key, part in value.items():
                yield from tensors(part, f"{name}/{key}")

    return dict(tensors(found, ""))


@pytest.mark.parametrize(
    ("rl", "optimizer"),
    [
        pytest.param({}, {"kind": "adamw_8bit"}, id="moments in 8 bits"),
        pytest.param({}, {"kind": "adafactor", "learning_rate": 1e-2}, id="adafactor"),
        pytest.param(CRITIC, {"kind": "adamw_8bit"}, id="moments in 8 bits, also of a critic"),
        pytest.param(CRITIC, {"kind": "adafactor", "learning_rate": 1e-2}, id="adafactor, also for a critic"),
    ],
)
def test_two_workers_train_as_one(
    pair: RankPool, tiny_model: Path, tmp_path: Path, rl: dict[str, Any], optimizer: dict[str, Any]
) -> None:
    recipe = recipe_of(rl, **optimizer)
    one, two = (Work(recipe, tiny_model, tmp_path / name, steps=range(3)) for name in ("one", "two"))

    learn(None, one)
    pair.run(learn, two)

    differences = (weights(one.directory) - weights(two.directory)).abs()
    assert float(differences.max()) < (LARGEST_IN_8_BITS if optimizer["kind"] == "adamw_8bit" else LARGEST)
    assert float(differences.mean()) < MEAN
    alone, together = states(one.directory), states(two.directory)
    assert {name: (value.dtype, value.shape) for name, value in alone.items()} == {
        name: (value.dtype, value.shape) for name, value in together.items()
    }
    start = load_file(tiny_model / "model.safetensors")
    before = torch.cat([start[name].flatten() for name in sorted(start)])
    assert float((weights(one.directory) - before).abs().mean()) > 1000 * MEAN, "and training did move them"


@pytest.mark.parametrize(
    ("kind", "master_dtype"),
    [("adamw", "float32"), ("adamw", "bfloat16"), ("adamw_8bit", "bfloat16"), ("adafactor", "bfloat16")],
)
def test_two_workers_compute_in_bfloat16_as_one_does(
    pair: RankPool, tiny_model: Path, tmp_path: Path, kind: str, master_dtype: str
) -> None:
    rate = 1e-2 if kind == "adafactor" else 1e-3
    recipe = recipe_of(CRITIC, dtype="bfloat16", kind=kind, master_dtype=master_dtype, learning_rate=rate)
    one, two = (Work(recipe, tiny_model, tmp_path / name, steps=range(3)) for name in ("one", "two"))

    alone = learn(None, one)
    together = pair.run(learn, two)[0]

    mine, theirs = weights(one.directory), weights(two.directory)
    assert mine.dtype == theirs.dtype == getattr(torch, master_dtype)
    start = load_file(tiny_model / "model.safetensors")
    before = torch.cat([start[name].flatten() for name in sorted(start)]).bfloat16().float()
    moved, apart = (mine.float() - before).abs().mean(), (mine.float() - theirs.float()).abs().mean()
    # Norms are in float32 in one process, and weights in bfloat16 have gradients that are rounded in another order.
    assert apart < 0.35 * moved, (apart, moved)
    for line, other in zip(alone, together, strict=True):
        assert line["grad_norm"] == pytest.approx(other["grad_norm"], rel=0.05)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("master_dtype", [pytest.param("float32", marks=pytest.mark.long), "bfloat16"])
@pytest.mark.parametrize("kind", ["adamw", "adamw_8bit", "adafactor"])
def test_resumed_is_bit_identical(
    pair: RankPool, tiny_model: Path, tmp_path: Path, kind: str, master_dtype: str, workers: int
) -> None:
    recipe = recipe_of({"kl": {"coefficient": 0.1}}, kind=kind, master_dtype=master_dtype)
    through = Work(recipe, tiny_model, tmp_path / "through", steps=range(3))
    first = Work(recipe, tiny_model, tmp_path / "first", steps=range(2))
    rest = Work(
        recipe, tiny_model, tmp_path / "rest", steps=range(2, 3),
        resume=first.directory / "checkpoint", reference=first.directory / "reference",
    )  # fmt: skip

    for work in (through, first, rest):
        if workers == 1:
            learn(None, work)
        else:
            pair.run(learn, work)

    assert torch.equal(weights(through.directory), weights(rest.directory))
    undisturbed, resumed = states(through.directory), states(rest.directory)
    assert undisturbed.keys() == resumed.keys()
    assert all(torch.equal(value, resumed[name]) for name, value in undisturbed.items())


@pytest.mark.parametrize("kind", ["adamw_8bit", "adafactor"])
def test_a_checkpoint_goes_on_with_another_number_of_workers(
    pair: RankPool, tiny_model: Path, tmp_path: Path, kind: str
) -> None:
    recipe = recipe_of(kind=kind)
    through = Work(recipe, tiny_model, tmp_path / "through", steps=range(3))
    first = Work(recipe, tiny_model, tmp_path / "first", steps=range(2))
    rest = Work(recipe, tiny_model, tmp_path / "rest", steps=range(2, 3), resume=first.directory / "checkpoint")

    learn(None, through)
    pair.run(learn, first)
    learn(None, rest)

    differences = (weights(through.directory) - weights(rest.directory)).abs()
    assert float(differences.max()) < (LARGEST_IN_8_BITS if kind == "adamw_8bit" else LARGEST)
    assert float(differences.mean()) < MEAN


@pytest.mark.filterwarnings("ignore")  # of torch, about what its compiler imports
@pytest.mark.parametrize("compiles", [False, True])
def test_layers_are_compiled_where_the_recipe_says_so(tiny_model: Path, tmp_path: Path, compiles: bool) -> None:
    recipe = make_recipe()
    lora = recipe.model.model_copy(update={"lora": LoraSection(rank=2)})
    asked = {"trainer": recipe.trainer.model_copy(update={"compile": compiles})}

    for changed in (asked, asked | {"model": lora}):
        model = LocalLearner(recipe.model_copy(update=changed), str(tiny_model), tmp_path)._model
        assert [layer._compiled_call_impl is not None for layer in model.body.layers] == [compiles] * 2


@pytest.mark.parametrize("workers", [1, 2])
def test_where_weights_are_kept_and_what_is_recomputed_changes_nothing(
    pair: RankPool, tiny_model: Path, tmp_path: Path, workers: int
) -> None:
    plain = recipe_of(CRITIC)
    section = plain.trainer.model_copy(update={"cpu_offload": True, "gradient_checkpointing": True})
    saving = plain.model_copy(update={"trainer": section})
    assert LocalLearner(saving, str(tiny_model), tmp_path)._model.hf.model.is_gradient_checkpointing
    assert not LocalLearner(plain, str(tiny_model), tmp_path)._model.hf.model.is_gradient_checkpointing
    one = Work(plain, tiny_model, tmp_path / "one", steps=range(2))
    two = Work(saving, tiny_model, tmp_path / "two", steps=range(2))

    for work in (one, two):
        if workers == 1:
            learn(None, work)
        else:
            pair.run(learn, work)

    differences = (weights(one.directory) - weights(two.directory)).abs()
    assert float(differences.max()) < LARGEST
    assert float(differences.mean()) < MEAN
