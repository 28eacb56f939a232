"""An environment's tools for MCP: the session API, with the session id as an argument, and the environment's own tools.

Schemas are those of the contracts. A problem from the session API becomes a tool error whose text is that problem: no
failure reads like an observation.
"""

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import mcp_types as types
import msgspec
import structlog
from gymfleet_contracts.faults import faults
from gymfleet_contracts.frames import NO_BODY, Op
from gymfleet_contracts.session import (
    AtIndex,
    EnvironmentSpec,
    Fork,
    OpenSession,
    RenewLease,
    Session,
    SessionStep,
    StepResult,
    ToolCall,
)
from gymfleet_kit.problems import ServiceError, internal_problem
from gymfleet_kit.session_api.calls import encode_body
from gymfleet_kit.session_problems import InvalidRequest
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, JsonValue, ValidationError

from gymfleet_env_gateway.access import Tenant
from gymfleet_env_gateway.fronts.episode import counted
from gymfleet_env_gateway.session_proxy import SessionProxy

log = structlog.get_logger()

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode
_to_json: Final = msgspec.json.Encoder().encode
_SESSION_ID: Final[dict[str, Any]] = SessionStep.model_json_schema()["properties"]["session_id"]
# Some clients fill in a schema's defaults: a seed of 0 would always draw the same task.
_NOT_SHOWN: Final = frozenset({"title", "default"})
_DESCRIPTIONS: Final = {
    "session_id": "The session, as `reset` or `fork` returned it.",
    "wait_s": "Seconds to wait for a slot when all are taken, at most as long as the gateway lets anybody.",
    "split": "Which tasks to play; train without it.",
    "level": "Difficulty; the environment's default level without it.",
    "task_id": "The benchmark's own id of the task. Not together with task_index.",
    "task_index": "The task's place in its split, from 0. Without it and task_id a task is drawn from the split.",
    "seed": "For the episode's own randomness, and for drawing the task where none is named.",
    "lease_s": "Seconds; a session that is not touched for so long is closed.",
    "index": (
        "The number of this step: 0 for the first after `reset`, then one more for each. "
        "The last index with the same action returns the stored result and does nothing: repeat a step whose answer "
        "was lost."
    ),
    "action": "The action, in the environment's own words.",
    "count": "How many copies; 1 without it.",
    "state_keys": "Tell with each answer a key that is equal for equal states, where the environment has keys.",
}


class Opened(Session):
    """What `reset` returns: the session and the rules."""

    instructions: str
    max_turns: int
    max_action_chars: int


class Forked(BaseModel):
    """What `fork` returns."""

    sessions: list[Session]


class Closed(BaseModel):
    """What `close` returns."""

    closed: bool = True


@dataclass(frozen=True, slots=True)
class _SessionTool:
    """A tool that is one call within a session."""

    op: Op
    description: str
    body: type[BaseModel] | None
    answer: type[BaseModel]
    read: Callable[[Any], dict[str, Any]] = dict
    changes_nothing: bool = False
    repeatable: bool = True


_TOOLS: Final = {
    "step": _SessionTool(
        Op.STEP,
        "Take one action. Exactly once for each index, however often it is sent.",
        SessionStep,
        StepResult,
    ),
    "state": _SessionTool(Op.GET, "The session as it stands.", AtIndex, Session, changes_nothing=True),
    "renew": _SessionTool(Op.LEASE, "Extend the session's life.", RenewLease, Session),
    "fork": _SessionTool(
        Op.FORK,
        "Make independent copies of the session in its exact state, each with a session_id of its own.",
        Fork,
        Forked,
        lambda sessions: {"sessions": sessions},
        repeatable=False,
    ),
    "close": _SessionTool(Op.CLOSE, "End the session and free its slot.", None, Closed, lambda _: {"closed": True}),
}


def _schema(model: type[BaseModel] | None, *, leave_out: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return a tool's input schema from the body model of its call, with `session_id` unless left out."""
    schema: dict[str, Any] = {} if model is None else model.model_json_schema()
    fields: dict[str, dict[str, Any]] = {"session_id": _SESSION_ID, **schema.get("properties", {})}
    properties = {
        name: {key: value for key, value in field.items() if key not in _NOT_SHOWN}
        | ({"description": _DESCRIPTIONS[name]} if name in _DESCRIPTIONS else {})
        for name, field in fields.items()
        if name not in leave_out
    }
    required = [name for name in properties if name == "session_id" or name in schema.get("required", [])]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _tool(
    name: str, description: str, arguments: dict[str, Any], answer: type[BaseModel], *, reads: bool, repeatable: bool
) -> types.Tool:
    return types.Tool(
        name=name,
        description=description,
        input_schema=arguments,
        output_schema=answer.model_json_schema(mode="serialization"),
        annotations=types.ToolAnnotations(
            read_only_hint=reads, idempotent_hint=repeatable, destructive_hint=False, open_world_hint=False
        ),
    )


_OURS: Final = frozenset({"env", "owner", "recoveries", "record_replies"})
_LISTED: Final = [
    _tool(
        "reset",
        "Begin an episode: opens a session of its own and returns its session_id and the first observation. "
        "Pass that session_id to the other tools, and close it at the end.",
        _schema(OpenSession, leave_out=_OURS | {"session_id"}),
        Opened,
        reads=False,
        repeatable=False,
    ),
    *(
        _tool(
            name,
            tool.description,
            _schema(tool.body),
            tool.answer,
            reads=tool.changes_nothing,
            repeatable=tool.repeatable,
        )
        for name, tool in _TOOLS.items()
    ),
]
_OF_STEPS: Final = {name: _schema(SessionStep)["properties"][name] for name in ("session_id", "index")}


def _tools_of(spec: EnvironmentSpec) -> list[types.Tool]:
    """Return the tools that every environment has, then this one's own, each call of which is a step."""
    own = [
        _tool(tool.name, tool.description, _with_index(tool.parameters), StepResult, reads=False, repeatable=True)
        for tool in spec.tools
        if tool.name not in _TOOLS and tool.name != "reset"  # an env server that is not ours may call them so
    ]
    return [*_LISTED, *own]


def _with_index(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **parameters,
        "properties": {**parameters.get("properties", {}), **_OF_STEPS},
        "required": [*_OF_STEPS, *parameters.get("required", [])],
    }


def environment_server(spec: EnvironmentSpec, proxy: SessionProxy, tenant: Tenant) -> Server[Any]:
    """Make an MCP server that plays `spec` for `tenant`. It is cheap to make: each serves one request."""
    calls = _Calls(spec, proxy, tenant)
    listed = _tools_of(spec)
    schemas = {tool.name: tool.input_schema for tool in listed}

    async def list_tools(
        _: ServerRequestContext[Any], __: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def call_tool(_: ServerRequestContext[Any], params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name not in schemas:
            raise MCPError(types.INVALID_PARAMS, f"unknown tool {params.name[:64]!r}; known: {', '.join(schemas)}")
        return await _answer(params.name, calls.call(params.name, params.arguments or {}))

    return Server(
        f"gymfleet-{spec.name}",
        version=spec.version,
        title=spec.name,
        description=spec.summary,
        instructions=spec.instructions,
        get_tool_input_schema=schemas.get,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


class _Calls:
    """Implementation of the tools."""

    def __init__(self, spec: EnvironmentSpec, proxy: SessionProxy, tenant: Tenant) -> None:
        self._spec = spec
        self._proxy = proxy
        self._tenant = tenant

    async def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tool's structured answer. Raises `ServiceError`."""
        tool = _TOOLS.get(name)
        if tool is None and name != "reset":
            return await self._play(name, dict(arguments))
        arguments = {key: value for key, value in arguments.items() if value is not None}
        if tool is None:
            return await self._reset(arguments)
        session_id, body = _session_call(tool, arguments)
        return tool.read(_decode(await self._proxy.call(self._tenant, tool.op, session_id, body)))

    async def _play(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Take the step that a call of one of the environment's own tools spells."""
        place = {key: arguments.pop(key, None) for key in _OF_STEPS}
        session_id, _ = _session_call(_TOOLS["step"], {**place, "action": ""})
        call = _raw(_parsed(ToolCall, {"name": name, "arguments": arguments}))
        spelled = _decode(await self._proxy.call(self._tenant, Op.TOOL, session_id, call))
        _, step = _session_call(_TOOLS["step"], {**place, **spelled})
        return dict(_decode(await self._proxy.call(self._tenant, Op.STEP, session_id, step)))

    async def _reset(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if taken := sorted(_OURS & arguments.keys()):
            raise InvalidRequest(f"unknown arguments {', '.join(taken)}")
        named = bool({"task_id", "task_index"} & arguments.keys())
        try:
            opened = await self._open(arguments if named else self._drawn(arguments))
        except ServiceError as error:
            if named or (count := counted(error)) is None:
                raise
            opened = await self._open(self._drawn(arguments, count))
        spec = self._spec
        rules = {
            "instructions": spec.instructions,
            "max_turns": spec.max_turns,
            "max_action_chars": spec.max_action_chars,
        }
        return {**opened, **rules}

    async def _open(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        request = _parsed(OpenSession, {**arguments, "env": self._spec.name})
        return dict(_decode(await self._proxy.open_patiently(self._tenant, _raw(request))))

    def _drawn(self, arguments: Mapping[str, Any], count: int | None = None) -> dict[str, Any]:
        """Draw a task of the split; the same seed draws the same task.

        `count` is the number of tasks, if it is another than at the default level.
        """
        split = arguments.get("split", OpenSession.model_fields["split"].default)
        if count is None:
            count = next((count for name, count in self._spec.splits.items() if name == split), 0)
        seed = arguments.get("seed")
        drawn = random.Random(seed if isinstance(seed, int) else None)
        return {**arguments, "task_index": drawn.randrange(max(count, 1))}


def _session_call(tool: _SessionTool, arguments: Mapping[str, Any]) -> tuple[str, msgspec.Raw]:
    session_id = arguments.get("session_id")
    if not isinstance(session_id, str) or not session_id:
        raise InvalidRequest("session_id: give the session's id, as `reset` returned it")
    if tool.body is None:
        if extra := sorted(arguments.keys() - {"session_id"}):
            raise InvalidRequest(f"unknown arguments {', '.join(extra)[:200]}")
        return session_id, NO_BODY
    ours = {} if "session_id" in tool.body.model_fields else {"session_id"}
    body = _parsed(tool.body, {name: value for name, value in arguments.items() if name not in ours})
    return session_id, _raw(body, exclude={"session_id"})


def _parsed(model: type[BaseModel], arguments: Mapping[str, Any]) -> BaseModel:
    try:
        return model.model_validate(arguments)
    except ValidationError as error:
        raise InvalidRequest(faults(error, whole="arguments")) from None


def _raw(body: BaseModel, *, exclude: set[str] | None = None) -> msgspec.Raw:
    return encode_body(body.model_dump(mode="json", exclude_none=True, exclude=exclude))


async def _answer(name: str, call: Awaitable[dict[str, Any]]) -> types.CallToolResult:
    try:
        answer = await call
    except ServiceError as error:
        problem: dict[str, JsonValue] = error.problem().model_dump(mode="json", exclude_none=True)
        if error.retry_after_s is not None:
            problem.setdefault("retry_after_s", error.retry_after_s)
        return _failed(problem)
    except Exception:
        log.exception("tool.failed", tool=name)
        return _failed(internal_problem().model_dump(mode="json", exclude_none=True))
    return types.CallToolResult(content=[_text(answer)], structured_content=answer)


def _failed(problem: Mapping[str, JsonValue]) -> types.CallToolResult:
    """Return the problem as text only: structured content must match the schema of a successful answer."""
    return types.CallToolResult(content=[_text(problem)], is_error=True)


def _text(body: Mapping[str, Any]) -> types.TextContent:
    return types.TextContent(text=_to_json(body).decode())
