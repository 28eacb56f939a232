"""Episodes played to the end, alone or side by side, as most strategies do between their decisions."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from gymfleet_rollout.budget import BudgetSpent
from gymfleet_rollout.strategy import Node, PlayContext, Reply

T = TypeVar("T")


async def to_the_end(ctx: PlayContext, node: Node, *, greedy: bool = False) -> Node:
    """Let the policy play an episode to the end, and return the leaf or the last node that the budget allowed."""
    try:
        while not node.over:
            (reply,) = await ctx.propose(node, greedy=greedy)
            node = await ctx.act(node, reply)
    except BudgetSpent:
        pass
    return node


async def side_by_side(playing: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines at the same time and return their results. The first failure ends all, and is raised itself."""
    try:
        async with asyncio.TaskGroup() as tasks:
            played = [tasks.create_task(one) for one in playing]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [one.result() for one in played]


async def tried(ctx: PlayContext, node: Node, replies: Sequence[Reply]) -> list[Node]:
    """Return the nodes that replies to one node lead to, each in a fork of it; fewer if the budget runs out."""
    forks = [node, *(await ctx.fork(node, len(replies) - 1) if len(replies) > 1 else ())]
    reached = await side_by_side(_acted(ctx, fork, reply) for fork, reply in zip(forks, replies, strict=True))
    return [child for child in reached if child is not None]


async def _acted(ctx: PlayContext, node: Node, reply: Reply) -> Node | None:
    try:
        return await ctx.act(node, reply)
    except BudgetSpent:
        return None


def distinct(replies: Iterable[Reply]) -> list[Reply]:
    """Return the first reply of each action."""
    return list({reply.action: reply for reply in reversed([*replies])}.values())[::-1]


async def best_first(ctx: PlayContext, leaves: Sequence[Node]) -> list[Node]:
    """Return leaves in the order of their values by `[rollout.evaluator]`, the best first; equals keep their order.

    Leaves that the budget cut short are last, and have no value. Raises `BudgetSpent` if it does not allow the values.
    """
    over = [leaf for leaf in leaves if leaf.over]
    values = await ctx.evaluate(over) if over else []
    ranked = sorted(zip(values, over, strict=True), key=lambda one: -one[0])
    return [leaf for _, leaf in ranked] + [leaf for leaf in leaves if not leaf.over]


def over_first(nodes: Sequence[Node]) -> list[Node]:
    """Return nodes in their order, but first those at which the episode is over."""
    return sorted(nodes, key=lambda node: not node.over)
