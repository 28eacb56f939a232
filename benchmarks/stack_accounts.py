"""The books of a finished run: groups produced, trained and dropped, and whether anything happened twice."""

import re
from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import torch
from gymfleet_cli.run_directory import RunFiles
from gymfleet_contracts.recipe import Recipe, load_recipe
from gymfleet_contracts.stages import PlannedStage
from gymfleet_trainer.learning.options import ReinforceOptions
from gymfleet_trainer.run.state import RunState

_TRAINING_GROUP: Final = r"s\d{6}-g\d{2,}(-t\d+)?(-r\d+)?"
EXPECTED_DROPS: Final = frozenset({"lost", "not needed", "stale"})
"""Reasons that follow from a kill or an early end; `failed` or `mismatch` would be a fault."""


@dataclass(frozen=True, slots=True)
class Accounts:
    """Counts over a run; every count in `faults` must be zero."""

    steps: int
    trained: int
    produced: int
    """Training groups for which the rollout service produced a sample."""
    dropped: Counter[str]
    """Dropped groups by reason."""
    resumed: int
    republished: int
    trajectories: int
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    faults: Mapping[str, int]

    @classmethod
    def of(cls, run_dir: Path, produced: Mapping[str, AbstractSet[int]]) -> Self:
        """Read the last checkpoint and the metrics of a finished run; `produced` was read from Redis during the run."""
        checkpoint = run_dir / "checkpoints" / (run_dir / "checkpoints" / "latest").read_text(encoding="ascii").strip()
        state = RunState.model_validate_json((checkpoint / "state.json").read_text(encoding="utf-8"))
        files = RunFiles.open(run_dir)
        lines = files.metrics("rl_step")
        recipe = load_recipe(run_dir / "recipe.toml")
        stage = reinforcement(recipe)
        options = ReinforceOptions.model_validate(stage.options)
        training_group = re.compile(rf"{re.escape(stage.name)}\.{_TRAINING_GROUP}")
        groups = {group for group in produced if training_group.fullmatch(group)}
        measured = [state.evals[one.name].model_dump() for one in state.left if one.name in state.evals]
        trained, dropped = set(state.trained), set(state.dropped)
        partly = sum(1 for group in trained & groups if len(produced[group]) < options.group_size)
        saved = torch.load(checkpoint / "optimizer.pt", weights_only=True)["rl"]["optimizer"]["num_steps"]
        reasons = Counter(reason.partition(":")[0] for reason in state.dropped.values())
        return cls(
            steps=state.step,
            trained=len(trained),
            produced=len(groups),
            dropped=reasons,
            resumed=state.counts.get("resumed", 0),
            republished=state.counts.get("republished", 0),
            trajectories=state.counts.get("trajectories_received", 0),
            before=measured[0] if measured else {},
            after=measured[-1] if measured else {},
            faults={
                "run not finished": int(len(state.left) < len(recipe.plan())),
                "groups trained twice": len(state.trained) - len(trained),
                "groups trained and dropped": len(trained & dropped),
                "groups produced, neither trained nor dropped": len(groups - trained - dropped),
                "groups trained that nobody produced": len(trained - groups),
                "groups trained with samples missing": partly,
                "groups still open": len(state.open_slots),
                "steps recorded twice or never": _gap([line["step"] for line in lines], state.step),
                "groups trained, off steps times groups a step": abs(
                    len(trained) - state.step * options.groups_per_step
                ),
                "updates of the optimiser, off those recorded": abs(saved - sum(line["num_updates"] for line in lines)),
                "groups dropped for another reason than a kill": sum(
                    number for reason, number in reasons.items() if reason not in EXPECTED_DROPS
                ),
            },
        )


def reinforcement(recipe: Recipe) -> PlannedStage:
    """Return the `reinforce` stage, whose books these are. Raises `ValueError` unless there is exactly one."""
    (stage,) = [stage for stage in recipe.plan() if stage.kind == "reinforce"]
    return stage


def _gap(steps: list[int], last: int) -> int:
    counts = Counter(steps)
    return sum(abs(counts[step] - 1) for step in {*counts, *range(1, last + 1)})
