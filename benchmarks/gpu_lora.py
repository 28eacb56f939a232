"""Adapters from two updates to the engine: the check `lora` of `gpu_check`.

vLLM samples from a random model; adapters are trained on its replies for two steps, written in the form that a run
publishes, and loaded by vLLM under a name of their own. Engine and trainer must then agree on its samples, as must the
model that the adapters are merged into: in bfloat16, as on a GPU, within the tolerance that a run would calibrate; in
float32, as in the smoke form, the merged model within 1e-4 at every token.
"""

import tempfile
import time
from pathlib import Path
from typing import Any, Final

from gymfleet_contracts.recipe import Recipe
from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.publish.probe import compare
from gymfleet_trainer.publish.tolerance import calibrated, tolerance
from gymfleet_trainer.run.plan import stages_of
from gymfleet_trainer.run.state import RunState

from benchmarks import gpu_parts

_RANK: Final = 16
_MERGED_FLOAT32: Final = 1e-4


def measure(smoke: bool) -> dict[str, Any]:
    """Return differences in log-probability between engine, adapter and merged model, and seconds of the publish."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        path = gpu_parts.random_model(place, smoke)
        recipe = _recipe(path, smoke, lora={"rank": _RANK, "alpha": 2.0 * _RANK})
        core = gpu_parts.small_engine(path, recipe.inference.dtype, max_lora_rank=_RANK)
        learner = LocalLearner(recipe, str(path), place / "references")
        prompts = gpu_parts.random_prompts()

        tokens, logprobs = gpu_parts.replies(core, prompts)
        first = compare(learner.sampled_logprobs(prompts, tokens), logprobs)
        state = RunState(run_id="run", recipe_hash="")
        calibrated(recipe, state, first)
        allowed = tolerance(recipe, state)

        (stage,) = stages_of(recipe)
        learner.begin(stage.name, stage.options)
        rows = [_row(*one) for one in zip(prompts, tokens, logprobs, range(len(prompts)), strict=True)]
        updates = [learner.update_rows(rows) for _ in range(2)]

        started = time.perf_counter()
        learner.save_weights(place / "v1")
        core.load(place / "v1")
        publish_s = time.perf_counter() - started

        tokens, logprobs = gpu_parts.replies(core, prompts, version=1)
        adapted = learner.sampled_logprobs(prompts, tokens)
        published = compare(adapted, logprobs)
        learner.save_model(place / "merged")
        merged = _said_by(place / "merged", smoke, prompts, tokens)
        unadapted = _said_by(path, smoke, prompts, tokens)
    joined, moved = compare(adapted, merged), compare(adapted, unadapted)
    same = joined.max_abs <= _MERGED_FLOAT32 if smoke else joined.within(allowed)
    trained = all(told["num_updates"] == 1 and not told["num_nonfinite"] for told in updates)
    return {
        "tolerance": allowed,
        "base_mean_difference": first.mean_abs,
        "adapter_mean_difference": published.mean_abs,
        "merged_mean_difference": joined.mean_abs,
        "merged_largest_difference": joined.max_abs,
        "moved_by": moved.mean_abs,
        "publish_s": round(publish_s, 3),
        "ok": trained and first.within(allowed) and published.within(allowed) and same and moved.mean_abs > allowed,
    }


def _recipe(model: Path, smoke: bool, **more: Any) -> Recipe:
    dtype = "float32" if smoke else "bfloat16"
    stage = {
        "kind": "reinforce", "algorithm": "reinforce_pp", "steps": 2, "tokens_per_microbatch": 4096,
        "optimizer": {"learning_rate": 1e-2},
    }  # fmt: skip
    return Recipe.model_validate(
        {
            "name": "lora",
            "environments": [{"name": "maze"}],
            "model": {"path": str(model), **more},
            "inference": {"dtype": dtype},
            "trainer_dtype": dtype,
            "trainer_device": "cpu" if smoke else "cuda",
            "stages": [stage],
        }
    )


def _row(prompt: list[int], reply: list[int], logprobs: list[float], number: int) -> TrainSequence:
    """Return the row of a reply, rewarded with its share of even tokens: random replies differ in it."""
    length = len(prompt) + len(reply)
    reward = sum(token % 2 == 0 for token in reply) / len(reply)
    return TrainSequence(
        token_ids=[*prompt, *reply],
        loss_mask=[False] * len(prompt) + [True] * len(reply),
        behaviour_logprobs=[0.0] * len(prompt) + logprobs,
        token_rewards=[0.0] * (length - 1) + [reward],
        staleness=0,
        trajectory_id=f"run/{number}/0",
    )


def _said_by(model: Path, smoke: bool, prompts: gpu_parts.Rows, tokens: gpu_parts.Rows) -> list[list[float]]:
    """Return the trainer's log-probabilities with a whole model."""
    return LocalLearner(_recipe(model, smoke), str(model), model / "references").sampled_logprobs(prompts, tokens)
