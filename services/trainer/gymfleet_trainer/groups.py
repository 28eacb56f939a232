"""Groups while they fill up."""

from dataclasses import dataclass, field

from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.trajectory import ScoredTrajectory


@dataclass(slots=True)
class Group:
    """A group that was asked for, and the samples that have come back."""

    request: GroupRequest
    samples: dict[int, ScoredTrajectory] = field(default_factory=dict)
    waited_s: dict[int, float] = field(default_factory=dict)
    """Per sample, from the end of its episode to its arrival here: queues and scoring."""

    @property
    def group_id(self) -> str:
        """The request's."""
        return self.request.group_id

    @property
    def complete(self) -> bool:
        """Whether every sample is there."""
        return len(self.samples) == self.request.num_samples

    @property
    def trajectories(self) -> list[ScoredTrajectory]:
        """In the order of their sample numbers, whatever order they came in."""
        return [self.samples[sample] for sample in sorted(self.samples)]

    @property
    def failed(self) -> list[ScoredTrajectory]:
        """Samples that say nothing about the policy: the machinery failed, or no reward could be computed."""
        return [s for s in self.trajectories if not s.trajectory.status.trainable or s.reward is None]

    def failure_reason(self) -> str:
        """One line about the first failure; empty without one."""
        if not self.failed:
            return ""
        trajectory = self.failed[0].trajectory
        detail = trajectory.error or ("no reward" if trajectory.status.trainable else "")
        return f"{trajectory.status.value}: {detail}" if detail else trajectory.status.value

    @property
    def oldest_version(self) -> int:
        """The oldest policy version that wrote any of it."""
        return min(s.trajectory.policy.version_min for s in self.samples.values())


class GroupBook:
    """The open groups: asked for, and not yet trained, measured or dropped."""

    def __init__(self) -> None:
        self._open: dict[str, Group] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._open

    def add(self, request: GroupRequest) -> None:
        """Open a group; one that is open already is left as it is."""
        self._open.setdefault(request.group_id, Group(request))

    def settle(self, group_id: str) -> None:
        """Close a group: its deliveries may be acknowledged with the next checkpoint."""
        self._open.pop(group_id, None)

    def place(self, scored: ScoredTrajectory, waited_s: float = 0.0) -> Group | None:
        """Put a sample into its group. Returns the group when this sample completed it.

        A sample that is there already (delivery is at least once), that was not
        asked for, or whose group is settled changes nothing.
        """
        trajectory = scored.trajectory
        group = self._open.get(trajectory.group_id)
        if group is None or trajectory.run_id != group.request.run_id or trajectory.sample in group.samples:
            return None
        if not 0 <= trajectory.sample < group.request.num_samples:
            return None
        group.samples[trajectory.sample] = scored
        group.waited_s[trajectory.sample] = waited_s
        return group if group.complete else None

    def incomplete(self) -> list[Group]:
        """Groups that wait for samples."""
        return [group for group in self._open.values() if not group.complete]

    def complete(self) -> list[Group]:
        """Groups that are whole, in the order in which they were asked for."""
        return [group for group in self._open.values() if group.complete]
