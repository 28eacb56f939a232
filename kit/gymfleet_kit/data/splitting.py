"""The work of `gymfleet data split`: records about the same task or dialogue fall on the same side."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from gymfleet_contracts.conversation import Conversation, ConversationTask
from gymfleet_contracts.data_records import DataRecord, Form, Preference, TaskRow
from gymfleet_contracts.session import Split, TaskRef
from gymfleet_contracts.trajectory import ScoredTrajectory

from gymfleet_kit.data.chunks import Chunk
from gymfleet_kit.data.converting import CheckedConverter, converter_of
from gymfleet_kit.data.reading import Found
from gymfleet_kit.data.work import Done, converted, stored

By = Literal["task", "dialogue"]


@dataclass(frozen=True)
class Splitting:
    """Puts each record on a side by its hash: the same on every machine, in any order of records."""

    given: Mapping[str, Any]
    shares: Mapping[Split, float]
    """The share of each side; they add up to 1."""
    seed: int
    by: By
    form: Form | None
    is_table: bool

    @cached_property
    def converter(self) -> CheckedConverter:
        """Return the converter that reads."""
        return converter_of(self.given, table="--from")

    def done(self, chunk: Chunk) -> Done:
        """Return the records of a chunk, by side."""
        done = Done()
        sides: dict[Split, list[tuple[Found, DataRecord]]] = {side: [] for side in self.shares}
        for found, one in converted(chunk, self.converter, done):
            sides[self.side(one)].append((found, one))
        for side, kept in sides.items():
            done.counts["written"] += len(kept)
            rejected = len(done.rejected)
            done.parts[side] = stored(kept, self.form, done, is_table=self.is_table, as_found=self.converter.is_ours)
            done.counts[side] = len(kept) - (len(done.rejected) - rejected)
        return done

    def side(self, one: DataRecord) -> Split:
        """Return the side of a record."""
        digest = hashlib.sha256(f"{self.seed}\n{key_of(one, self.by)}".encode()).digest()
        place = int.from_bytes(digest[:8]) / 2**64
        for side, share in self.shares.items():
            place -= share
            if place < 0:
                return side
        return max(self.shares, key=self.shares.__getitem__)  # the shares add up to a little less, for rounding


def key_of(one: DataRecord, by: By) -> str:
    """Return the same text for records that must not be on two sides.

    By `task`, that is the environment's task, or without one the messages before the first one that is learned from. By
    `dialogue`, it is the whole dialogue.
    """
    if by == "dialogue":
        return json.dumps(_said(one))
    task = one.task if not isinstance(one, ScoredTrajectory) else one.trajectory.task
    if task is not None:
        return json.dumps(_of_task(task))
    return json.dumps(_asked(one))


def _of_task(task: ConversationTask | TaskRef) -> list[Any]:
    """Return the identity of a task, which is the same whatever split a file gives for it."""
    if isinstance(task, TaskRef):
        return [task.env, task.level, task.task_id, task.seed]
    return [task.env, task.task_id]


def _asked(one: DataRecord) -> list[tuple[str, str]]:
    if isinstance(one, Conversation):
        first = next(place for place, message in enumerate(one.messages) if message.teaches)
        return [(message.role, message.text) for message in one.messages[:first]]
    return [(message.role, message.text) for message in one.prompt] if isinstance(one, Preference | TaskRow) else []


def _said(one: DataRecord) -> list[Any]:
    if isinstance(one, Conversation):
        return [(message.role, message.text) for message in one.messages]
    if isinstance(one, Preference):
        return [[(message.role, message.text) for message in part] for part in (one.prompt, one.chosen, one.rejected)]
    if isinstance(one, TaskRow):
        return [*_asked(one), *([_of_task(one.task)] if one.task else [])]
    return [(turn.observation, turn.text) for turn in one.trajectory.turns]
