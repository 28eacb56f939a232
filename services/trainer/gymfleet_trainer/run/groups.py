"""Groups, while their samples arrive."""

from collections.abc import Callable
from dataclasses import dataclass, field

from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.trajectory import ScoredTrajectory


@dataclass(slots=True)
class Group:
    """A group that was requested, and the samples that have come back."""

    request: GroupRequest
    samples: dict[int, ScoredTrajectory] = field(default_factory=dict)
    waited_s: dict[int, float] = field(default_factory=dict)
    """Per sample, the seconds from the end of its episode to its arrival here: queues and reward computation."""
    replays: dict[int, int] = field(default_factory=dict)
    """Per sample that was requested again, its last replay number: failures of older replays are already known."""
    lost: dict[int, str] = field(default_factory=dict)
    """Samples that are not requested again although nothing usable arrived, with the reason."""
    replaced: list[ScoredTrajectory] = field(default_factory=list)
    """Failures that were played again: their steps count too."""
    size: int | None = None
    """Number of samples, if the first one to arrive states it; otherwise it is the number requested."""

    @property
    def group_id(self) -> str:
        """Return the group id of the request."""
        return self.request.group_id

    @property
    def numbers(self) -> range:
        """Return the group's sample numbers."""
        return range(self.request.num_samples if self.size is None else self.size)

    @property
    def complete(self) -> bool:
        """Return whether every sample has arrived."""
        return not self.missing

    @property
    def trajectories(self) -> list[ScoredTrajectory]:
        """Return the trajectories in the order of their sample numbers, not of their arrival."""
        return [self.samples[sample] for sample in self.numbers if sample in self.samples]

    @property
    def failed(self) -> list[ScoredTrajectory]:
        """Return the samples that say nothing about the policy: infrastructure failed, or no reward was computed."""
        return [s for s in self.trajectories if is_failure(s)]

    @property
    def missing(self) -> list[int]:
        """Return the samples that have not arrived yet."""
        return [n for n in self.numbers if n not in self.samples and n not in self.lost]

    def again(self, samples: tuple[int, ...], replay: int) -> GroupRequest:
        """Return a request for these samples only."""
        return self.request.model_copy(update={"samples": samples, "replay": replay, "num_samples": len(self.numbers)})

    @property
    def env_steps(self) -> int:
        """Return how many actions the group took: those of every sample that arrived, each node of a tree once."""
        return len(
            {
                (trajectory.sample, trajectory.replay, place) if turn.node is None else (trajectory.replay, turn.node)
                for trajectory in (scored.trajectory for scored in [*self.samples.values(), *self.replaced])
                for place, turn in enumerate(trajectory.turns)
                if turn.action is not None
            }
        )

    def failure_reason(self) -> str:
        """Return one line about the first failure, or an empty string if there is none."""
        if not self.failed:
            return next((f"lost: {reason}" for _, reason in sorted(self.lost.items())), "")
        first = self.failed[0]
        trajectory = first.trajectory
        detail = f"no reward: {first.reward_error}" if trajectory.status.trainable else trajectory.error
        return f"{trajectory.status.value}: {detail}" if detail else trajectory.status.value

    @property
    def oldest_version(self) -> int:
        """Return the oldest policy version that sampled any part of the group."""
        return min(s.trajectory.policy.version_min for s in self.trajectories)


def is_failure(scored: ScoredTrajectory) -> bool:
    """Return whether the sample says nothing about the policy: infrastructure failed, or no reward was computed."""
    return not scored.trajectory.status.trainable or scored.reward is None


def _improves(scored: ScoredTrajectory, there: ScoredTrajectory) -> bool:
    """Return whether a sample that was played again replaces the present failure."""
    return is_failure(there) and not is_failure(scored)


class GroupBook:
    """The open groups: requested, and not yet trained, measured or dropped.

    After a restart, samples arrive of groups that the new process has not requested
    yet. They wait here, unacknowledged, because they are never produced again.

    Args:
        is_settled: returns whether an earlier process of the run had settled a group.
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
        """Return whether the group's samples must stay pending, because it is open or will be."""
        return group_id in self._open or group_id in self._early

    def add(self, request: GroupRequest) -> Group | None:
        """Open a group, unless it is open already. Returns the group if samples that came early complete it."""
        if request.group_id in self._open:
            return None
        group = self._open[request.group_id] = Group(request)
        for scored, waited_s in self._early.pop(request.group_id, []):
            self.place(scored, waited_s)
        return group if group.complete else None

    def settle(self, group_id: str) -> None:
        """Close a group, so that its deliveries may be acknowledged with the next checkpoint."""
        self._open.pop(group_id, None)
        self._settled.add(group_id)

    def place(self, scored: ScoredTrajectory, waited_s: float = 0.0) -> Group | None:
        """Put a sample into its group. Returns the group when this sample completed it.

        A sample changes nothing if it is already there and not as a failure (delivery is at least once), if it
        does not belong to the request, or if its group is settled; nor does a failure for which the sample
        was already requested again.
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
        if group.size is None and not group.complete:
            group.size = trajectory.group_size
        if trajectory.sample in group.lost or trajectory.sample not in group.numbers:
            return None
        if is_failure(scored) and trajectory.replay < group.replays.get(trajectory.sample, 0):
            return None
        if there is not None:
            group.replaced.append(there)
        group.samples[trajectory.sample] = scored
        group.waited_s[trajectory.sample] = waited_s
        return group if group.complete else None

    def is_settled(self, group_id: str) -> bool:
        """Return whether this process of the run, or an earlier one, settled the group."""
        return group_id in self._settled or self._is_settled(group_id)

    def get(self, group_id: str) -> Group | None:
        """Return an open group, or None."""
        return self._open.get(group_id)

    def reopen(self, group: Group, sample: int, replay: int) -> None:
        """Wait for a sample again, and ignore older failures of it."""
        if (failure := group.samples.pop(sample, None)) is not None:
            group.replaced.append(failure)
        group.waited_s.pop(sample, None)
        group.replays[sample] = replay

    def incomplete(self) -> list[Group]:
        """Return the groups that wait for samples."""
        return [group for group in self._open.values() if not group.complete]
