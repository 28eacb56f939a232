"""Facts about one batch of groups: whether it may be trained on, its content, and where its time went."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import pstdev
from typing import Final

from gymfleet_contracts.trajectory import ReplyEnd, Turn

from gymfleet_trainer.run.groups import Group
from gymfleet_trainer.run.state import RunState

_ROUNDING: Final = 1e-9
"""A share of 0.3 of ten groups is three, although 0.3 * 10 may be a little more."""


def refusal(
    group: Group, state: RunState, max_staleness: int, *, bootstraps: bool = False, min_group_size: int = 1
) -> str:
    """Return why a complete group must not be trained on, or an empty string if it may be.

    A strategy that plays a group together may have produced fewer episodes than the `min_group_size` to be compared.
    With `bootstraps`, a critic estimates the value of the state at which the recipe cut off an episode, which
    needs the tokens of that state.
    """
    if reason := group.failure_reason() or _without_turns(group):
        return f"failed: {reason}"
    if (size := len(group.trajectories)) < min_group_size:
        return (
            f"failed: {group.request.strategy.use} exported {size} of the {min_group_size} episodes that are compared"
        )
    if bootstraps and (reason := _unvalued_cut(group)):
        return f"failed: {reason}"
    staleness = state.staleness(group.oldest_version)
    if staleness is None:
        return f"stale: the weights of version {group.oldest_version} were lost"
    if staleness > max_staleness:
        return f"stale: {staleness} versions behind, max_staleness is {max_staleness}"
    return ""


def _without_turns(group: Group) -> str:
    empty = [scored.trajectory.trajectory_id for scored in group.trajectories if not scored.trajectory.turns]
    return f"{empty[0]} ended before its first turn" if empty else ""


def _unvalued_cut(group: Group) -> str:
    for scored in group.trajectories:
        trajectory = scored.trajectory
        if trajectory.finish_reason.cut_by_recipe and not trajectory.final_prompt_token_ids:
            return (
                f"{trajectory.trajectory_id} was cut ({trajectory.finish_reason.value}) and has no "
                "final_prompt_token_ids: ppo cannot value the state that it was cut in"
            )
    return ""


def contradiction(group: Group) -> str:
    """Return why the records of a group cannot all be right, or an empty string.

    Where a strategy branched, a node is one turn, which occurs in each trajectory that passes through it.
    """
    known: dict[str, tuple[Turn, str]] = {}
    for trajectory in (scored.trajectory for scored in group.trajectories):
        for turn in trajectory.turns:
            if turn.node is None:
                continue
            first, name = known.setdefault(turn.node, (turn, trajectory.trajectory_id))
            if _sampled(first) != _sampled(turn):
                return f"failed: {name} and {trajectory.trajectory_id} contradict each other about node {turn.node!r}"
    return ""


def _sampled(turn: Turn) -> tuple[object, ...]:
    return turn.parent, turn.prompt_token_ids, turn.response_token_ids, turn.response_logprobs


def totals(group: Group) -> list[float]:
    """Return the total rewards of the episodes."""
    return [scored.reward.total for scored in group.trajectories if scored.reward is not None]


def num_spread(num_groups: int, share: float) -> int:
    """Return how many of a batch's groups the share is, rounded up."""
    return math.ceil(share * num_groups - _ROUNDING)


def most_spread(groups: Sequence[Group], share: float) -> list[Group]:
    """Return the share of groups, at least one of any, whose rewards have the largest standard deviation, in order.

    StarPO-S of RAGEN, arXiv:2504.20073, section 4: a policy learns most from what it is uncertain of. Of equal groups,
    the first ones are kept.
    """
    num_kept = num_spread(len(groups), share)
    widest = sorted(range(len(groups)), key=lambda place: (-pstdev(totals(groups[place])), place))
    return [groups[place] for place in sorted(widest[:num_kept])]


def has_signal(group: Group) -> bool:
    """Return whether the group's returns differ: if all are equal, every advantage is 0."""
    return len(set(totals(group))) > 1


def book_batch(state: RunState, groups: list[Group], *, wait_s: float, update_s: float) -> None:
    """Add a trained batch to the run's counters and clocks.

    Episodes overlap, so the wall time spent waiting is divided in proportion to
    the seconds that the episodes spent in generation, in the environment, and
    between their end and their arrival (reward computation and queues).
    """
    trajectories = [scored.trajectory for group in groups for scored in group.trajectories]
    state.count("groups_trained", len(groups))
    state.count("groups_zero_variance", sum(not has_signal(group) for group in groups))
    state.count("episodes_trained", len(trajectories))
    state.count("tokens_trained", sum(trajectory.num_response_tokens for trajectory in trajectories))
    for trajectory in trajectories:
        state.count(f"status.{trajectory.status.value}")
    state.spend("step_wait", wait_s)
    state.spend("step_update", update_s)
    for name, seconds in wait_shares(groups, wait_s).items():
        state.spend(f"step_{name}", seconds)


def wait_shares(groups: list[Group], wait_s: float) -> dict[str, float]:
    """Split the wait into `generation`, `environment` and `reward`; if nothing was timed, it is all generation."""
    turns = [turn for group in groups for scored in group.trajectories for turn in scored.trajectory.turns]
    spent = {
        "generation": sum(turn.generate_s for turn in turns),
        "environment": sum(turn.environment_s for turn in turns),
        "reward": sum(seconds for group in groups for seconds in group.waited_s.values()),
    }
    total = sum(spent.values())
    if total <= 0:
        return {"generation": wait_s, "environment": 0.0, "reward": 0.0}
    return {name: wait_s * seconds / total for name, seconds in spent.items()}


def staleness_shares(state: RunState, turns: Iterable[Turn]) -> dict[str, float]:
    """Return the shares of sampled tokens by the number of weight changes between their version and this batch.

    A reply that was continued under new weights counts span by span. Weights that a restart has lost are `lost`.
    """
    tokens: Counter[str] = Counter()
    for turn in turns:
        for span in turn.policy_versions:
            age = state.ages.get(span.version)
            tokens["lost" if age is None else str(state.age - 1 - age)] += span.num_tokens
    return {f"staleness_share_{name}": count / tokens.total() for name, count in sorted(tokens.items())}


def batch_metrics(state: RunState, groups: list[Group], *, wait_s: float, update_s: float) -> dict[str, float]:
    """Return the metrics of a step for `metrics.jsonl`, without those that the update itself reports."""
    trajectories = [scored.trajectory for group in groups for scored in group.trajectories]
    rewards = [total for group in groups for total in totals(group)]
    staleness = [state.age - 1 - state.ages[group.oldest_version] for group in groups]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    num_turns = len(turns)
    return {
        "success": sum(trajectory.success for trajectory in trajectories) / len(trajectories),
        "score": sum(trajectory.score for trajectory in trajectories) / len(trajectories),
        "reward_mean": sum(rewards) / len(rewards),
        "episodes": len(trajectories),
        "groups_zero_variance": sum(not has_signal(group) for group in groups),
        "turns": num_turns,
        "turns_mean": num_turns / len(trajectories),
        "cut_replies": sum(turn.reply_end is ReplyEnd.LENGTH for turn in turns) / max(num_turns, 1),
        "truncated": sum(trajectory.status.value == "truncated" for trajectory in trajectories) / len(trajectories),
        "tokens": sum(trajectory.num_response_tokens for trajectory in trajectories),
        "staleness_max": max(staleness),
        **staleness_shares(state, turns),
        "wait_s": round(wait_s, 4),
        "update_s": round(update_s, 4),
        **{f"{name}_s": round(seconds, 4) for name, seconds in wait_shares(groups, wait_s).items()},
    }
