"""The episode up to a node, as it is scored there."""

from gymfleet_contracts.observation import ImageFile
from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.trajectory import EXPERT, FinishReason, PolicyRef, Status, Trajectory, trajectory_id

from gymfleet_rollout.parts import Parts
from gymfleet_rollout.tree import Node


def unended(
    group: GroupRequest, sample: int, parts: Parts, node: Node, images: tuple[ImageFile, ...] = ()
) -> Trajectory:
    """Return the episode that ends at a node: as it ended there, or else as if the strategy had stopped.

    `images` are the files of the images that its prompts show.
    """
    turns = tuple(node.turns())
    versions = [span.version for turn in turns for span in turn.policy_versions]
    by_expert = any(turn.response_logprobs is None for turn in turns)
    ended = node.ended or FinishReason.STOPPED
    return Trajectory(
        trajectory_id=trajectory_id(group.run_id, group.group_id, sample),
        run_id=group.run_id,
        group_id=group.group_id,
        sample=sample,
        replay=group.replay,
        task=node.task,
        sealed=node.sealed,
        seat=node.seat,
        policy=PolicyRef(
            model=EXPERT if by_expert else parts.policy.model,
            version_min=min(versions, default=parts.policy.live_version),
            version_max=max(versions, default=parts.policy.live_version),
        ),
        strategy=group.strategy.use,
        purpose=group.purpose,
        format=group.format.name,
        format_version=parts.format.version,
        turns=turns,
        images=images,
        final_observation=node.observation,
        final_parts=node.parts,
        status=Status.COMPLETED if ended is FinishReason.TERMINATED else Status.TRUNCATED,
        score=node.score,
        success=node.score >= 1.0,
        finish_reason=ended,
    )
