"""The records of played episodes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.session import TaskRef
from gymfleet_contracts.trajectory import EXPERT, FinishReason, PolicyRef, Status, Trajectory, Turn, trajectory_id

from gymfleet_rollout.parts import Sampler
from gymfleet_rollout.play import Play
from gymfleet_rollout.tree import Node

_MAX_ERROR_CHARS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Attempt:
    """The start of an attempt, and who replies in it."""

    policy: Sampler
    by_expert: bool = False
    number: int = 1
    format_version: int = 0
    """0 for a format that cannot be used."""
    started_at: float = field(default_factory=time.time)
    began: float = field(default_factory=time.perf_counter)

    @property
    def model(self) -> str:
        """Return who writes the replies."""
        return EXPERT if self.by_expert else self.policy.model

    @property
    def live_version(self) -> int:
        """Return the policy version of a record without turns."""
        return 0 if self.by_expert else self.policy.live_version


def recorded(
    group: GroupRequest, samples: Sequence[int], attempt: Attempt, play: Play, group_size: int | None
) -> list[Trajectory]:
    """Return the episodes that a strategy exported, as these samples of a group of this size."""
    return [
        _trajectory(
            group,
            sample,
            attempt,
            leaf,
            turns=play.turns(leaf),
            status=Status.COMPLETED if leaf.ended is FinishReason.TERMINATED else Status.TRUNCATED,
            score=leaf.score,
            success=leaf.score >= 1.0,
            finish_reason=leaf.ended,
            selected=chosen == "selected",
            rejected=chosen == "rejected",
            final_prompt_token_ids=play.final_prompt(leaf),
            images=play.files(leaf.turns()),
            group_size=group_size,
        )
        for sample, (leaf, chosen) in zip(samples, play.handed_in.leaves, strict=False)
    ]


def failed(
    group: GroupRequest,
    sample: int,
    attempt: Attempt,
    failure: Exception,
    status: Status,
    play: Play | None = None,
    *,
    group_size: int | None = None,
) -> Trajectory:
    """Return the record of a failure, with the turns before it if the sample was played by itself."""
    newest = None if play is None else play.newest
    turns = tuple(newest.turns()) if newest is not None and group_size is None else ()
    images = () if play is None else play.files(turns)
    error = f"{type(failure).__name__}: {failure}"[:_MAX_ERROR_CHARS]
    return _trajectory(
        group, sample, attempt, newest, turns=turns, status=status, finish_reason=FinishReason.ERROR, error=error,
        group_size=group_size, images=images,
    )  # fmt: skip


def _trajectory(
    group: GroupRequest, sample: int, attempt: Attempt, node: Node | None, *, turns: tuple[Turn, ...], **more: Any
) -> Trajectory:
    versions = [span.version for turn in turns for span in turn.policy_versions]
    return Trajectory(
        trajectory_id=trajectory_id(group.run_id, group.group_id, sample),
        run_id=group.run_id,
        group_id=group.group_id,
        sample=sample,
        attempt=attempt.number,
        replay=group.replay,
        task=_requested_task(group) if node is None else node.task,
        sealed=None if node is None else node.sealed,
        seat=None if node is None else node.seat,
        policy=PolicyRef(
            model=attempt.model,
            version_min=min(versions, default=attempt.live_version),
            version_max=max(versions, default=attempt.live_version),
        ),
        strategy=group.strategy.use,
        purpose=group.purpose,
        temperature=None if attempt.by_expert else group.temperature_of(None if more.get("group_size") else sample),
        format=group.format.name,
        format_version=attempt.format_version,
        turns=turns,
        final_observation="" if node is None else node.observation,
        final_parts=() if node is None else node.parts,
        started_at=attempt.started_at,
        duration_s=time.perf_counter() - attempt.began,
        **more,
    )


def _requested_task(group: GroupRequest) -> TaskRef:
    """Return the task as it was requested, for an attempt that has no session to describe it."""
    task = group.task
    return TaskRef(
        env=task.env,
        split=task.split,
        level=task.level or "",
        task_id=task.task_id or f"#{task.task_index}",
        seed=task.seed,
    )
