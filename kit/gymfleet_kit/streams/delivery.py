"""A message that a consumer has received."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from pydantic import BaseModel

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Delivery(Generic[M]):
    """A message. `id` stays the same on redelivery, `attempt` counts from 1, `trace` is its `traceparent`."""

    id: str
    attempt: int
    body: M
    trace: str | None


Handler: TypeAlias = Callable[[Delivery[M]], Awaitable[None]]
