"""The policy's answers when it is asked for its opinion, kept by question and version of the weights."""

import hashlib
from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from gymfleet_rollout.replies import Context

MAX_QUESTIONS: Final = 4096
"""Questions whose answers are kept; beyond this number, those that were asked first are forgotten."""
KNOWN: Final = "answers that were known"
"""The name of their count in the record of a search."""

Sample: TypeAlias = Callable[[int], Awaitable[Sequence[str]]]
"""Has the policy answer the given number of times, and returns the answers."""


class Answers:
    """Answers of one policy to the questions of one play.

    A question that is asked again has the same answers, because only other weights could change them. Answers to one
    question are independent samples: if more are wanted than are known, only the missing ones are sampled.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, list[str]] = {}

    async def of(
        self, context: Context, role: str, count: int, version: Callable[[], int], sample: Sample
    ) -> tuple[list[str], int]:
        """Return `count` answers, and how many of them were known.

        Args:
            context: everything that the policy is given, with the question at the end.
            role: the role in which the policy is asked.
            count: number of answers that are wanted.
            version: returns the version of the weights that answer now. Answers that were sampled while it changed are
                used once, and not kept.
            sample: called if answers are missing.
        """
        before = version()
        key = _key(context, role, before)
        known = self._known.get(key, [])[:count]
        if len(known) == count:
            return known, count
        answers = [*known, *await sample(count - len(known))]
        if version() == before:
            self._keep(key, answers)
        return answers, len(known)

    def _keep(self, key: bytes, answers: list[str]) -> None:
        if len(answers) <= len(self._known.get(key, ())):  # asked twice at the same time
            return
        if key not in self._known and len(self._known) >= MAX_QUESTIONS:
            del self._known[next(iter(self._known))]
        self._known[key] = answers


def _key(context: Context, role: str, version: int) -> bytes:
    told = hashlib.blake2b(repr((role, version, len(context.token_ids))).encode(), digest_size=16)
    told.update(array("q", context.token_ids).tobytes())
    for placed in context.images:
        told.update(repr((placed.start, placed.image.sha256)).encode())
    return told.digest()
