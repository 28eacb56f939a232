"""OpenEnv's JSON-RPC: `openenv/session/create|close`, `tools/list` and `tools/call`, over HTTP and sockets."""

from typing import Any, Final, Literal

from gymfleet_contracts import problems
from gymfleet_contracts.session import EnvironmentSpec
from pydantic import BaseModel, ConfigDict, Field

from gymfleet_env_gateway.fronts.openenv.connection import Client, OpenEnvConnection, SharedConnection
from gymfleet_env_gateway.fronts.openenv.wire import (
    ErrorCode,
    FrameError,
    ResetArguments,
    TextAction,
    read_model,
)

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
SERVER_ERROR: Final = -32000
_CODES: Final = {ErrorCode.VALIDATION_ERROR: INVALID_PARAMS, ErrorCode.INVALID_JSON: PARSE_ERROR}


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")

    jsonrpc: Literal["2.0"]
    method: str
    params: dict[str, Any] = Field(default_factory=dict)
    id: str | int | None = None


class _Nothing(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid")

    message: str


class _RpcError(Exception):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, "data": data}


class Rpc:
    """Answers the requests of one connection.

    Args:
        connection: the connection of the socket; None over HTTP, where `params.session_id` names one.
    """

    def __init__(self, client: Client, connection: OpenEnvConnection | None = None) -> None:
        self._client = client
        self._connection = connection

    async def answer(self, value: Any) -> dict[str, Any]:
        """Return a JSON-RPC response, even to a value that is not a request."""
        number = value.get("id") if isinstance(value, dict) else None
        number = number if isinstance(number, str | int) else None
        try:
            try:
                request = read_model(_Request, value)
            except FrameError as error:
                raise _RpcError(INVALID_REQUEST, error.message) from None
            return {"jsonrpc": "2.0", "id": number, "result": await self._do(request)}
        except _RpcError as failure:
            return {"jsonrpc": "2.0", "id": number, "error": failure.error}
        except FrameError as failure:
            return rpc_failure(failure, number)

    async def _do(self, request: _Request) -> Any:
        if request.method == "openenv/session/create":
            return {"session_id": await self._create()}
        if request.method == "openenv/session/close":
            handle = _session_id(request.params)
            if self._connection is not None and self._connection.name == handle:
                raise _RpcError(INVALID_REQUEST, "Cannot close active WebSocket-managed session via MCP method")
            await self._place(handle).forget()
            return {"session_id": handle, "closed": True}
        if request.method == "tools/list":
            return {"tools": tools(self._client.spec, "inputSchema")}
        if request.method == "tools/call":
            connection = self._connection or self._place(_session_id(request.params))
            name, arguments = request.params.get("name"), request.params.get("arguments", {})
            return await call_tool(connection, name, arguments)
        raise _RpcError(METHOD_NOT_FOUND, f"Method not found: {request.method[:64]}")

    async def _create(self) -> str:
        if self._connection is not None:
            if not self._connection.name:
                await self._connection.reset(ResetArguments())
            return self._connection.name
        return (await SharedConnection.create(self._client)).handle

    def _place(self, handle: str) -> SharedConnection:
        return SharedConnection(self._client, handle)


def tools(spec: EnvironmentSpec, schema_key: str) -> list[dict[str, Any]]:
    """Return the callable tools. None is named `reset`, `step`, `state` or `close`: OpenEnv reserves these."""
    return [
        {
            "name": "act",
            "description": f"Play one action and get what it led to. {spec.instructions}",
            schema_key: _Message.model_json_schema(),
        },
        {
            "name": "observe",
            "description": "The last observation and how far the episode is; changes nothing.",
            schema_key: _Nothing.model_json_schema(),
        },
        {
            "name": "begin",
            "description": "Begin another episode; the running one ends.",
            schema_key: ResetArguments.model_json_schema(),
        },
    ]


async def call_tool(connection: OpenEnvConnection, name: Any, arguments: Any) -> dict[str, Any]:
    """Call a tool by its name. Raises `FrameError`."""
    if name == "act":
        payload = await connection.step(read_model(TextAction, arguments).message)
    elif name == "begin":
        payload = await connection.reset(read_model(ResetArguments, arguments))
    elif name == "observe":
        read_model(_Nothing, arguments)
        state = await connection.state()
        if state["episode_id"] is None:
            raise FrameError(ErrorCode.SESSION_ERROR, "session lost, reset required")
        data = {"text": state["observation"], "done": state["done"], "metadata": state}
        return _result(data)
    else:
        raise _RpcError(INVALID_PARAMS, f"Tool not found: {str(name)[:64]}; there are act, observe, begin")
    observation = payload["observation"]
    return _result({**observation, "reward": payload["reward"], "done": payload["done"]})


async def mcp_action(connection: OpenEnvConnection, action: dict[str, Any]) -> dict[str, Any] | None:
    """Return the observation payload of OpenEnv's two MCP actions; None when it is neither. Raises `FrameError`."""
    if action.get("type") == "list_tools":
        observation: dict[str, Any] = {"tools": tools(connection.spec, "input_schema"), "metadata": {}}
        return {"observation": observation, "reward": None, "done": False}
    if action.get("type") != "call_tool":
        return None
    name, error, result = action.get("tool_name"), None, None
    try:
        result = await call_tool(connection, name, action.get("arguments", {}))
    except _RpcError as failure:
        error = {"error_type": "tool_not_found", "message": str(failure)}
    except FrameError as failure:
        if failure.code is not ErrorCode.VALIDATION_ERROR:
            raise  # failures of the system itself are not observations
        error = {"error_type": "invalid_args", "message": failure.message}
    data = (result or {}).get("data", {})
    observation = {"tool_name": str(name)[:64], "result": result, "error": error, "metadata": data.get("metadata", {})}
    return {"observation": observation, "reward": data.get("reward"), "done": data.get("done", False)}


def rpc_failure(failure: FrameError, number: str | int | None = None) -> dict[str, Any]:
    """Return a failure as a JSON-RPC response."""
    unknown = failure.figures.get("type") == problems.UNKNOWN_SESSION
    error = {
        "code": INVALID_PARAMS if unknown else _CODES.get(failure.code, SERVER_ERROR),
        "message": failure.message,
        "data": {**failure.figures, "code": failure.code},
    }
    return {"jsonrpc": "2.0", "id": number, "error": error}


def _result(data: dict[str, Any]) -> dict[str, Any]:
    """Return a FastMCP result as OpenEnv's server dumps it; its client reads `data`."""
    return {"content": [{"type": "text", "text": data["text"]}], "data": data, "is_error": False}


def _session_id(params: dict[str, Any]) -> str:
    session_id = params.get("session_id")
    if not isinstance(session_id, str) or not session_id:
        raise _RpcError(INVALID_PARAMS, "'session_id' is required: openenv/session/create gives one")
    return session_id
