"""The session API over REST: parsing and status codes only, no decisions.

Answers go to the caller unchanged; the models serve for the schema and to check requests.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from fastapi import APIRouter, Body, Depends, FastAPI, Query, Request, Response, status
from gymfleet_contracts.frames import NO_BODY, Op
from gymfleet_contracts.observation import Sha256
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.session import (
    AdmissibleActions,
    AtIndex,
    ExpertMove,
    Fork,
    Irreversibility,
    OpenSession,
    RenewLease,
    Session,
    SessionStep,
    Step,
    StepResult,
    ToolAction,
    ToolCall,
)
from pydantic import BaseModel, Field
from starlette.requests import HTTPConnection

from gymfleet_kit.direct_route import DirectRoute
from gymfleet_kit.problems import ServiceError, problem_responses
from gymfleet_kit.session_api.calls import SessionCalls, encode_body, made_sessions
from gymfleet_kit.session_problems import (
    ActionsUnavailable,
    ActionTooLarge,
    EnvironmentFailed,
    EnvironmentFull,
    EpisodeOver,
    ExpertUnavailable,
    ForkUnsupported,
    InvalidToolCall,
    Irreversible,
    SessionLimit,
    SessionLost,
    StepOutOfOrder,
    StepTimeout,
    UnknownEnvironment,
    UnknownImage,
    UnknownSession,
    UnknownTask,
)

MAX_BATCH: Final = 4096
"""The most steps in one `POST /v1/steps`."""
KnownIndex = Annotated[int | None, Query(ge=0, lt=2**63, description="Steps taken; another number is refused")]
Problems = tuple[type[ServiceError], ...]
_GONE: Final = (UnknownSession, SessionLost, SessionLimit)
_BROKEN: Final = (EnvironmentFailed, StepTimeout)
_PROBLEMS: Final[Mapping[Op, Problems]] = {
    Op.OPEN: (UnknownEnvironment, UnknownTask, EnvironmentFull, *_BROKEN),
    Op.STEP: (*_GONE, StepOutOfOrder, EpisodeOver, ActionTooLarge, *_BROKEN),
    Op.FORK: (*_GONE, StepOutOfOrder, ForkUnsupported, Irreversible, EnvironmentFull, *_BROKEN),
    Op.LEASE: _GONE,
    Op.GET: (*_GONE, StepOutOfOrder),
    Op.CLOSE: (UnknownSession, SessionLost),
    Op.EXPERT: (*_GONE, StepOutOfOrder, ExpertUnavailable, *_BROKEN),
    Op.ACTIONS: (*_GONE, StepOutOfOrder, ActionsUnavailable, *_BROKEN),
    Op.TOOL: (*_GONE, InvalidToolCall, ActionTooLarge, *_BROKEN),
    Op.IMAGE: (*_GONE, UnknownImage),
    Op.IRREVERSIBLE: (*_GONE, StepOutOfOrder, EpisodeOver, ActionTooLarge, *_BROKEN),
}
GetCalls = Callable[[HTTPConnection], SessionCalls]
_decode: Final = msgspec.msgpack.Decoder().decode
_encode_json: Final = msgspec.json.Encoder().encode


async def _calls(connection: HTTPConnection) -> SessionCalls:
    get_calls: GetCalls = connection.app.state.get_session_calls
    return get_calls(connection)


CallsDep = Annotated[SessionCalls, Depends(_calls)]


async def open_session(request: Request, body: OpenSession, calls: CallsDep) -> Response:
    """Open a session and return its first observation."""
    return await _made(request, await calls.call(Op.OPEN, "", _encoded(body)), calls)


async def step(session_id: str, body: Step, calls: CallsDep) -> Response:
    """Apply one action. Repeating the last index with the same action returns the recorded result."""
    return _json(await calls.call(Op.STEP, session_id, _encoded(body)))


async def step_many(
    body: Annotated[list[SessionStep], Body(), Field(min_length=1, max_length=MAX_BATCH)], calls: CallsDep
) -> Response:
    """Apply one action to each of several sessions; return a result or a problem per item, in their order."""
    results: list[Any] = [None] * len(body)
    places: dict[str, list[int]] = {}
    for place, item in enumerate(body):
        places.setdefault(item.session_id, []).append(place)

    async def play(session_id: str) -> None:  # steps of one session keep their order
        for place in places[session_id]:
            results[place] = await _result_or_problem(calls, body[place])

    await asyncio.gather(*map(play, places))
    return Response(_encode_json(results), media_type="application/json")


async def fork(session_id: str, request: Request, body: Fork, calls: CallsDep) -> Response:
    """Create children in the session's exact state."""
    return await _made(request, await calls.call(Op.FORK, session_id, _encoded(body)), calls)


async def lease(session_id: str, body: RenewLease, calls: CallsDep) -> Response:
    """Restart the lease, or take one of another length."""
    return _json(await calls.call(Op.LEASE, session_id, _encoded(body)))


async def get_session(session_id: str, calls: CallsDep, index: KnownIndex = None) -> Response:
    """Return the session's current state. This does not renew the lease."""
    return _json(await calls.call(Op.GET, session_id, _encoded(AtIndex(index=index))))


async def close_session(session_id: str, calls: CallsDep) -> Response:
    """Close the session and free its slot. Closing again changes nothing."""
    await calls.call(Op.CLOSE, session_id, NO_BODY)
    return Response(status_code=status.HTTP_204_NO_CONTENT)


async def expert(session_id: str, calls: CallsDep, index: KnownIndex = None) -> Response:
    """Return the next move of the environment's expert."""
    return _json(await calls.call(Op.EXPERT, session_id, _encoded(AtIndex(index=index))))


async def admissible_actions(session_id: str, calls: CallsDep, index: KnownIndex = None) -> Response:
    """Return the actions that are possible now."""
    return _json(await calls.call(Op.ACTIONS, session_id, _encoded(AtIndex(index=index))))


async def irreversible(session_id: str, body: Step, calls: CallsDep) -> Response:
    """Return whether this step could not be taken back. The step is not taken."""
    return _json(await calls.call(Op.IRREVERSIBLE, session_id, _encoded(body)))


async def tool_action(session_id: str, body: ToolCall, calls: CallsDep) -> Response:
    """Return the action that a tool call spells. The action is not taken."""
    return _json(await calls.call(Op.TOOL, session_id, encode_body(body.model_dump())))


async def image(session_id: str, sha256: Sha256, calls: CallsDep) -> Response:
    """Return an image that the session's last observation shows."""
    found = _decode(await calls.call(Op.IMAGE, session_id, encode_body({"sha256": sha256})))
    # An environment's image is foreign content: a browser must neither guess its type nor run it.
    headers = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox; default-src 'none'"}
    return Response(found["content"], media_type=found["media_type"], headers=headers)


class _Route(NamedTuple):
    op: Op
    method: str
    path: str
    endpoint: Callable[..., Awaitable[Response]]
    result: Any
    status_code: int = status.HTTP_200_OK


_SESSION: Final = "/sessions/{session_id}"
_ROUTES: Final = (
    _Route(Op.OPEN, "POST", "/sessions", open_session, Session, status.HTTP_201_CREATED),
    _Route(Op.STEP, "POST", f"{_SESSION}/steps", step, StepResult),
    _Route(Op.FORK, "POST", f"{_SESSION}/fork", fork, list[Session], status.HTTP_201_CREATED),
    _Route(Op.LEASE, "POST", f"{_SESSION}/lease", lease, Session),
    _Route(Op.GET, "GET", _SESSION, get_session, Session),
    _Route(Op.CLOSE, "DELETE", _SESSION, close_session, None, status.HTTP_204_NO_CONTENT),
    _Route(Op.EXPERT, "GET", f"{_SESSION}/expert", expert, ExpertMove),
    _Route(Op.ACTIONS, "GET", f"{_SESSION}/actions", admissible_actions, AdmissibleActions),
    _Route(Op.IRREVERSIBLE, "POST", f"{_SESSION}/irreversible", irreversible, Irreversibility),
    _Route(Op.TOOL, "POST", f"{_SESSION}/tool", tool_action, ToolAction),
    _Route(Op.IMAGE, "GET", f"{_SESSION}/images/{{sha256}}", image, None),
)


def install_session_routes(app: FastAPI, get_calls: GetCalls, problems: Mapping[Op, Problems]) -> None:
    """Add `/v1/sessions` and `/v1/steps`.

    Args:
        app: the service's app.
        get_calls: returns the object that carries out a request's calls; raises `ServiceError` if the caller may not.
        problems: the service's own problems for each call, for the schema.
    """
    app.state.get_session_calls = get_calls
    router = APIRouter(prefix="/v1", tags=["sessions"], route_class=DirectRoute)
    for op, method, path, endpoint, result, status_code in _ROUTES:
        router.add_api_route(
            path,
            endpoint,
            methods=[method],
            response_model=result,
            status_code=status_code,
            responses=problem_responses(*_PROBLEMS[op], *problems.get(op, ())),
        )
    router.add_api_route("/steps", step_many, methods=["POST"], response_model=list[StepResult | Problem])
    app.include_router(router)


async def _result_or_problem(calls: SessionCalls, item: SessionStep) -> Any:
    try:
        body = encode_body({"index": item.index, "action": item.action})
        return _decode(await calls.call(Op.STEP, item.session_id, body))
    except ServiceError as error:
        return error.problem().model_dump(mode="json", exclude_none=True)


async def _made(request: Request, ok: msgspec.Raw, calls: SessionCalls) -> Response:
    """Return the answer of a call that made sessions; close them if its caller gave up while it waited."""
    if await request.is_disconnected():  # nobody knows their ids
        for session_id in made_sessions(ok):
            with suppress(ServiceError):
                await calls.call(Op.CLOSE, session_id, NO_BODY)
    return _json(ok, status.HTTP_201_CREATED)


def _encoded(body: BaseModel) -> msgspec.Raw:
    return encode_body(body.model_dump(exclude_none=True))


def _json(ok: msgspec.Raw, status_code: int = status.HTTP_200_OK) -> Response:
    return Response(_encode_json(_decode(ok)), status_code=status_code, media_type="application/json")
