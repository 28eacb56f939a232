"""Sessions apart from each other: no shared environments."""

import asyncio
from typing import Final

from gymfleet_contracts.session import StepResult

from gymfleet_conformance.check import Need
from gymfleet_conformance.native.target import DULL, SUITE, NativeTarget, over
from gymfleet_conformance.server_under_test import require

_MANY: Final = 16
_MOVES: Final = 5


@SUITE.must("isolation.steps-of-one-leave-the-other")
async def one_leaves_other(target: NativeTarget) -> None:
    """Steps in one session change nothing in another of the same task."""
    one, other = await target.open(task_index=1), await target.open(task_index=1)
    before = await target.get(other.session_id)
    await target.play(one.session_id, _MOVES)
    after = await target.get(other.session_id)
    unlike = {"expires_in_s"}
    require(before.model_dump(exclude=unlike) == after.model_dump(exclude=unlike), f"became {after} of {before}")


@SUITE.must("isolation.interleaved-equals-alone", needs=(Need.DETERMINISTIC,))
async def interleaved_equals_alone(target: NativeTarget) -> None:
    """Two sessions stepped in turns each play as they would alone."""
    alone = [await target.play((await target.open(task_index=task)).session_id, _MOVES) for task in (1, 2)]
    ids = [(await target.open(task_index=task)).session_id for task in (1, 2)]
    for index in range(_MOVES):
        for session_id, moves in zip(ids, alone, strict=True):
            if index < len(moves):
                action, result = moves[index]
                seen = await target.step(session_id, index, action)
                require(target.same(seen, result), f"step {index}: {seen}; alone it was {result}")


@SUITE.must("isolation.many-at-once", needs=(Need.DETERMINISTIC,))
async def many_at_once(target: NativeTarget) -> None:
    """Sixteen sessions of one task, stepped at the same time, all play the same episode."""
    alone = await target.play((await target.open(task_index=2)).session_id, _MOVES)

    async def replay() -> list[StepResult]:
        session_id = (await target.open(task_index=2)).session_id
        return [await target.step(session_id, index, action) for index, (action, _) in enumerate(alone)]

    for results in await asyncio.gather(*(replay() for _ in range(_MANY))):
        wrong = [index for index, seen in enumerate(results) if not target.same(seen, alone[index][1])]
        require(not wrong, f"step {wrong[:1]} differs from the episode that was played alone")


@SUITE.must("isolation.closing-one-leaves-the-other")
async def closing_one(target: NativeTarget) -> None:
    """Closing a session leaves its neighbours of the same task usable."""
    one, other = await target.open(), await target.open()
    await target.close(one.session_id)
    await target.step(other.session_id, 0, DULL)


@SUITE.must("isolation.end-of-one-leaves-the-other")
async def end_of_one(target: NativeTarget) -> None:
    """The end of one episode does not end another of the same task."""
    one, other = await target.open(), await target.open()
    await target.play_to_the_end(one.session_id)
    require(not over(await target.get(other.session_id)), "it ended too")
