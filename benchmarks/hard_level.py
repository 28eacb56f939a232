"""The level of bench_expert_iteration: how it was chosen, and the recipes of the methods on it."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gymfleet_contracts.recipe import Recipe, load_recipe

RECIPES: Final = Path(__file__).parents[1] / "recipes" / "methods"
METHODS: Final = ("grpo", "dapo", "rejection_sampling", "expert_iteration", "go_explore")
SHOWN: Final = "medium"
"""The level of the demonstrations that the starting model has imitated."""
CANDIDATES: Final = ("medium", "hard")
"""The candidate levels, the easier one first."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The success of the starting model's independent episodes on a level's validation tasks."""

    num_tasks: int
    samples: int
    """Number of episodes of each task."""
    one: float
    """The share of solved episodes: pass@1."""
    any: float
    """The share of tasks solved by any of the samples: pass@`samples`."""


MEASURED: Final[Mapping[str, Sampled]] = {
    "medium": Sampled(num_tasks=32, samples=64, one=20 / 2048, any=7 / 32),
    "hard": Sampled(num_tasks=32, samples=64, one=6 / 2048, any=3 / 32),
}
"""The output of `--choose` with seed 0, by level."""
_MOST_EPISODES: Final = 8_000
"""The most episodes of a stage: a run holds no more."""
CHOSEN: Final = "medium"
"""Fixed by MEASURED before any method was run: the first candidate with 1 to 5 % of its episodes solved, rounded to
whole per cent. Any of 64 episodes is solved for 22 % and 9 % of the tasks: by that reading neither level is in this
range, and both are easier."""


def warm_start(arguments: argparse.Namespace) -> Recipe:
    """Return the recipe of the model that all methods begin with, including its measurements on the candidates."""
    document = _document("warm_start")
    asked = {"kind": "measure", "num_tasks": arguments.choice_tasks, "samples_per_task": arguments.choice_samples}
    stages = [
        *(stage for stage in document["stages"] if stage["kind"] != "measure"),
        *({**asked, "name": level, "level": level} for level in CANDIDATES),
    ]
    return _played({**document, "stages": stages}, SHOWN, "validation")


def method(name: str, model: Path, arguments: argparse.Namespace) -> Recipe:
    """Return a method's recipe on the level, with the environment steps that `arguments` allow."""
    document = _document(name)
    for stage in document["stages"]:
        if stage.get("kind") == "measure":
            stage["num_tasks"] = arguments.eval_tasks
        if stage.get("kind") == "reinforce":
            del stage["max_wall_s"]
            # A policy that stops acting takes no environment steps: the limit on updates ends it.
            stage |= {"steps": 200, "max_env_steps": arguments.env_steps}
        for inner in stage.get("stages", ()):
            if inner["kind"] == "collect":
                share = arguments.env_steps // stage["repeat"]
                # Steps run out first if every episode takes at least one.
                tasks = min(share, _MOST_EPISODES // int(inner.get("samples_per_task", 1)))
                inner |= {"num_tasks": tasks, "max_env_steps": share}
    split = "validation" if arguments.tune else "test"
    return _played({**document, "model": {"path": str(model)}}, arguments.level, split)


def _played(document: dict[str, Any], level: str, split: str) -> Recipe:
    environments = [{**one, "level": level, "eval_split": split} for one in document["environments"]]
    return Recipe.model_validate({**document, "environments": environments})


def _document(name: str) -> dict[str, Any]:
    return load_recipe(RECIPES / f"{name}.toml").model_dump(mode="json", exclude_unset=True)
