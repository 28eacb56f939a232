"""The costs of a step and an episode, from `benchmarks/results/*.json`: measured, on CPUs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchmarks.record import RESULTS


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs: times in seconds of one core, sizes in bytes, unless the name says otherwise."""

    gateway_step_s: float
    front_step_s: float
    redis_step_s: float
    rollout_step_s: float
    reward_trajectory_s: float
    redis_trajectory_s: float
    env_step_s: float
    """Time of the env server's shards, including opening and closing."""
    env_session: float
    env_rest: float
    service_rest: Mapping[str, float]
    redis_session: float
    redis_step: float
    redis_trajectory_token: float
    file_step: float
    file_trajectory_token: float
    wire_step: float
    """Bytes into and out of Redis."""

    @classmethod
    def measured(cls, env: str, results: Path = RESULTS) -> Self:
        """Return the costs from the result files. Raises `KeyError` for an environment that was not measured."""
        costs, envs = figures(results / "costs.json"), figures(results / "envs.json")
        tokens = costs["trajectory: tokens"]
        # Both cores of the machine were busy, and the caller's own work is included: this is an upper bound.
        env_step_s = _cores(results / "envs.json") / envs[f"{env}: served"]
        return cls(
            gateway_step_s=costs["turn: processor time, gateway"] / 1e6,
            front_step_s=costs["turn: processor time, env front"] / 1e6,
            redis_step_s=costs["turn: processor time, redis"] / 1e6,
            rollout_step_s=costs["turn: processor time, rollout without engine"] / 1e6,
            reward_trajectory_s=costs["trajectory: processor time, reward"] / 1e6,
            redis_trajectory_s=costs["trajectory: processor time, redis"] / 1e6,
            env_step_s=env_step_s,
            env_session=envs[f"{env}: memory per session"] * 1e6,
            env_rest=costs.get(f"memory at rest: env server, {env}", costs["memory at rest: env server, textcraft"])
            * 1e6,
            service_rest={
                name: costs[f"memory at rest: {name}"] * 1e6 for name in ("gateway", "rollout", "reward", "redis")
            },
            redis_session=costs["redis: memory of an open session"],
            redis_step=costs["redis: memory of a step in it"],
            redis_trajectory_token=costs["redis: memory of a scored trajectory"] / tokens,
            file_step=costs["redis: written to its file, per step"],
            file_trajectory_token=costs["redis: written to its file, per trajectory"] / tokens,
            wire_step=costs["redis: received, per step"] + costs["redis: sent, per step"],
        )


def figures(path: Path) -> dict[str, float]:
    """Return the values of a result file by name."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return {row["name"]: row["value"] for row in document["rows"]}


def _cores(path: Path) -> int:
    hardware: str = json.loads(path.read_text(encoding="utf-8"))["hardware"]
    return int(hardware.partition(" cores")[0].rsplit(" ", 1)[1])
