"""A complete recipe from an environment, an algorithm and a model: it runs as it is, and can be changed by hand."""

import math
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.session import EnvironmentSpec, ForkSupport

from gymfleet_cli.console import UsageProblem

IMITATION: Final = "sft"
"""The one method that is not a reinforcement learning algorithm: a stage that imitates."""
_SCRATCH: Final = {"vocab_size": 1024, "hidden_size": 128, "intermediate_size": 384, "num_layers": 4,
                   "num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "corpus_episodes": 200}  # fmt: skip
_LONGEST: Final = 30
"""The most turns of an episode if the environment allows more."""
_MARGIN: Final = 48
"""Tokens of a small model's length that episodes leave unused."""
_REWARD: Final = {"goal": {"success": 1.0, "failure": 0.0}, "format": {"weight": 0.2}}
_STRATEGIES: Final[Mapping[str, dict[str, Any]]] = {
    "remax": {"use": "greedy_baseline"},
    "monte_carlo": {"use": "forks", "continuations": 2},
    "tree_grpo": {"use": "tree_sampling"},
}
"""The strategies of algorithms that need more than plain episodes."""
_EVALUATED: Final = frozenset({"remax", "monte_carlo"})
"""The algorithms among them that learn from values of states, for which they need an evaluator."""
_FORKING: Final = frozenset({"monte_carlo", "tree_grpo"})
_GROUP_SIZES: Final[Mapping[str, int]] = {"monte_carlo": 2, "tree_grpo": 4}
"""Small groups, as continuations from each turn, or trees, make a few episodes as much work as a usual group."""
_WITH_CRITIC: Final = frozenset({"ppo", "turn_ppo", "vapo"})


def composed(spec: EnvironmentSpec, algorithm: str, model: str | None, *, level: str | None = None) -> Recipe:
    """Return the recipe that trains a model, or one from scratch, in an environment.

    A model from scratch is warmed up on the expert's demonstrations; a given model is not, except with `sft`.

    Raises UsageProblem if the environment lacks an expert that is needed for this, or the level.
    """
    if level is not None and level not in spec.levels:
        raise UsageProblem(f"--level {level}: {spec.name} has {', '.join(spec.levels)}")
    imitates = model is None or algorithm == IMITATION
    if imitates and not spec.capabilities.expert:
        raise UsageProblem(
            f"{spec.name} has no expert whose demonstrations a model from scratch, or sft, could begin with: give "
            "--model, and an algorithm of reinforcement learning"
        )
    if algorithm in _FORKING and spec.capabilities.fork is ForkSupport.NONE:
        raise UsageProblem(f"--algorithm {algorithm}: sessions of {spec.name} cannot be forked; gigpo needs no forks")
    small = model is None
    length = _length(spec) if small else 8192
    played: dict[str, Any] = {"strategy": _STRATEGIES[algorithm]} if algorithm in _STRATEGIES else {}
    if algorithm in _EVALUATED:
        played["evaluator"] = _REWARD
    stages = [
        *(_imitation(small=small) if imitates else ()),
        *((_measurement("before"), _reinforcement(algorithm, small=small)) if algorithm != IMITATION else ()),
        _measurement("after"),
    ]
    how = "demonstrations" if algorithm == IMITATION else f"demonstrations, then {algorithm}" if imitates else algorithm
    document: dict[str, Any] = {
        "name": f"{spec.name}-{_title(algorithm)}",
        "description": f"{'A small model from scratch' if small else model} learns {spec.name}: {how}",
        "environments": [{"name": spec.name, "level": level or spec.default_level, "train_split": "train",
                          "eval_split": "test" if spec.splits.get("test") else "validation"}],
        "model": {"scratch": _SCRATCH} if small else {"path": model},
        "inference": {
            "max_model_len": length, "max_num_seqs": 256 if small else 64,
            "max_num_batched_tokens": max(length, 4096), "kv_cache_gib": 1.0 if small else 4.0,
        },
        "rollout": {
            "format": {"use": spec.format},
            "limits": {
                "max_turns": min(spec.max_turns, _LONGEST), "max_response_tokens": 64 if small else 512,
                "max_context_tokens": length - _MARGIN if small else 8000,
            },
            **played,
        },
        "reward": _REWARD,
        "checkpoint": {"every_steps": 1},
        "stages": stages,
    }  # fmt: skip
    return Recipe.model_validate(document)


def _length(spec: EnvironmentSpec) -> int:
    """Return the length of a small model in tokens: room for the instructions and at least 1,400 tokens of play.

    A vocabulary made from such episodes has 2.5 characters per token.
    """
    return 1024 * max(2, math.ceil((len(spec.instructions) / 2.5 + 1400) / 1024))


def _title(algorithm: str) -> str:
    """Return an algorithm's part of the recipe's name; the algorithm may also be a file or a class."""
    name = PurePath(algorithm).stem if algorithm.endswith(".py") else algorithm
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)


def _imitation(*, small: bool) -> tuple[dict[str, Any], ...]:
    learning_rate = 1e-3 if small else 1e-5
    return (
        {"kind": "collect", "name": "demonstrations", "strategy": "expert", "num_tasks": 400},
        {
            "kind": "sft", "data": "demonstrations", "epochs": 8 if small else 2,
            "tokens_per_batch": 2048 if small else 8192,
            "optimizer": {"learning_rate": learning_rate, "schedule": "linear", "warmup_steps": 10},
        },
    )  # fmt: skip


def _reinforcement(algorithm: str, *, small: bool) -> dict[str, Any]:
    steps = 30 if small else 100
    critic: dict[str, Any] = {"warmup_steps": steps // 10}
    if small:
        critic["optimizer"] = {"learning_rate": 1e-3, "betas": [0.9, 0.99]}
    return {
        "kind": "reinforce", "algorithm": algorithm, "steps": steps, "groups_per_step": 32,
        "group_size": _GROUP_SIZES.get(algorithm, 8),
        "updates_per_step": 4 if small else 1, "tokens_per_microbatch": 8192,
        **({"critic": critic} if algorithm in _WITH_CRITIC else {}),
        "optimizer": {
            "learning_rate": 2e-4 if small else 1e-6, "betas": [0.9, 0.99], "max_grad_norm": 0.5,
            "warmup_steps": 8 if small else 2,
        },
    }  # fmt: skip


def _measurement(name: str) -> dict[str, Any]:
    return {"kind": "measure", "name": name, "num_tasks": 200}
