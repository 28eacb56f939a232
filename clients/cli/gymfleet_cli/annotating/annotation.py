"""One call of `gymfleet data annotate`: batches of whole groups, several in flight, each kept when it is scored."""

import json
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from gymfleet_contracts.conversation import Conversation
from gymfleet_contracts.reward import ScoreRequest
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.data.reading import DataError

from gymfleet_cli.annotating.groups import Groups, counted, whole_groups
from gymfleet_cli.annotating.rewards import Rewards
from gymfleet_cli.annotating.scoring import RewardApi, Unscorable
from gymfleet_cli.collecting.store import RecordFile
from gymfleet_cli.console import CliError, UsageProblem, err, out, plain
from gymfleet_cli.counting_display import Count, CountingDisplay
from gymfleet_cli.supervisor.interrupts import Interrupts

_LOOK_EVERY_S: Final = 0.1
_MAX_BATCH: Final = 1024
_AHEAD: Final = 2
"""Batches read per batch in flight: reading does not wait for scoring, and memory stays bounded."""

Batch: TypeAlias = list[list[ScoredTrajectory]]
"""Whole groups."""


@dataclass(slots=True)
class Tally:
    """Counts of the episodes by outcome."""

    asked: int
    there: int = 0
    """Episodes that were already in the file."""
    rewarded: int = 0
    unplayed: int = 0
    """Episodes without a reward because they were not played to their end."""
    failures: Counter[str] = field(default_factory=Counter)
    """Episodes without a reward because a component failed, by its label."""
    last_failure: str = ""

    def note(self, scored: ScoredTrajectory) -> None:
        """Count an episode."""
        if scored.reward is not None:
            self.rewarded += 1
        elif scored.reward_error is None:
            self.unplayed += 1
        else:
            self.failures[scored.reward_error.partition(":")[0]] += 1
            self.last_failure = scored.reward_error

    @property
    def new(self) -> int:
        """Episodes scored by this call, with a reward or without."""
        return self.rewarded + self.unplayed + self.failures.total()

    def count(self) -> Count:
        """Return the progress."""
        return Count(self.there + self.new, self.new, self.asked, self.figures())

    def figures(self) -> list[str]:
        """Return the outcomes of the episodes scored by this call, in words."""
        parts = [f"{self.rewarded} rewarded"] if self.rewarded else []
        parts += [f"{self.unplayed} not played to their end"] if self.unplayed else []
        return [*parts, *(f"{number} without a reward by {name}" for name, number in self.failures.items())]


class Annotation:
    """Scores the episodes of a file, and keeps them in another.

    Args:
        batch_size: episodes per request, unless a group has more.
        concurrency: requests in flight at once.
    """

    def __init__(self, source: Path, rewards: Rewards, *, batch_size: int, concurrency: int) -> None:
        self._source = source
        self._rewards = rewards
        self._batch_size = min(batch_size, _MAX_BATCH)
        self._concurrency = concurrency

    def run(self, path: Path, api: RewardApi) -> None:
        """Score the episodes that the file lacks. Raises `CliError` and `Interrupted`; scored episodes are kept."""
        try:
            self._run(path, api)
        except DataError as error:
            raise CliError(str(error)) from None

    def _run(self, path: Path, api: RewardApi) -> None:
        if path.exists() and path.samefile(self._source):
            raise UsageProblem(f"{path} is what is read; give another file to write")
        groups = counted(self._source)
        tally = Tally(asked=groups.num_episodes)
        with RecordFile(path) as file:
            if file.mended:
                err.print(plain(file.mended, "yellow"), soft_wrap=True)
            self._require_same_rewards(path)
            there = _scored_before(file, groups)
            tally.there = sum(map(groups.has, there))
            with Interrupts() as interrupts, CountingDisplay(err, "episodes", ("s", 1.0), tally.count) as display:

                def look() -> None:
                    interrupts.check()
                    display.refresh()

                self._score(groups, api, file, there, tally, look)
        count = tally.count()
        told = " · ".join([f"{path}: {count.done} of {count.total} episodes", *count.figures])
        out.print(plain(told), soft_wrap=True)
        if tally.failures:
            raise CliError(f"{tally.failures.total()} episodes have no reward, the last one because: "
                           f"{tally.last_failure}")  # fmt: skip

    def _require_same_rewards(self, path: Path) -> None:
        """Record how the file's episodes are scored; refuse to go on with other rewards."""
        note = path.with_name(f"{path.name}.reward.json")
        told = json.dumps(self._rewards.told(), indent=1, sort_keys=True) + "\n"
        if not path.stat().st_size:
            note.write_text(told, encoding="utf-8")
        elif not note.is_file() or note.read_text(encoding="utf-8") != told:
            raise UsageProblem(f"{path} has episodes that were scored otherwise, see {note}; choose another file")

    def _score(
        self,
        groups: Groups,
        api: RewardApi,
        file: RecordFile,
        there: set[str],
        tally: Tally,
        look: Callable[[], None],
    ) -> None:
        batches = self._batches(groups, there)
        pending: deque[Future[list[ScoredTrajectory]]] = deque()
        threads = ThreadPoolExecutor(self._concurrency, "annotate")
        try:
            while True:
                while len(pending) < _AHEAD * self._concurrency and (batch := next(batches, None)) is not None:
                    pending.append(threads.submit(self._scored, api, groups, batch))
                    look()
                if not pending:
                    return
                wait(pending, _LOOK_EVERY_S, FIRST_COMPLETED)
                look()
                for done in [one for one in pending if one.done()]:
                    pending.remove(done)
                    for scored in done.result():
                        if scored.trajectory.trajectory_id not in there:
                            file.append(scored)
                            tally.note(scored)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def _batches(self, groups: Groups, there: set[str]) -> Iterator[Batch]:
        """Yield whole groups together, and each group with a missing sample alone: it may be refused."""
        kept: Batch = []
        for group in whole_groups(self._source, groups):
            if all(one.trajectory.trajectory_id in there for one in group):
                continue
            if not groups.is_whole(_name(group)):
                yield [group]
                continue
            if kept and sum(map(len, kept)) + len(group) > self._batch_size:
                yield kept
                kept = []
            kept.append(group)
        if kept:
            yield kept

    def _scored(self, api: RewardApi, groups: Groups, batch: Batch) -> list[ScoredTrajectory]:
        requests = [
            ScoreRequest(
                trajectory=one.trajectory, reward=self._rewards.of(one.trajectory.task.env),
                num_samples=groups.num_samples(_name(group)),
            )
            for group in batch for one in group
        ]  # fmt: skip
        try:
            return api.score(requests)
        except Unscorable as error:
            if all(groups.is_whole(_name(group)) for group in batch):
                raise UsageProblem(f"the reward service refuses the request: {error}") from None
            reason = f"group: {error}"
            return [
                ScoredTrajectory(trajectory=one.trajectory, reward=None, reward_error=reason)
                if one.trajectory.status.trainable
                else ScoredTrajectory(trajectory=one.trajectory, reward=None)
                for one in batch[0]
            ]


def _scored_before(file: RecordFile, groups: Groups) -> set[str]:
    """Return the ids of the file's episodes, but remove those for which a component failed, to score them again."""
    found: set[str] = set()
    failed: set[str] = set()
    for number, record in enumerate(file.records(), 1):
        if isinstance(record, Conversation):
            raise DataError(f"{file.path}, line {number}: a conversation; choose another file")
        name = record.trajectory.trajectory_id
        (found if record.reward_error is None or not groups.has(name) else failed).add(name)
    if failed:
        file.drop(failed)
        err.print(plain(f"scored again, since a component failed: {len(failed)} episodes"), soft_wrap=True)
    return found


def _name(group: list[ScoredTrajectory]) -> str:
    return f"{group[0].trajectory.run_id}/{group[0].trajectory.group_id}"
