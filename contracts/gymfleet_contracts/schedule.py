"""A number that changes with the training step and depends on nothing else, so that a resumed run continues it."""

import math
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from gymfleet_contracts._model import WireModel
from gymfleet_contracts.numbers import NUMBER


class Schedule(WireModel):
    """A change from one number to another."""

    start: Annotated[float, NUMBER]
    """The number in the first step."""
    end: Annotated[float, NUMBER]
    """The number from step `steps` on."""
    steps: Annotated[int, Field(ge=1), NUMBER]
    """Steps until `end`, counted within each stage that reinforces."""
    shape: Literal["linear", "cosine"] = "linear"
    """`linear`, or `cosine`: slow at both ends."""

    def at(self, step: int) -> float:
        """Return the number in a step, which counts from 1."""
        share = 1.0 if step >= self.steps else (step - 1) / (self.steps - 1)
        if self.shape == "cosine":
            share = (1 - math.cos(math.pi * share)) / 2
        return self.start + (self.end - self.start) * share

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the lowest and the highest number."""
        return min(self.start, self.end), max(self.start, self.end)


MaybeScheduled: TypeAlias = float | Schedule


def value_at(value: MaybeScheduled, step: int) -> float:
    """Return the number in a step, which counts from 1, whether it has a schedule or not."""
    return value.at(step) if isinstance(value, Schedule) else value


def highest(value: MaybeScheduled) -> float:
    """Return the highest number that the value reaches."""
    return value.bounds[1] if isinstance(value, Schedule) else value
