"""Which samples are asked for again, and which record is none of this run's."""

from collections.abc import Callable
from typing import TypeAlias

from gymfleet_contracts.grammar import get_grammar
from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.trajectory import ScoredTrajectory

from gymfleet_trainer.run.groups import Group, is_failure

Find: TypeAlias = Callable[[str], GroupRequest | None]
"""The request that the run makes under an id; None for an id that is not its own."""


class Referee:
    """Says what is wrong with a record that can be read and is still of no use to this run.

    Args:
        find: the run's requests.
        vocab_size: tokens are below this.
    """

    def __init__(self, find: Find, vocab_size: int) -> None:
        self._find = find
        self._vocab_size = vocab_size

    def fault(self, scored: ScoredTrajectory) -> str:
        """Why the record must be buried; empty for one that answers a request of the run."""
        trajectory = scored.trajectory
        request = self._find(trajectory.group_id)
        if request is None:
            return f"no group {trajectory.group_id!r} is asked for by this run"
        told = {
            "run_id": (trajectory.run_id, request.run_id),
            "purpose": (trajectory.purpose, request.purpose),
            "strategy": (trajectory.strategy, request.strategy),
            "env": (trajectory.task.env, request.task.env),
            "split": (trajectory.task.split, request.task.split),
            "grammar": (trajectory.grammar, request.grammar),
        }
        for name, (given, wanted) in told.items():
            if given != wanted:
                return f"{name} is {given!r}, {wanted!r} was asked for"
        if trajectory.sample >= request.num_samples:
            return f"sample {trajectory.sample} is none of {request.num_samples}"
        return "" if not trajectory.status.trainable else self._unusable(scored, request)

    def _unusable(self, scored: ScoredTrajectory, request: GroupRequest) -> str:
        """What would stop an update that is made on it."""
        trajectory = scored.trajectory
        if (version := get_grammar(request.grammar).version) != trajectory.grammar_version:
            return f"grammar {request.grammar!r} is of version {trajectory.grammar_version}, not {version}"
        # An expert whose first move does not fit into a reply is no fault: its episode is no demonstration.
        if not trajectory.num_response_tokens and trajectory.strategy == "policy":
            return "it was played to its end without a token"
        prompts = [*(turn.prompt_token_ids for turn in trajectory.turns), trajectory.final_prompt_token_ids]
        replies = [turn.response_token_ids for turn in trajectory.turns]
        highest = max((max(ids) for ids in (*prompts, *replies) if ids), default=-1)
        if highest >= self._vocab_size:
            return f"token {highest} is beyond the model's {self._vocab_size}"
        limit = request.limits.max_context_tokens
        num_tokens = sum(map(len, prompts[:-1])) + sum(map(len, replies))
        if num_tokens > limit or len(prompts[-1]) > limit:
            return f"{num_tokens} tokens and {len(prompts[-1])} behind them exceed max_context_tokens ({limit})"
        return ""


class Patience:
    """How often a sample that failed is asked for again within its group.

    Up to `max_replays` times where something good was seen since it first failed, or in its own group: then it
    is this episode that fails. Otherwise once: the task or the whole fleet may be the reason, and others judge that.
    """

    def __init__(self, max_replays: int) -> None:
        self._max_replays = max_replays
        self._num_good = 0
        self._failures: dict[tuple[str, int], tuple[int, int]] = {}

    def note(self, scored: ScoredTrajectory) -> None:
        """Take notice of an arrival."""
        self._num_good += not is_failure(scored)

    def allows(self, group: Group, sample: int) -> bool:
        """Count one more failure of a sample. Whether it is to be asked for again."""
        key = group.group_id, sample
        count, since = self._failures.get(key, (0, self._num_good))
        self._failures[key] = count + 1, since
        hopeful = self._num_good > since or len(group.failed) < len(group.samples)
        return count < (self._max_replays if hopeful else 1)

    def forget(self, group_id: str) -> None:
        """A group is settled."""
        for key in [key for key in self._failures if key[0] == group_id]:
            del self._failures[key]
