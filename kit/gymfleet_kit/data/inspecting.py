"""The work of `gymfleet data inspect`: facts about records, as counts that add up."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from gymfleet_contracts.conversation import Conversation
from gymfleet_contracts.data_records import DataRecord, Preference, TaskRow, form_of
from gymfleet_contracts.trajectory import ScoredTrajectory

from gymfleet_kit.data.chunks import Chunk
from gymfleet_kit.data.converting import CheckedConverter, converter_of
from gymfleet_kit.data.tools import tool_use
from gymfleet_kit.data.work import Done, converted

OFFERED: Final = "of tools that are offered"
HALLUCINATED: Final = "of tools that nobody offers"
_DIGITS: Final = 2
"""Digits of lengths, which are rounded: otherwise there would be as many different numbers as records."""


@dataclass(frozen=True)
class Inspection:
    """Counts facts: `form:NAME`, `env:NAME`, `success:yes`, `turns:N`, `chars:N`, `calls:KIND` and the like."""

    given: Mapping[str, Any]

    @cached_property
    def converter(self) -> CheckedConverter:
        """Return the converter that reads."""
        return converter_of(self.given, table="--from")

    def done(self, chunk: Chunk) -> Done:
        """Return the counts of a chunk."""
        done = Done()
        for _, one in converted(chunk, self.converter, done):
            done.counts.update(_facts(one))
        return done


def values(counts: Mapping[str, int], name: str) -> dict[str, int]:
    """Return the counts of one fact by value, the most frequent first."""
    found: Counter[str] = Counter(
        {key.partition(":")[2]: count for key, count in counts.items() if key.startswith(f"{name}:")}
    )
    return dict(found.most_common())


def quantiles(counts: Mapping[str, int], name: str, shares: Sequence[float]) -> list[int] | None:
    """Return quantiles of a counted number, or None if nothing was counted."""
    found = sorted((int(value), count) for value, count in values(counts, name).items())
    if not found:
        return None
    total = sum(count for _, count in found)
    return [_quantile(found, math.ceil(share * total)) for share in shares]


def _quantile(found: Sequence[tuple[int, int]], rank: int) -> int:
    for value, count in found:
        rank -= count
        if rank <= 0:
            return value
    return found[-1][0]


def _facts(one: DataRecord) -> list[str]:
    texts, num_replies = _texts(one)
    facts = [
        f"form:{form_of(one)}",
        f"chars:{_rounded(sum(map(len, texts)))}",
        f"longest:{_rounded(max(map(len, texts), default=0))}",
    ]
    task = one.trajectory.task if isinstance(one, ScoredTrajectory) else one.task
    if task is not None:
        facts += [f"env:{task.env}", f"split:{task.split}"]
    if isinstance(one, Conversation | ScoredTrajectory):
        facts += [f"turns:{num_replies}", f"success:{_success(one)}", *_calls(one)]
    if isinstance(one, Conversation):
        facts += [f"label:{label}" for label in one.labels]
    if isinstance(one, ScoredTrajectory):
        facts.append(f"status:{one.trajectory.status.value}")
    if isinstance(one, TaskRow) and one.data_source:
        facts.append(f"data_source:{one.data_source[:80]}")
    return facts


def _calls(one: Conversation | ScoredTrajectory) -> list[str]:
    """Return a fact for each tool call."""
    use = tool_use([one])
    hallucinated = use.hallucinated.total()
    kinds = {
        OFFERED: use.num_calls - hallucinated, HALLUCINATED: hallucinated, "without a list of tools": use.num_unknown,
    }  # fmt: skip
    return [f"calls:{kind}" for kind, number in kinds.items() for _ in range(number)]


def _success(one: Conversation | ScoredTrajectory) -> str:
    said = one.success if isinstance(one, Conversation) else one.trajectory.success
    return "unknown" if said is None else "yes" if said else "no"


def _texts(one: DataRecord) -> tuple[list[str], int]:
    """Return all texts, and the number of replies that are learned from."""
    if isinstance(one, ScoredTrajectory):
        turns = one.trajectory.turns
        return [text for turn in turns for text in (turn.observation, turn.text)], len(turns)
    if isinstance(one, Conversation):
        return [message.text for message in one.messages], sum(message.teaches for message in one.messages)
    if isinstance(one, Preference):
        return [message.content for message in (*one.prompt, *one.chosen, *one.rejected)], 2
    return [message.content for message in one.prompt], 0


def _rounded(number: int) -> int:
    if number < 10**_DIGITS:
        return number
    unit = 10 ** (len(str(number)) - _DIGITS)
    return int(round(number / unit) * unit)
