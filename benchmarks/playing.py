"""Episodes played by the rollout service's own player."""

from collections.abc import Iterable

from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.trajectory import Trajectory
from gymfleet_rollout.player import Player


async def episodes(player: Player, group: GroupRequest, samples: Iterable[int]) -> list[Trajectory]:
    """Play samples of a group; return the trajectories in the order in which they ended."""
    played: list[Trajectory] = []

    async def keep(trajectories: list[Trajectory]) -> None:
        played.extend(trajectories)

    await player.play(group, list(samples), keep)
    return played
