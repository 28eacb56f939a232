"""How often cheats are rewarded, compared with the class's `floors`.

An author's test asserts that `faults` finds nothing.

Floors are means over the distribution of tasks, and a test plays a fixed set of tasks. It therefore allows for chance:
a mean up to the 99 % quantile of as many coin tosses with the floor's probability. Scores in [0, 1] spread no wider.
The number of tasks leaves no room for a rate that has doubled; a floor that would leave such room is refused as too
high. Below 0.109 that takes more tasks than `MOST_TASKS`: such a floor is checked from above only.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gymfleet_envs.tasks import Task

from gymfleet_env_server.catalogue import Entry
from gymfleet_env_server.cheats import POLICIES, Answer, Attempt, Cheat, Over

TASKS: Final = 12
"""Number of tasks of each level if no floor is stated: a cheat that is rewarded in any of them is a fault."""
_QUANTILE: Final = 0.99
_TASKS_AT_EVEN_ODDS: Final = 49
"""With n = 49 (1 - p) / p tasks, the standard error of the mean is p / 7, so that p + 2.33 standard errors is as much
as 2 (p - 2.33 standard errors)."""
MOST_TASKS: Final = 400


@dataclass(frozen=True, slots=True)
class Rate:
    """A cheat's score on a level."""

    cheat: str
    level: str
    score: float
    """The mean over `num_tasks` tasks, above what the episodes began with."""
    stated: float
    num_tasks: int

    @property
    def fault(self) -> str | None:
        """What is wrong with the rate, in one line; None if nothing is."""
        most = allowed(self.stated, self.num_tasks)
        over = f"over {self.num_tasks} tasks of {self.level}, where floors state {self.stated:g}"
        if self.score > most:
            return f"{self.cheat} scores {self.score:.3f} {over} (up to {most:.3f} is chance)"
        if self.stated and 2 * self.score <= most and self.num_tasks >= _telling(self.stated):
            return f"{self.cheat} scores {self.score:.3f} {over}: so high a floor would hide that it had doubled"
        return None


def faults(
    entry: Entry,
    cheats: Sequence[Cheat] = (),
    *,
    answer: Answer | None = None,
    num_tasks: int = TASKS,
    most_tasks: int = MOST_TASKS,
) -> list[str]:
    """Return a line for each case in which a cheat is rewarded more or less than the class's `floors` state.

    Args:
        entry: the environment, with its generated tasks; those of the test split are played.
        cheats: policies for this environment alone, in addition to those that are tried on all.
        answer: plays the models that the environment asks, if it asks any.
        num_tasks: of each level where no floor is stated; fewer for an environment whose steps are slow.
        most_tasks: of each level where a floor is stated.
    """
    found = rates(entry, cheats, answer=answer, num_tasks=num_tasks, most_tasks=most_tasks)
    return [*_misstated(entry, cheats), *(rate.fault for rate in found if rate.fault is not None)]


def rates(
    entry: Entry,
    cheats: Sequence[Cheat] = (),
    *,
    answer: Answer | None = None,
    num_tasks: int = TASKS,
    most_tasks: int = MOST_TASKS,
) -> Iterator[Rate]:
    """Play every cheat on every level; the arguments are those of `faults`."""
    for level in entry.spec.levels:
        total = entry.tasks.count("test", level)
        task = functools.cache(functools.partial(entry.tasks.by_index, "test", level))
        for cheat in (*POLICIES, *cheats):
            stated = entry.kind.floors.get(cheat.name, {}).get(level, 0.0)
            needed = max(num_tasks, min(_telling(stated), most_tasks)) if stated else num_tasks
            count = min(needed, total)
            # From the whole split, because neighbours in a benchmark are often alike; the other task is the one before.
            tasks = [task(place * total // count) for place in range(count)]
            scores = [_score(entry, cheat, tasks[place], tasks[place - 1], answer) for place in range(count)]
            yield Rate(cheat.name, level, sum(scores) / count, stated, count)


def _misstated(entry: Entry, cheats: Sequence[Cheat]) -> Iterator[str]:
    known = {cheat.name for cheat in (*POLICIES, *cheats)}
    for name, floors in entry.kind.floors.items():
        if name not in known:
            yield f"floors name {name}, which is no cheat"
        for level, stated in floors.items():
            if level not in entry.spec.levels:
                yield f"floors of {name} name {level}, which is no level; there are {', '.join(entry.spec.levels)}"
            if not 0 < stated < 1:
                yield f"floors of {name} state {stated:g} on {level}: a floor is more than 0 and less than 1"


def allowed(stated: float, num_tasks: int) -> float:
    """Return the highest mean score over `num_tasks` tasks that is still chance; 0 if no floor is stated."""
    if not stated:
        return 0.0
    below, count = (1 - stated) ** num_tasks, 0
    while below < _QUANTILE:
        count += 1
        below += math.comb(num_tasks, count) * stated**count * (1 - stated) ** (num_tasks - count)
    return count / num_tasks


def _telling(stated: float) -> int:
    """Return the number of tasks over which a rate of `stated` is distinguishable from one twice as high."""
    return math.ceil(_TASKS_AT_EVEN_ODDS * (1 - stated) / stated)


def _score(entry: Entry, cheat: Cheat, task: Task[Any], other: Task[Any], answer: Answer | None) -> float:
    attempt = Attempt(entry, task, other, answer)
    try:
        cheat.play(attempt)
    except Over:
        pass
    finally:
        attempt.environment.close()
    return max(0.0, attempt.score - float(attempt.environment.start_score))
