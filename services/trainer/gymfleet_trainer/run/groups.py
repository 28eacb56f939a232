"""Groups while they fill up."""

from collections.abc import Callable
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
    replays: dict[int, int] = field(default_factory=dict)
    """Per sample that was asked for again, what was last asked for: failures of older ones are known."""
    lost: dict[int, str] = field(default_factory=dict)
    """Samples that are not asked for again although nothing usable came, and why."""

    @property
    def group_id(self) -> str:
        """The request's."""
        return self.request.group_id

    @property
    def complete(self) -> bool:
        """Whether every sample is there."""
        return len(self.samples) + len(self.lost) == self.request.num_samples

    @property
    def trajectories(self) -> list[ScoredTrajectory]:
        """In the order of their sample numbers, whatever order they came in."""
        return [self.samples[sample] for sample in sorted(self.samples)]

    @property
    def failed(self) -> list[ScoredTrajectory]:
        """Samples that say nothing about the policy: the machinery failed, or no reward could be computed."""
        return [s for s in self.trajectories if is_failure(s)]

    @property
    def missing(self) -> list[int]:
        """Samples that are still waited for."""
        return [n for n in range(self.request.num_samples) if n not in self.samples and n not in self.lost]

    def failure_reason(self) -> str:
        """One line about the first failure; empty without one."""
        if not self.failed:
            return next((f"lost: {reason}" for _, reason in sorted(self.lost.items())), "")
        first = self.failed[0]
        trajectory = first.trajectory
        detail = f"no reward: {first.reward_error}" if trajectory.status.trainable else trajectory.error
        return f"{trajectory.status.value}: {detail}" if detail else trajectory.status.value

    @property
    def oldest_version(self) -> int:
        """The oldest policy version that wrote any of it."""
        return min(s.trajectory.policy.version_min for s in self.samples.values())


def is_failure(scored: ScoredTrajectory) -> bool:
    """Whether the sample says nothing about the policy: the machinery failed, or no reward could be computed."""
    return not scored.trajectory.status.trainable or scored.reward is None


def _improves(scored: ScoredTrajectory, there: ScoredTrajectory) -> bool:
    """Whether a sample that was played again takes the place of the failure that is there."""
    return is_failure(there) and not is_failure(scored)


class GroupBook:
    """The open groups: asked for, and not yet trained, measured or dropped.

    After a restart samples come back of groups that this life of the run has not
    asked for yet. They wait here, unacknowledged, for they are never produced again.

    Args:
        is_settled: whether an earlier life of the run was done with a group.
    """

    def __init__(self, is_settled: Callable[[str], bool]) -> None:
        self._is_settled = is_settled
        self._settled: set[str] = set()
        self._open: dict[str, Group] = {}
        self._early: dict[str, list[tuple[ScoredTrajectory, float]]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._open

    def needs(self, group_id: str) -> bool:
        """Whether the group's samples must stay pending: it is open, or will be."""
        return group_id in self._open or group_id in self._early

    def add(self, request: GroupRequest) -> Group | None:
        """Open a group; one that is open already is left as it is. Returns it if early samples complete it."""
        if request.group_id in self._open:
            return None
        group = self._open[request.group_id] = Group(request)
        for scored, waited_s in self._early.pop(request.group_id, []):
            self.place(scored, waited_s)
        return group if group.complete else None

    def settle(self, group_id: str) -> None:
        """Close a group: its deliveries may be acknowledged with the next checkpoint."""
        self._open.pop(group_id, None)
        self._settled.add(group_id)

    def place(self, scored: ScoredTrajectory, waited_s: float = 0.0) -> Group | None:
        """Put a sample into its group. Returns the group when this sample completed it.

        A sample that is there already (delivery is at least once), unless as a failure, that is none of the
        request's, or whose group is settled changes nothing; nor does a failure for which the sample was asked for
        again.
        """
        trajectory = scored.trajectory
        group = self._open.get(trajectory.group_id)
        if group is None:
            if not self.is_settled(trajectory.group_id):
                self._early.setdefault(trajectory.group_id, []).append((scored, waited_s))
            return None
        there = group.samples.get(trajectory.sample)
        if trajectory.run_id != group.request.run_id or (there is not None and not _improves(scored, there)):
            return None
        if trajectory.sample in group.lost or trajectory.sample >= group.request.num_samples:
            return None
        if is_failure(scored) and trajectory.replay < group.replays.get(trajectory.sample, 0):
            return None
        group.samples[trajectory.sample] = scored
        group.waited_s[trajectory.sample] = waited_s
        return group if group.complete else None

    def is_settled(self, group_id: str) -> bool:
        """Whether this life of the run, or an earlier one, was done with a group."""
        return group_id in self._settled or self._is_settled(group_id)

    def get(self, group_id: str) -> Group | None:
        """An open group."""
        return self._open.get(group_id)

    def reopen(self, group: Group, sample: int, replay: int) -> None:
        """Wait for a sample again, and let no older failure of it count."""
        group.samples.pop(sample, None)
        group.waited_s.pop(sample, None)
        group.replays[sample] = replay

    def incomplete(self) -> list[Group]:
        """Groups that wait for samples."""
        return [group for group in self._open.values() if not group.complete]
