"""Questions that a strategy asks the policy about possible next steps: marks, votes, comparisons.

The questions are put below the observation of a node that stays open. The questions of one call are asked side by side,
so that the engine answers them in one batch, and a question that was asked before is not asked again
(`PlayContext.ask`). An answer that cannot be read is counted in the record of the search as often as it is used, and is
not a mark.
"""

import re
from collections.abc import Callable, Coroutine, Sequence
from itertools import combinations
from typing import Any, Final, TypeVar

from gymfleet_rollout.episodes import side_by_side
from gymfleet_rollout.strategy import Node, PlayContext

VALUER: Final = "valuer"
UNREADABLE: Final = "unreadable answers"
T = TypeVar("T")
R = TypeVar("R")
_HIGHEST: Final = 10
_AT_ONCE: Final = 64
"""Questions asked at once. With more, a question could wait for its turn until the deadline of its reply."""
_SHOWN: Final = 600
"""Characters shown of the observation that an action led to."""
_NUMBER: Final = re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d{1,6})?)(?![\d.]*\d)")
_NO_MARK: Final = re.compile(r"-\s?\d")
"""A number below zero, or a range."""


async def marks(ctx: PlayContext, node: Node, candidates: Sequence[str], samples: int) -> list[float | None]:
    """Return the policy's mean mark for each candidate, in [0, 1]; None if no answer can be read.

    Args:
        ctx: the context of the play.
        node: an open node, at which the policy is asked.
        candidates: texts, each asked about separately.
        samples: answers to each question.
    """
    different = list(dict.fromkeys(candidates))
    found = await _answered(lambda candidate: _mark(ctx, node, candidate, samples), different)
    by_candidate = dict(zip(different, found, strict=True))
    return [by_candidate[candidate] for candidate in candidates]


async def _mark(ctx: PlayContext, node: Node, candidate: str, samples: int) -> float | None:
    question = (
        f"Consider this way on:\n{candidate}\nHow likely does it lead to the goal? Answer with a number from 0 to "
        f"{_HIGHEST}, and nothing else."
    )
    given = [number(answer, _HIGHEST) for answer in await ctx.ask(node, question, samples, role=VALUER)]
    read = [one / _HIGHEST for one in given if one is not None]
    ctx.count(UNREADABLE, len(given) - len(read))
    return sum(read) / len(read) if read else None


async def votes(ctx: PlayContext, node: Node, candidates: Sequence[str], samples: int) -> list[float]:
    """Return each candidate's share of the votes that can be read; asked as in `marks`."""
    listed = "\n".join(f"{place}. {candidate}" for place, candidate in enumerate(candidates, 1))
    question = (
        f"These are ways on:\n{listed}\nWhich leads to the goal most likely? Answer with its number, and nothing else."
    )
    counts = [0] * len(candidates)
    for answer in await ctx.ask(node, question, samples, role=VALUER):
        given = number(answer, len(candidates))
        if given is None or given < 1 or given != int(given):
            ctx.count(UNREADABLE, 1)
        else:
            counts[int(given) - 1] += 1
    return [count / max(sum(counts), 1) for count in counts]


async def comparisons(ctx: PlayContext, node: Node, candidates: Sequence[str], samples: int) -> list[float]:
    """Return the share of its comparisons with the others that each candidate wins; asked as in `marks`.

    Each pair is asked about in both orders alternately, because policies prefer the first or the last position. A pair
    without an answer that can be read is half a win for each, and a single candidate wins all.
    """
    won = [0.0] * len(candidates)
    pairs = list(combinations(range(len(candidates)), 2))
    shares = await _answered(lambda pair: _better(ctx, node, candidates[pair[0]], candidates[pair[1]], samples), pairs)
    for (first, second), gained in zip(pairs, shares, strict=True):
        won[first] += gained
        won[second] += 1 - gained
    return [of / (len(candidates) - 1) if len(candidates) > 1 else 1.0 for of in won]


async def _better(ctx: PlayContext, node: Node, one: str, other: str, samples: int) -> float:
    """Return the share of answers that prefer `one` to `other`."""
    straight, turned = await side_by_side(
        (_choices(ctx, node, one, other, -(-samples // 2)), _choices(ctx, node, other, one, samples // 2))
    )
    given = [choice == 1 for choice in straight] + [choice == 2 for choice in turned]
    return sum(given) / len(given) if given else 0.5


async def _choices(ctx: PlayContext, node: Node, first: str, second: str, samples: int) -> list[float]:
    """Return the choice between two candidates, 1 or 2, in each answer that can be read."""
    question = (
        f"These are two ways on:\n1. {first}\n2. {second}\nWhich one leads to the goal more likely? Answer with "
        "1 or 2, and nothing else."
    )
    answers = await ctx.ask(node, question, samples, role=VALUER)
    read = [found for answer in answers if (found := number(answer, 2)) in (1, 2)]
    ctx.count(UNREADABLE, len(answers) - len(read))
    return read


async def _answered(ask: Callable[[T], Coroutine[Any, Any, R]], about: Sequence[T]) -> list[R]:
    """Return the answer about each item, asking about `_AT_ONCE` items at a time."""
    found: list[R] = []
    for first in range(0, len(about), _AT_ONCE):
        found += await side_by_side(ask(one) for one in about[first : first + _AT_ONCE])
    return found


def number(text: str, highest: int) -> float | None:
    """Return the number from 0 to `highest` in a text; None if there is none, or more than one.

    `7/10` is read as 7 of 10.
    """
    found = {float(one) for one in _NUMBER.findall(text.replace(f"/{highest}", ""))}
    if len(found) != 1 or _NO_MARK.search(text):
        return None
    (given,) = found
    return given if given <= highest else None


def way(node: Node) -> str:
    """Return an action and the observation that it led to, as shown to the policy."""
    action = "" if node.turn is None else node.turn.action or node.turn.text
    came = " ".join(node.observation.split())
    return f"{action}: {came[:_SHOWN]}"


def path(node: Node) -> str:
    """Return the actions that lead to a node, and the observation that the last one led to."""
    before = [turn.action or turn.text for turn in node.turns()[:-1]]
    return ", then ".join((*before, way(node)))
