"""Forks: children in the parent's exact state, on their own from there."""

from typing import Final

from gymfleet_contracts.session import Session

from gymfleet_conformance.check import Need
from gymfleet_conformance.native.target import (
    DULL,
    EPISODE_OVER,
    FORK_UNSUPPORTED,
    INVALID,
    SUITE,
    NativeTarget,
    over,
    refused,
    sound,
)
from gymfleet_conformance.server_under_test import require

_FORK: Final = (Need.FORK,)
_UNLIKE: Final = {"session_id", "expires_in_s"}


def _alike(one: Session, other: Session) -> bool:
    return one.model_dump(exclude=_UNLIKE) == other.model_dump(exclude=_UNLIKE)


@SUITE.must("forks.children-equal-the-parent", needs=_FORK)
async def children_equal_parent(target: NativeTarget) -> None:
    """Children show the parent's task, index, observation and score, under ids of their own."""
    parent, _ = await target.started(1)
    state = await target.get(parent.session_id)
    children = await target.fork(parent.session_id, 3)
    require(len({parent.session_id, *(child.session_id for child in children)}) == 4, "an id was given twice")
    for child in children:
        require(_alike(child, state), f"a child is {child}; the parent {state}")
        require(_alike(await target.get(child.session_id), state), "`GET` shows a child otherwise")


@SUITE.must("forks.child-plays-like-the-parent", needs=(*_FORK, Need.DETERMINISTIC))
async def child_plays_like_parent(target: NativeTarget) -> None:
    """From the fork on, the same actions give child and parent the same results."""
    parent, _ = await target.started(1, task_index=1)
    child = (await target.fork(parent.session_id))[0]
    for index in range(1, 4):
        action = await target.move(parent.session_id)
        ahead = await target.step(child.session_id, index, action)
        result = await target.step(parent.session_id, index, action)
        require(target.same(ahead, result), f"step {index}: the child got {ahead}, the parent {result}")
        if over(result):
            return


@SUITE.must("forks.parent-is-unchanged", needs=_FORK)
async def parent_unchanged(target: NativeTarget) -> None:
    """Forking, and stepping the children, leaves the parent as it was."""
    parent, _ = await target.started(1, task_index=2)
    before = await target.get(parent.session_id)
    action = await target.move(parent.session_id)
    for child in await target.fork(parent.session_id, 4):
        await target.step(child.session_id, 1, action)
    require(_alike(await target.get(parent.session_id), before), "the parent changed")


@SUITE.must("forks.children-are-independent", needs=(*_FORK, Need.DETERMINISTIC))
async def children_independent(target: NativeTarget) -> None:
    """A child plays as its parent would have, whatever its siblings have done before."""
    parent, _ = await target.started(1, task_index=2)
    one, other = await target.fork(parent.session_id, 2)
    action = await target.move(parent.session_id)
    for index in range(1, 3):
        if over(await target.step(one.session_id, index, DULL)):
            break
    require((await target.get(other.session_id)).index == 1, "a sibling's steps were counted")
    seen = await target.step(other.session_id, 1, action)
    result = await target.step(parent.session_id, 1, action)
    require(target.same(seen, result), f"after a sibling's steps {seen}; {result} would be right")


@SUITE.must("forks.child-keeps-the-stored-result", needs=_FORK)
async def child_keeps_stored(target: NativeTarget) -> None:
    """A child answers the parent's last step again with its stored result, and takes the next."""
    parent, moves = await target.started(1)
    child = (await target.fork(parent.session_id))[0]
    again = await target.step(child.session_id, 0, moves[0][0])
    require(again == moves[0][1], f"got {again}; {moves[0][1]} would be right")
    sound(await target.step(child.session_id, 1, DULL), 1)


@SUITE.must("forks.before-the-first-step", needs=_FORK)
async def before_first_step(target: NativeTarget) -> None:
    """A session that has taken no step can be forked."""
    parent = await target.open()
    child = (await target.fork(parent.session_id))[0]
    require(_alike(child, parent), f"the child is {child}; the parent {parent}")
    sound(await target.step(child.session_id, 0, DULL), 0)


@SUITE.must("forks.after-the-end", needs=_FORK)
async def after_the_end(target: NativeTarget) -> None:
    """The child of an episode that is over is over too: it takes no step."""
    parent = await target.open()
    results = await target.play_to_the_end(parent.session_id)
    child = (await target.fork(parent.session_id))[0]
    require(over(child), "the child is not over")
    refused(await target.try_step(child.session_id, len(results), DULL), EPISODE_OVER)


@SUITE.must("forks.count-is-bounded", needs=_FORK)
async def count_bounded(target: NativeTarget) -> None:
    """Counts of 0, below, above 64 and mistyped ones are refused as 422 and make no child."""
    parent = await target.open()
    for count in (0, -1, 65, 10**9, "x", 1.5, None):
        refused(await target.call("POST", parent.session_id, "/fork", json={"count": count}), INVALID)


@SUITE.must("forks.outlive-the-parent", needs=_FORK)
async def outlive_parent(target: NativeTarget) -> None:
    """Children go on after their parent is closed, and the parent after its children are."""
    parent, other = await target.open(), await target.open()
    child = (await target.fork(parent.session_id))[0]
    await target.close(parent.session_id)
    sound(await target.step(child.session_id, 0, DULL), 0)
    await target.close((await target.fork(other.session_id))[0].session_id)
    sound(await target.step(other.session_id, 0, DULL), 0)


@SUITE.must("forks.grandchildren", needs=_FORK)
async def grandchildren(target: NativeTarget) -> None:
    """A child can be forked again."""
    parent, _ = await target.started(1)
    child = (await target.fork(parent.session_id))[0]
    grandchild = (await target.fork(child.session_id))[0]
    require(_alike(grandchild, child), f"the grandchild is {grandchild}; the child {child}")


@SUITE.must("forks.unsupported-says-so", needs=(Need.NO_FORK,))
async def unsupported_says_so(target: NativeTarget) -> None:
    """An environment that says it cannot be forked answers 409 `fork-unsupported`."""
    parent = await target.open()
    refused(await target.call("POST", parent.session_id, "/fork", json={"count": 1}), FORK_UNSUPPORTED)
