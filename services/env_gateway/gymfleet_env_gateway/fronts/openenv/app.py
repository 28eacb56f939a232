"""`/openenv/{env}/...`: OpenEnv 0.10's own wire, for its unmodified clients.

A client's base URL is, for example, `http://gateway/openenv/textcraft`. Below it are the
routes of an OpenEnv server in simulation mode, without the web page. Over HTTP the
reference makes a new environment for each call, so that no episode can be played;
here `reset` opens a session with a lease, and `step` and `state` name that session.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Depends, FastAPI, Query, Request, WebSocket
from fastapi.responses import JSONResponse
from gymfleet_contracts import problems
from gymfleet_contracts.numbers import NUMBER
from gymfleet_contracts.problems import PROBLEM_MEDIA_TYPE, Problem
from gymfleet_contracts.session import EnvironmentSpec
from gymfleet_kit.openapi import complete_openapi
from gymfleet_kit.problem_handlers import install_problem_handlers, problem_response
from gymfleet_kit.problems import ServiceError, problem_responses
from gymfleet_kit.session_problems import SessionLost, UnknownEnvironment, UnknownSession, UnknownTask
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import HTTPConnection

from gymfleet_env_gateway.errors import Forbidden, QuotaExceeded, RateLimited, Unauthorized, Unavailable
from gymfleet_env_gateway.fronts.openenv.connection import Client, OpenEnvConnection
from gymfleet_env_gateway.fronts.openenv.mcp import Rpc, rpc_failure
from gymfleet_env_gateway.fronts.openenv.socket import Connections, Socket
from gymfleet_env_gateway.fronts.openenv.tasks import SpecDep, get_spec
from gymfleet_env_gateway.fronts.openenv.tasks import router as tasks
from gymfleet_env_gateway.fronts.openenv.wire import (
    EpisodeState,
    ErrorCode,
    FrameError,
    ResetArguments,
    TextAction,
    TextObservation,
    read_json,
)
from gymfleet_env_gateway.state import Gateway, GatewayDep, ReaderDep, TenantDep, get_gateway
from gymfleet_env_gateway.store import Store

PREFIX: Final = "/openenv"
_POLICY_VIOLATION: Final = 1008
_VERSION: Final = "1.0.0"
"""Version of OpenEnv's HTTP standard, not of gymfleet."""
_STATUS: Final = {
    ErrorCode.VALIDATION_ERROR: 422,
    ErrorCode.INVALID_JSON: 422,
    ErrorCode.CAPACITY_REACHED: 429,
    ErrorCode.SESSION_ERROR: 410,
}
_PROBLEM: Final = {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
_ANY: Final[dict[int | str, str]] = {
    400: "The body is not JSON",
    409: "The step's index is not the next one, or the episode is over",
    413: "The body is too large",
    422: "The request is not valid",
    500: "The environment failed",
    504: "The environment did not answer in time",
}
_REFUSED: Final = problem_responses(Unauthorized, Forbidden, UnknownEnvironment, Unavailable)
_PLAYED: Final = problem_responses(
    Unauthorized, Forbidden, UnknownEnvironment, UnknownSession, UnknownTask, SessionLost, RateLimited,
    QuotaExceeded, Unavailable,
)  # fmt: skip


class Health(BaseModel):
    """`GET /health`."""

    status: str = "healthy"


class Metadata(BaseModel):
    """`GET /metadata`."""

    name: str
    description: str
    readme_content: str | None = None
    version: str | None = None
    author: str | None = None
    documentation_url: str | None = None


class Schemas(BaseModel):
    """`GET /schema`."""

    action: dict[str, Any]
    observation: dict[str, Any]
    state: dict[str, Any]
    reset_observation: dict[str, Any]


class Observed(BaseModel):
    """What `reset` and `step` answer."""

    observation: dict[str, Any]
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] | None = None


class StepBody(BaseModel):
    """`POST /step`. The session is named next to the action, because OpenEnv leaves room for a server's own fields."""

    model_config = ConfigDict(extra="ignore")

    action: TextAction
    session_id: Annotated[str, Field(min_length=1, max_length=256)]
    """From the metadata of `reset`."""
    index: Annotated[int, Field(ge=0, lt=2**31), NUMBER] | None = None
    """The step's number from 0: with it the same request can be sent again safely."""


class RpcBody(BaseModel):
    """A JSON-RPC response."""

    model_config = ConfigDict(extra="allow")

    jsonrpc: str = "2.0"


@dataclass(frozen=True, slots=True)
class Shared:
    """State that the calls of this front share in addition to the gateway."""

    store: Store
    connections: Connections


def get_shared(connection: HTTPConnection) -> Shared:
    """Return the front's shared state."""
    shared: Shared = connection.app.state.openenv
    return shared


async def _client(connection: HTTPConnection, spec: SpecDep, gateway: GatewayDep, tenant: TenantDep) -> Client:
    return Client(gateway, tenant, spec, get_shared(connection).store)


ClientDep = Annotated[Client, Depends(_client)]
info = APIRouter(tags=["Environment Info"], responses=_REFUSED)
control = APIRouter(tags=["Environment Control"], responses=_PLAYED)
sockets = APIRouter()


@info.get("/health")
async def health(spec: Annotated[EnvironmentSpec, Depends(get_spec)], gateway: GatewayDep) -> Health:
    """A replica can take sessions; no key is needed, because probes send none."""
    gateway.registry.candidates(spec.name)
    return Health()


@info.get("/metadata")
async def metadata(spec: SpecDep, _: ReaderDep) -> Metadata:
    """The environment's description."""
    return Metadata(name=spec.name, description=spec.summary, readme_content=spec.instructions, version=spec.version)


@info.get("/schema")
async def schema(_spec: SpecDep, _: ReaderDep) -> Schemas:
    """JSON schemas of actions, observations and states."""
    observation = TextObservation.model_json_schema()
    return Schemas(
        action=TextAction.model_json_schema(),
        observation=observation,
        state=EpisodeState.model_json_schema(),
        reset_observation=observation,
    )


@control.post("/reset", response_model=Observed)
async def reset(client: ClientDep, body: Annotated[ResetArguments | None, Body()] = None) -> dict[str, Any]:
    """Open a session; `metadata` of the answer has its `session_id` and how long it lives without a call."""
    return await _connection(client).reset(body or ResetArguments())


@control.post("/step", response_model=Observed)
async def step(body: StepBody, client: ClientDep) -> dict[str, Any]:
    """Apply an action in the session that `session_id` names."""
    connection = _connection(client)
    await connection.resume(body.session_id)
    return await connection.step(body.action.message, body.index)


@control.get("/state", response_model=EpisodeState)
async def state(
    client: ClientDep, session_id: Annotated[str | None, Query(min_length=1, max_length=256)] = None
) -> dict[str, Any]:
    """The state of the session; without one, the state before the first reset."""
    if session_id is None:
        return {"episode_id": None, "step_count": 0}
    connection = _connection(client)
    await connection.resume(session_id)
    return await connection.state()


@control.post("/mcp", response_model=RpcBody)
async def mcp(request: Request, client: ClientDep) -> dict[str, Any]:
    """JSON-RPC; mistakes are answered with status 200 and an error."""
    try:
        value = read_json(await request.body())
    except FrameError as error:
        return rpc_failure(error)
    return await Rpc(client).answer(value)


def _connection(client: Client) -> OpenEnvConnection:
    """Return a connection with the longer lease: between calls over HTTP nothing renews it."""
    return OpenEnvConnection(client, lease_s=client.gateway.settings.openenv_idle_s)


@sockets.websocket("/ws")
async def ws(websocket: WebSocket) -> None:
    """Episodes, one at a time; `?session_id=` continues one."""
    if (socket := await _admit(websocket)) is not None:
        await socket.serve(websocket.query_params.get("session_id"))


@sockets.websocket("/mcp")
async def mcp_socket(websocket: WebSocket) -> None:
    """Episodes by JSON-RPC."""
    if (socket := await _admit(websocket)) is not None:
        await socket.serve_rpc()


async def _admit(websocket: WebSocket) -> Socket | None:
    """Return the connection, not yet accepted, or None when it was refused."""
    gateway, shared = get_gateway(websocket), get_shared(websocket)
    try:
        tenant = await gateway.access.admit(websocket)
        spec = await get_spec(websocket)
    except (Unauthorized, Forbidden):
        await websocket.close(_POLICY_VIOLATION)  # closed before `accept`, so that the handshake is answered with 403
    except ServiceError as error:
        await websocket.send_denial_response(problem_response(error.problem()))
    else:
        return Socket(websocket, Client(gateway, tenant, spec, shared.store), shared.connections)
    return None


def install_openenv(app: FastAPI, gateway: Gateway, store: Store) -> None:
    """Mount the front on `app` as a separate app: each environment has its own `/openapi.json`."""
    front = FastAPI(
        title="gymfleet environments for OpenEnv clients",
        version=_VERSION,
        docs_url=None,
        redoc_url=None,
        root_path_in_servers=False,
        responses={status: {"model": Problem, "content": _PROBLEM, "description": why} for status, why in _ANY.items()},
    )
    install_problem_handlers(front)
    complete_openapi(front)

    async def failed(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, FrameError)  # noqa: S101 - registered for this class alone
        status = error.figures.get("status", _STATUS.get(error.code, 500))
        problem = {"type": problems.BAD_REQUEST, "title": error.code, "detail": error.message, "code": error.code}
        return problem_response(Problem.model_validate({**problem, **error.figures, "status": status}))

    front.add_exception_handler(FrameError, failed)
    front.state.gateway = gateway
    front.state.openenv = Shared(store, Connections())
    for router in (info, control, tasks, sockets):
        front.include_router(router)
    app.mount(PREFIX + "/{env}", front)
