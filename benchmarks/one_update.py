"""`python -m benchmarks.one_update RECIPE`: the peak memory of an update under a recipe, in bytes.

On a GPU that is the memory of PyTorch's tensors, elsewhere the resident memory of the process. It is measured on the
second update: during the first the optimiser has no moments yet. The rows have the recipe's longest context, share
nothing, and are trained on all their tokens.
"""

import re
import sys
import tempfile
from pathlib import Path
from typing import Final

import torch
from gymfleet_contracts.recipe import load_recipe
from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.learning.options import ReinforceOptions
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.run.memory_plan import memory_plan  # noqa: F401 - the plan counts what its process has loaded
from gymfleet_trainer.run.plan import stages_of

_MICROBATCHES: Final = 3
_PEAK: Final = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def main() -> None:
    """Update twice, and print the peak."""
    recipe = load_recipe(Path(sys.argv[1]))
    (stage,) = stages_of(recipe)
    options: ReinforceOptions = stage.options
    length = recipe.rollout.limits.max_context_tokens
    count = _MICROBATCHES * options.tokens_per_microbatch // length
    rows = [
        TrainSequence(
            token_ids=[2 + number % 7, *(3 + (number * 31 + place) % 97 for place in range(length - 1))],
            loss_mask=[True] * length, behaviour_logprobs=[-5.0] * length,
            token_rewards=[0.0] * (length - 1) + [float(number % 2)], staleness=0, trajectory_id=f"run/g/{number}",
        )
        for number in range(count)
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        learner = LocalLearner(recipe, str(recipe.model.path), Path(place))
        learner.begin(stage.name, options)
        told = [learner.update_rows(rows) for _ in range(2)][-1]
    assert told["num_updates"] == 1
    assert told["num_trained_tokens"] == count * (length - 1)
    print(peak_bytes(on_gpu=recipe.trainer_device != "cpu" and torch.cuda.is_available()))


def peak_bytes(*, on_gpu: bool) -> int:
    """Return the peak memory of this process."""
    if on_gpu:
        return torch.cuda.max_memory_allocated()
    found = _PEAK.search(Path("/proc/self/status").read_text(encoding="ascii"))
    if found is None:
        raise RuntimeError("/proc/self/status names no VmHWM: the peak is read where Linux tells it")
    return int(found[1]) * 1024


if __name__ == "__main__":
    main()
