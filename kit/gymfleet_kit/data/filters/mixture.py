"""A mixture of several kinds of records, in given shares."""

import hashlib
from collections import Counter
from typing import Annotated, Literal

from gymfleet_contracts.conversation import Conversation, Record
from pydantic import Field, NonNegativeInt, PositiveFloat

from gymfleet_kit.data.filter import Filter, FilterOptions, replies

_REST = ""


class MixtureOptions(FilterOptions):
    """The kinds to mix, and how."""

    weights: Annotated[dict[str, PositiveFloat], Field(min_length=1)] = {"": 1.0}  # noqa: RUF012 - pydantic copies it
    """The share of each kind, in proportion to the others: `{ decomposed = 6, negative = 3, "" = 1 }`. `""` stands for
    records of none of the kinds, which are left out without a weight."""
    by: Literal["label", "env"] = "label"
    """The kind of a record: the first of its labels that has a weight, or the environment of its task."""
    seed: NonNegativeInt = 0
    """Seed of the draw of records to leave out."""


class Mixture(Filter[MixtureOptions]):
    """Keep so much of each kind of records that the characters of the replies are in proportion to its weight.

    The scarcest kind is kept whole, and a drawn share of each of the others: the mixture of Agent-FLAN's recipe.
    """

    Options = MixtureOptions

    def __init__(self, options: MixtureOptions) -> None:
        super().__init__(options)
        self._num_chars: Counter[str] = Counter()
        self._num_asked = 0

    def note(self, record: Record) -> None:
        """Measure each kind."""
        kind = self._kind(record)
        if kind in self.options.weights:
            self._num_chars[kind] += sum(map(len, replies(record)))

    def keep(self, record: Record) -> bool:
        """Return whether the record is part of the mixture."""
        self._num_asked += 1
        kind = self._kind(record)
        if kind not in self.options.weights:
            return False
        drawn = hashlib.sha256(f"{self.options.seed}/{self._num_asked}".encode()).digest()
        return int.from_bytes(drawn[:7]) < self._share(kind) * 2**56

    def _share(self, kind: str) -> float:
        """Return the share of a kind to keep: 1 for the kind that is scarcest relative to its weight."""
        weights = self.options.weights
        wanted = {name: num / weights[name] for name, num in self._num_chars.items() if num}
        return min(wanted.values()) / wanted[kind] if kind in wanted else 1.0

    def _kind(self, record: Record) -> str:
        if self.options.by == "env":
            task = record.task if isinstance(record, Conversation) else record.trajectory.task
            env = _REST if task is None else task.env
            return env if env in self.options.weights else _REST
        labels = record.labels if isinstance(record, Conversation) else ()
        return next((label for label in labels if label in self.options.weights), _REST)
