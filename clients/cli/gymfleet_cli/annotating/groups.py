"""Stored episodes by group: counted in a first reading, passed on as whole groups in a second."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeGuard

from gymfleet_contracts.faults import faults
from gymfleet_contracts.trajectory import MAX_GROUP_SIZE, ScoredTrajectory
from gymfleet_kit.data.columns import record_of
from gymfleet_kit.data.reading import DataError, records
from pydantic import ValidationError

MAX_HELD_CHARS: Final = 1 << 28
"""The most characters of episodes held while their groups are not yet whole."""
_CHARS_PER_TOKEN: Final = 8
_ID: Final = ("run_id", "group_id", "sample")
_NO_EPISODE: Final = "no episode: only what was played is scored; `gymfleet data inspect` says what a file has"


@dataclass(slots=True)
class Groups:
    """The samples of each group that a file has."""

    samples: dict[str, int] = field(default_factory=dict)
    """A bit for each sample, by group."""
    num_episodes: int = 0

    def note(self, group: str, sample: int) -> bool:
        """Count an episode; return False if the file has it already."""
        there, bit = self.samples.get(group, 0), 1 << sample
        if there & bit:
            return False
        self.samples[group] = there | bit
        self.num_episodes += 1
        return True

    def size(self, group: str) -> int:
        """Return how many episodes of a group the file has."""
        return self.samples[group].bit_count()

    def num_samples(self, group: str) -> int:
        """Return the least number of episodes that the group has, including those that the file lacks."""
        return self.samples[group].bit_length()

    def has(self, trajectory_id: str) -> bool:
        """Return whether an episode is in the file."""
        group, _, sample = trajectory_id.rpartition("/")
        return bool(self.samples.get(group, 0) >> int(sample) & 1)

    def is_whole(self, group: str) -> bool:
        """Return whether no sample is missing before the last one."""
        return self.num_samples(group) == self.size(group)


def counted(path: Path) -> Groups:
    """Count the groups of a file. Raises `DataError` for a record that is no episode, and for a repeated episode."""
    groups = Groups()
    for place, raw in records(path):
        told: Any = raw.get("trajectory", raw)
        run_id, group_id, sample = map(told.get, _ID) if isinstance(told, dict) else (None, None, None)
        if not (isinstance(run_id, str) and isinstance(group_id, str) and _is_sample(sample)):
            raise DataError(f"{place}: {_NO_EPISODE}")
        group = f"{run_id}/{group_id}"
        if not groups.note(group, sample):
            raise DataError(f"{place}: the episode {group}/{sample} is there twice")
    return groups


def episodes_in(path: Path) -> Iterator[ScoredTrajectory]:
    """Yield the episodes of a file. Raises `DataError` for a record that is no episode."""
    return (_episode(place, raw) for place, raw in records(path))


def whole_groups(path: Path, groups: Groups) -> Iterator[list[ScoredTrajectory]]:
    """Yield the episodes of each group, by sample, once the last of them is read.

    Raises `DataError` for a record that is no episode, and if the episodes of many groups are so far apart that memory
    would not be bounded.
    """
    held: dict[str, list[ScoredTrajectory]] = {}
    num_chars = 0
    for place, raw in records(path):
        scored = _episode(place, raw)
        trajectory = scored.trajectory
        group = f"{trajectory.run_id}/{trajectory.group_id}"
        held.setdefault(group, []).append(scored)
        num_chars += _chars(scored)
        if len(held[group]) == groups.size(group):
            episodes = held.pop(group)
            num_chars -= sum(map(_chars, episodes))
            yield sorted(episodes, key=lambda one: one.trajectory.sample)
        elif num_chars > MAX_HELD_CHARS:
            raise DataError(f"{place}: {len(held)} groups have begun and are not whole: sort the file by group_id")


def _episode(place: str, raw: Mapping[str, Any]) -> ScoredTrajectory:
    try:
        record = record_of(raw)
    except ValidationError as error:
        raise DataError(f"{place}: {faults(error, most=2)}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{place}: no record of ours: {type(error).__name__}: {error}") from None
    if not isinstance(record, ScoredTrajectory):
        raise DataError(f"{place}: {_NO_EPISODE}")
    return record


def _is_sample(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_GROUP_SIZE


def _chars(scored: ScoredTrajectory) -> int:
    """Return roughly how many characters an episode holds."""
    return sum(
        len(turn.observation) + len(turn.text) + len(turn.thought)
        + _CHARS_PER_TOKEN * (len(turn.prompt_token_ids) + 2 * len(turn.response_token_ids))
        for turn in scored.trajectory.turns
    )  # fmt: skip
