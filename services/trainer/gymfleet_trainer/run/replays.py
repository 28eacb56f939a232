"""Deciding which samples are requested again, and which records do not belong to this run."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.trajectory import ScoredTrajectory, Trajectory, Turn

from gymfleet_trainer.run.groups import Group, is_failure

Find: TypeAlias = Callable[[str], GroupRequest | None]
"""Returns the request that the run makes under a group id, or None for an id that is not its own."""


class Referee:
    """Report the fault of a record that is readable but of no use to this run.

    Args:
        find: finds the run's requests.
        vocab_size: every token id is smaller than this.
        format_versions: the versions of the run's reply formats, by name.
    """

    def __init__(self, find: Find, vocab_size: int, format_versions: Mapping[str, int]) -> None:
        self._find = find
        self._vocab_size = vocab_size
        self._format_versions = format_versions

    def fault(self, scored: ScoredTrajectory) -> str:
        """Return why the record must go to the dead letters, or an empty string if it answers a request of the run."""
        trajectory = scored.trajectory
        request = self._find(trajectory.group_id)
        if request is None:
            return f"no group {trajectory.group_id!r} is asked for by this run"
        told = {
            "run_id": (trajectory.run_id, request.run_id),
            "purpose": (trajectory.purpose, request.purpose),
            "strategy": (trajectory.strategy, request.strategy.use),
            "env": (trajectory.task.env, request.task.env),
            "split": (trajectory.task.split, request.task.split),
            "format": (trajectory.format, request.format.name),
        }
        for name, (given, wanted) in told.items():
            if given != wanted:
                return f"{name} is {given!r}, {wanted!r} was asked for"
        if trajectory.rejected and not request.rejected:
            return "a search rejected it, and only what it handed in was asked for"
        if trajectory.group_size is None and trajectory.sample >= request.num_samples:
            return f"sample {trajectory.sample} is none of {request.num_samples}"
        return "" if not trajectory.status.trainable else self._unusable(scored, request)

    def _unusable(self, scored: ScoredTrajectory, request: GroupRequest) -> str:
        """Return the fault that would make an update on this record fail, or an empty string."""
        trajectory = scored.trajectory
        if (version := self._format_versions.get(trajectory.format)) != trajectory.format_version:
            return f"format {trajectory.format!r} is of version {trajectory.format_version}, not {version}"
        if trajectory.purpose == "train" and (fault := _no_sample_of_the_policy(trajectory)):
            return fault
        # If the expert's first move does not fit into a reply, the record is not at fault: it is no demonstration.
        if not trajectory.num_response_tokens and not trajectory.by_expert:
            return "it was played to its end without a token"
        prompts = [*(turn.prompt_token_ids for turn in trajectory.turns), trajectory.final_prompt_token_ids]
        replies = [turn.response_token_ids for turn in trajectory.turns]
        highest = max((max(ids) for ids in (*prompts, *replies) if ids), default=-1)
        if highest >= self._vocab_size:
            return f"token {highest} is beyond the model's {self._vocab_size}"
        limit = request.limits.max_context_tokens
        num_tokens = max(map(_num_tokens, trajectory.sequences()), default=0)
        if num_tokens > limit or len(prompts[-1]) > limit:
            return f"{num_tokens} tokens and {len(prompts[-1])} behind them exceed max_context_tokens ({limit})"
        return ""


def _num_tokens(turns: Sequence[Turn]) -> int:
    return sum(len(turn.prompt_token_ids) + len(turn.response_token_ids) for turn in turns)


def _no_sample_of_the_policy(trajectory: Trajectory) -> str:
    """Return why a policy gradient cannot learn from an episode, or an empty string."""
    if trajectory.selected:
        return (
            f"the strategy {trajectory.strategy} selected it for how well it ended, so it is no sample of the policy: "
            "reinforce learns from what is exported without `selected`"
        )
    return "the environment's expert wrote it, so it is no sample of the policy" if trajectory.by_expert else ""


class Patience:
    """Decide how often a sample that failed is requested again within its group.

    This is up to `max_replays` times if a good sample was seen since it first failed, or in its own group: then
    this episode is at fault. Otherwise it is once: the task or the whole fleet may be at fault, and others judge that.
    """

    def __init__(self, max_replays: int) -> None:
        self._max_replays = max_replays
        self._num_good = 0
        self._failures: dict[tuple[str, int], tuple[int, int]] = {}

    def note(self, scored: ScoredTrajectory) -> None:
        """Record the arrival of a sample."""
        self._num_good += not is_failure(scored)

    def allows(self, group: Group, sample: int) -> bool:
        """Count one more failure of a sample, and return whether to request it again."""
        key = group.group_id, sample
        count, since = self._failures.get(key, (0, self._num_good))
        self._failures[key] = count + 1, since
        hopeful = self._num_good > since or len(group.failed) < len(group.samples)
        return count < (self._max_replays if hopeful else 1)

    def forget(self, group_id: str) -> None:
        """Drop the failures of a settled group."""
        for key in [key for key in self._failures if key[0] == group_id]:
            del self._failures[key]
