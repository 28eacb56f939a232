"""HTTP surface of sessions: parsing and status codes only, no decisions."""

import asyncio
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Body, Query, Response, status
from gymfleet_contracts.frames import Op
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.session import (
    ExpertMove,
    Fork,
    OpenSession,
    RenewLease,
    Session,
    SessionStep,
    Step,
    StepResult,
)
from gymfleet_kit.problems import ServiceError, problem_responses
from gymfleet_kit.session_problems import (
    ActionTooLarge,
    EnvironmentFailed,
    EnvironmentFull,
    EpisodeOver,
    ExpertUnavailable,
    ForkUnsupported,
    SessionLimit,
    SessionLost,
    StepOutOfOrder,
    StepTimeout,
    UnknownEnvironment,
    UnknownSession,
    UnknownTask,
)

from gymfleet_env_server.errors import ShardUnavailable
from gymfleet_env_server.routes.dependencies import PoolDep, json_answer
from gymfleet_env_server.shards.pool import ShardPool

MAX_BATCH: Final = 4096
KnownIndex = Annotated[int | None, Query(ge=0, lt=2**63, description="Steps taken; another number is refused")]
router = APIRouter(prefix="/v1", tags=["sessions"])
_decode: Final = msgspec.msgpack.Decoder().decode
_GONE: Final = (UnknownSession, SessionLost, SessionLimit)
_BROKEN: Final = (EnvironmentFailed, StepTimeout)
_STEP: Final = (*_GONE, StepOutOfOrder, EpisodeOver, ActionTooLarge, *_BROKEN)


@router.post(
    "/sessions",
    status_code=status.HTTP_201_CREATED,
    response_model=Session,
    responses=problem_responses(UnknownEnvironment, UnknownTask, EnvironmentFull, ShardUnavailable, *_BROKEN),
)
async def open_session(body: OpenSession, pool: PoolDep) -> Response:
    """Take a slot, reset the environment and return the first observation."""
    raw = await pool.call(Op.OPEN, "", body.model_dump(mode="json", exclude_none=True))
    return json_answer(raw, status.HTTP_201_CREATED)


@router.post("/sessions/{session_id}/steps", response_model=StepResult, responses=problem_responses(*_STEP))
async def step(session_id: str, body: Step, pool: PoolDep) -> Response:
    """Apply one action. Repeating the last index with the same action returns the recorded result."""
    return json_answer(await pool.call(Op.STEP, session_id, body.model_dump()))


@router.post("/steps", response_model=list[StepResult | Problem])
async def step_many(
    body: Annotated[list[SessionStep], Body(min_length=1, max_length=MAX_BATCH)], pool: PoolDep
) -> Response:
    """One result or problem per item, in the order of the request."""
    results = await asyncio.gather(*(_step_or_problem(pool, item) for item in body))
    return Response(msgspec.json.encode(results), media_type="application/json")


@router.post(
    "/sessions/{session_id}/fork",
    status_code=status.HTTP_201_CREATED,
    response_model=list[Session],
    responses=problem_responses(*_GONE, StepOutOfOrder, ForkUnsupported, EnvironmentFull, *_BROKEN),
)
async def fork(session_id: str, body: Fork, pool: PoolDep) -> Response:
    """Children in the session's exact state."""
    return json_answer(await pool.call(Op.FORK, session_id, body.model_dump()), status.HTTP_201_CREATED)


@router.post("/sessions/{session_id}/lease", response_model=Session, responses=problem_responses(*_GONE))
async def renew(session_id: str, body: RenewLease, pool: PoolDep) -> Response:
    """Start the lease anew, or take another one."""
    return json_answer(await pool.call(Op.LEASE, session_id, body.model_dump(exclude_none=True)))


@router.get("/sessions/{session_id}", response_model=Session, responses=problem_responses(*_GONE, StepOutOfOrder))
async def get_session(session_id: str, pool: PoolDep, index: KnownIndex = None) -> Response:
    """The session as it stands. Looking does not renew the lease."""
    return json_answer(await pool.call(Op.GET, session_id, {"index": index}))


@router.delete(
    "/sessions/{session_id}",
    status_code=status.HTTP_204_NO_CONTENT,
    responses=problem_responses(UnknownSession),
)
async def close(session_id: str, pool: PoolDep) -> Response:
    """Close the session and free its slot. Closing again changes nothing."""
    await pool.call(Op.CLOSE, session_id, {})
    return Response(status_code=status.HTTP_204_NO_CONTENT)


@router.get(
    "/sessions/{session_id}/expert",
    response_model=ExpertMove,
    responses=problem_responses(*_GONE, StepOutOfOrder, ExpertUnavailable, *_BROKEN),
)
async def expert(session_id: str, pool: PoolDep, index: KnownIndex = None) -> Response:
    """What the environment's expert would do next."""
    return json_answer(await pool.call(Op.EXPERT, session_id, {"index": index}))


async def _step_or_problem(pool: ShardPool, item: SessionStep) -> object:
    try:
        return _decode(await pool.call(Op.STEP, item.session_id, {"index": item.index, "action": item.action}))
    except ServiceError as error:
        return error.problem().model_dump(mode="json", exclude_none=True)
