"""The episodes to collect, and their names."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal

from gymfleet_contracts.session import EnvironmentSpec, OpenSession, Split
from gymfleet_contracts.trajectory import Purpose, trajectory_id

from gymfleet_cli.console import UsageProblem

Form = Literal["episodes", "conversations"]

MAX_TASKS: Final = 10_000_000
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


@dataclass(frozen=True, slots=True)
class Manner:
    """Everything that determines an episode except its task and sample: the records of one file share it."""

    model: str
    format: str
    """The name of a reply format; empty for each environment's own."""
    split: Split
    level: str | None
    seed: int
    temperature: float | None
    max_reply_tokens: int
    max_turns: int | None
    form: Form

    @property
    def purpose(self) -> Purpose:
        """Return the purpose of the episodes: stages refuse to learn from episodes for measuring."""
        return "collect" if self.split == "train" else "eval"

    @property
    def run_id(self) -> str:
        """Return the run id shared by all its episodes."""
        told = json.dumps(asdict(self), sort_keys=True).encode()
        return f"collect-{hashlib.sha256(told).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode to play."""

    env: str
    task_index: int
    sample: int

    def group_id(self, manner: Manner) -> str:
        """Return the name shared by the episodes of this task."""
        level = "" if manner.level is None else f".{manner.level}"
        return f"{self.env}.{manner.split}{level}.t{self.task_index:06d}"

    def id(self, manner: Manner) -> str:
        """Return the id of its record."""
        return trajectory_id(manner.run_id, self.group_id(manner), self.sample)

    def opening(self, manner: Manner) -> OpenSession:
        """Return the request that opens its session."""
        return OpenSession(
            env=self.env, split=manner.split, level=manner.level, task_index=self.task_index, seed=manner.seed
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """The tasks of each environment, and how often each is played."""

    tasks: tuple[int, ...]
    num_samples: int

    def episodes(self, envs: Sequence[str]) -> Iterator[Episode]:
        """Yield all episodes: the environments in turn for each task, with the samples of a task in a row."""
        for index in self.tasks:
            for env in envs:
                for sample in range(self.num_samples):
                    yield Episode(env, index, sample)

    def number(self, envs: Sequence[str]) -> int:
        """Return the number of episodes."""
        return len(self.tasks) * self.num_samples * len(envs)


def choice_of(
    num_episodes: int | None, tasks: str | None, num_samples: int, specs: Sequence[EnvironmentSpec], manner: Manner
) -> Choice:
    """Return the episodes that the command line asks for. Raises `UsageProblem`."""
    if (num_episodes is None) == (tasks is None):
        raise UsageProblem("give either --episodes, how many, or --tasks, which ones, such as 0-99,120")
    if tasks is not None:
        return Choice(_ranges(tasks), num_samples)
    at_once = num_samples * len(specs)
    if num_episodes is None or num_episodes % at_once:
        raise UsageProblem(
            f"--episodes {num_episodes}: {len(specs)} environments with {num_samples} samples of each task make "
            f"multiples of {at_once}"
        )
    num_tasks = num_episodes // at_once
    for spec in specs:
        there = spec.splits.get(manner.split, 0)
        if num_tasks > there and manner.level in (None, spec.default_level):
            raise UsageProblem(
                f"--episodes {num_episodes}: {spec.name} has {there} tasks in {manner.split}, asked for are {num_tasks}"
            )
    return Choice(tuple(range(num_tasks)), num_samples)


def _ranges(text: str) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for part in text.split(","):
        matched = _RANGE.fullmatch(part.strip())
        if matched is None:
            raise UsageProblem(f"--tasks {text}: give indices and ranges, such as 0-99,120")
        first, last = int(matched[1]), int(matched[2] or matched[1])
        if last < first or last - first >= MAX_TASKS:
            raise UsageProblem(f"--tasks {part.strip()}: give a range from the lower to the higher index")
        found.update(dict.fromkeys(range(first, last + 1)))
    return tuple(found)
