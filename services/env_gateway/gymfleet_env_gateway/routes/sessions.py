"""The session API over REST: parsing and status codes only, no decisions.

The env server's answers go to the caller unchanged; the models are here only for the schema.
"""

import asyncio
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Body, Query, Request, Response, status
from gymfleet_contracts.frames import Op
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.session import (
    AtIndex,
    ExpertMove,
    Fork,
    OpenSession,
    RenewLease,
    Session,
    SessionStep,
    Step,
    StepResult,
)
from gymfleet_kit.direct_route import DirectRoute
from gymfleet_kit.problems import ServiceError, problem_responses
from gymfleet_kit.session_problems import (
    ActionTooLarge,
    EnvironmentFailed,
    EnvironmentFull,
    EpisodeOver,
    ExpertUnavailable,
    ForkUnsupported,
    InvalidRequest,
    SessionLost,
    StepOutOfOrder,
    StepTimeout,
    UnknownEnvironment,
    UnknownSession,
    UnknownTask,
)
from pydantic import BaseModel, Field

from gymfleet_env_gateway.access import Tenant
from gymfleet_env_gateway.errors import (
    Forbidden,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    Unauthorized,
    Unavailable,
    UpstreamTimeout,
)
from gymfleet_env_gateway.state import Gateway, GatewayDep, TenantDep

MAX_BATCH: Final = 4096
_NO_ANSWER: Final = (Unauthorized, Forbidden, Unavailable, UpstreamTimeout)
_NO_SLOT: Final = (EnvironmentFull, QueueFull, QuotaExceeded, RateLimited)
_BROKEN: Final = (EnvironmentFailed, StepTimeout)
_COMMON: Final = (*_NO_ANSWER, UnknownSession, SessionLost)
_OPEN: Final = (*_NO_ANSWER, *_BROKEN, UnknownEnvironment, UnknownTask, *_NO_SLOT)
_STEP: Final = (*_COMMON, *_BROKEN, StepOutOfOrder, EpisodeOver, ActionTooLarge, RateLimited)
_FORK: Final = (*_COMMON, *_BROKEN, StepOutOfOrder, ForkUnsupported, *_NO_SLOT)
_EXPERT: Final = (*_COMMON, *_BROKEN, StepOutOfOrder, ExpertUnavailable)
KnownIndex = Annotated[int | None, Query(ge=0, lt=2**63, description="Steps taken; another number is refused")]
_NO_BODY: Final = msgspec.Raw(msgspec.msgpack.encode({}))
_decode: Final = msgspec.msgpack.Decoder().decode
_encode_json: Final = msgspec.json.Encoder().encode

router = APIRouter(prefix="/v1", tags=["sessions"], route_class=DirectRoute)


@router.post(
    "/sessions",
    status_code=status.HTTP_201_CREATED,
    response_model=Session,
    responses=problem_responses(*_OPEN),
)
async def open_session(request: Request, body: OpenSession, gateway: GatewayDep, tenant: TenantDep) -> Response:
    """Open a session on the least loaded replica and return its first observation."""
    opened = await gateway.proxy.open(tenant, _raw(body))
    if await request.is_disconnected():  # the caller gave up while queued: nobody knows the session's id
        with suppress(ServiceError):
            await gateway.proxy.call(tenant, Op.CLOSE, _decode(opened)["session_id"], _NO_BODY)
    return _json(opened, status.HTTP_201_CREATED)


@router.post("/sessions/{session_id}/steps", response_model=StepResult, responses=problem_responses(*_STEP))
async def step(session_id: str, body: Step, gateway: GatewayDep, tenant: TenantDep) -> Response:
    """Apply one action. Repeating the last index with the same action returns the recorded result."""
    return _json(await gateway.proxy.call(tenant, Op.STEP, session_id, _raw(body)))


@router.post("/steps", response_model=list[StepResult | Problem], responses=problem_responses(Unauthorized, Forbidden))
async def steps(
    body: Annotated[list[SessionStep], Body(), Field(min_length=1, max_length=MAX_BATCH)],
    gateway: GatewayDep,
    tenant: TenantDep,
) -> Response:
    """One action for each of several sessions; a result or a problem per item, in their order."""
    results: list[Any] = [None] * len(body)
    places: dict[str, list[int]] = {}
    for place, item in enumerate(body):
        places.setdefault(item.session_id, []).append(place)

    async def play(session: list[int]) -> None:  # steps of one session keep their order
        for place in session:
            results[place] = await _step_item(gateway, tenant, body[place])

    await asyncio.gather(*(play(session) for session in places.values()))
    return Response(_encode_json(results), media_type="application/json")


@router.post(
    "/sessions/{session_id}/fork",
    status_code=status.HTTP_201_CREATED,
    response_model=list[Session],
    responses=problem_responses(*_FORK),
)
async def fork(session_id: str, body: Fork, gateway: GatewayDep, tenant: TenantDep) -> Response:
    """Make children in the session's exact state, on the same replica."""
    return _json(await gateway.proxy.call(tenant, Op.FORK, session_id, _raw(body)), status.HTTP_201_CREATED)


@router.post("/sessions/{session_id}/lease", response_model=Session, responses=problem_responses(*_COMMON))
async def renew(session_id: str, body: RenewLease, gateway: GatewayDep, tenant: TenantDep) -> Response:
    """Extend the session's life."""
    return _json(await gateway.proxy.call(tenant, Op.LEASE, session_id, _raw(body)))


@router.get("/sessions/{session_id}", response_model=Session, responses=problem_responses(*_COMMON, StepOutOfOrder))
async def get(session_id: str, gateway: GatewayDep, tenant: TenantDep, index: KnownIndex = None) -> Response:
    """The session as it stands."""
    return _json(await gateway.proxy.call(tenant, Op.GET, session_id, _raw(AtIndex(index=index))))


@router.delete("/sessions/{session_id}", status_code=status.HTTP_204_NO_CONTENT, responses=problem_responses(*_COMMON))
async def close(session_id: str, gateway: GatewayDep, tenant: TenantDep) -> Response:
    """Close the session and free its slot."""
    await gateway.proxy.call(tenant, Op.CLOSE, session_id, _NO_BODY)
    return Response(status_code=status.HTTP_204_NO_CONTENT)


@router.get("/sessions/{session_id}/expert", response_model=ExpertMove, responses=problem_responses(*_EXPERT))
async def expert(session_id: str, gateway: GatewayDep, tenant: TenantDep, index: KnownIndex = None) -> Response:
    """What the environment's expert would do next."""
    return _json(await gateway.proxy.call(tenant, Op.EXPERT, session_id, _raw(AtIndex(index=index))))


async def _step_item(gateway: Gateway, tenant: Tenant, item: SessionStep) -> Any:
    try:
        body = _packed({"index": item.index, "action": item.action})
        return _decode(await gateway.proxy.call(tenant, Op.STEP, item.session_id, body))
    except ServiceError as error:
        return error.problem().model_dump(mode="json", exclude_none=True)


def _raw(body: BaseModel) -> msgspec.Raw:
    return _packed(body.model_dump(exclude_none=True))


def _packed(body: dict[str, Any]) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.msgpack.encode(body))
    except UnicodeEncodeError:  # JSON can hold invalid Unicode
        raise InvalidRequest("the text holds a lone surrogate; send valid Unicode") from None


def _json(ok: msgspec.Raw, status_code: int = status.HTTP_200_OK) -> Response:
    return Response(_encode_json(_decode(ok)), status_code=status_code, media_type="application/json")
