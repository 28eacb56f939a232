"""The REST calls of the session API as data: the request, the reading of the answer, and whether to repeat.

Both the asynchronous and the synchronous client execute these calls.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

import httpx
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.session import (
    AdmissibleActions,
    EnvironmentSpec,
    ExpertMove,
    Fork,
    Irreversibility,
    OpenSession,
    RenewLease,
    Seats,
    Session,
    SessionStep,
    StepResult,
    ToolAction,
    ToolCall,
)
from pydantic import TypeAdapter, ValidationError

from gymfleet_client._retries import GrowingPause
from gymfleet_client._trace import HEADER, current_traceparent
from gymfleet_client.errors import TransportError, parse_problem, problem_error

T = TypeVar("T")

# This is under uvicorn's default of 5 s, so that this side closes an idle connection
# first and sends no call into a connection that the server is just closing.
KEEP_ALIVE_S: Final = 4.0
_MAX_TRIES: Final = 6
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 0.4

_SPEC: Final = TypeAdapter(EnvironmentSpec)
_SPECS: Final = TypeAdapter(list[EnvironmentSpec])
_SESSION: Final = TypeAdapter(Session)
_SESSIONS: Final = TypeAdapter(list[Session])
_STEP: Final = TypeAdapter(StepResult)
_STEPS: Final[TypeAdapter[list[StepResult | Problem]]] = TypeAdapter(list[StepResult | Problem])
_MOVE: Final = TypeAdapter(ExpertMove)
_ACTIONS: Final = TypeAdapter(AdmissibleActions)
_IRREVERSIBILITY: Final = TypeAdapter(Irreversibility)
_TOOL_ACTION: Final = TypeAdapter(ToolAction)
_SEATS: Final = TypeAdapter(Seats)
_JSON: Final[dict[str, str]] = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One REST call. `repeatable` means that sending it twice does no harm."""

    method: str
    path: str
    parse: Callable[[bytes], T]
    content: bytes | None = None
    repeatable: bool = True
    gone_is_done: bool = False
    """Whether "unknown session" after a repeat means that the lost first answer was a success."""

    @property
    def name(self) -> str:
        """The method and the path, for messages."""
        return f"{self.method} {self.path}"

    def request(self, client: httpx.Client | httpx.AsyncClient, timeout_s: float) -> httpx.Request:
        """Return the request for httpx to send."""
        headers = dict(_JSON) if self.content is not None else {}
        if trace := current_traceparent():
            headers[HEADER] = trace
        return client.build_request(self.method, self.path, content=self.content, headers=headers, timeout=timeout_s)

    def read(self, response: httpx.Response, tries: int) -> T:
        """Read the answer as a model. Raises `ProblemError` for a problem, `TransportError` if the body is neither."""
        if response.is_success:
            try:
                return self.parse(response.content)
            except ValidationError as error:
                raise TransportError(f"the answer to {self.name} cannot be read: {error}") from None
        if response.status_code == httpx.codes.NOT_FOUND and self.gone_is_done and tries > 1:
            return self.parse(b"")
        try:
            body: Any = response.json()
        except ValueError:
            body = None
        problem = parse_problem(body, response.status_code)
        raise problem_error(problem, retry_after_s=_seconds(response.headers.get("retry-after")))


class Tries:
    """The tries to send one call; a lost connection may need several."""

    def __init__(self, call: Call[Any]) -> None:
        self._repeatable = call.repeatable
        self._growing = GrowingPause(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self.number = 1

    def pause_s(self, error: Exception) -> float | None:
        """Return the seconds to wait before the call is sent again; None if the error goes to the caller."""
        never_arrived = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
        repeatable = never_arrived or (self._repeatable and isinstance(error, httpx.TransportError))
        if not repeatable or self.number == _MAX_TRIES:
            return None
        self.number += 1
        return self._growing.next_s()


def environments() -> Call[list[EnvironmentSpec]]:
    """`GET /v1/environments`."""
    return Call("GET", "/v1/environments", _SPECS.validate_json)


def environment(name: str) -> Call[EnvironmentSpec]:
    """`GET /v1/environments/{env}`."""
    return Call("GET", f"/v1/environments/{quote(name, safe='')}", _SPEC.validate_json)


def open_session(request: OpenSession) -> Call[Session]:
    """`POST /v1/sessions`."""
    content = request.model_dump_json(exclude_none=True).encode()
    return Call("POST", "/v1/sessions", _SESSION.validate_json, content, repeatable=False)


def step(session_id: str, index: int, action: str) -> Call[StepResult]:
    """`POST /v1/sessions/{id}/steps`; the index makes a repeat safe."""
    content = _dump({"index": index, "action": action})
    return Call("POST", _session(session_id, "/steps"), _STEP.validate_json, content)


def steps(items: Sequence[SessionStep]) -> Call[list[StepResult | Problem]]:
    """`POST /v1/steps`."""
    content = _dump([item.model_dump() for item in items])
    return Call("POST", "/v1/steps", _STEPS.validate_json, content)


def fork(session_id: str, count: int, index: int | None) -> Call[list[Session]]:
    """`POST /v1/sessions/{id}/fork`."""
    content = Fork(count=count, index=index).model_dump_json(exclude_none=True).encode()
    return Call("POST", _session(session_id, "/fork"), _SESSIONS.validate_json, content, repeatable=False)


def renew(session_id: str, lease_s: float | None) -> Call[Session]:
    """`POST /v1/sessions/{id}/lease`."""
    content = RenewLease(lease_s=lease_s).model_dump_json(exclude_none=True).encode()
    return Call("POST", _session(session_id, "/lease"), _SESSION.validate_json, content)


def get(session_id: str, index: int | None) -> Call[Session]:
    """`GET /v1/sessions/{id}`."""
    return Call("GET", _session(session_id, at=index), _SESSION.validate_json)


def close(session_id: str) -> Call[None]:
    """`DELETE /v1/sessions/{id}`."""
    return Call("DELETE", _session(session_id), lambda _: None, gone_is_done=True)


def expert(session_id: str, index: int | None) -> Call[ExpertMove]:
    """`GET /v1/sessions/{id}/expert`."""
    return Call("GET", _session(session_id, "/expert", at=index), _MOVE.validate_json)


def admissible_actions(session_id: str, index: int | None) -> Call[AdmissibleActions]:
    """`GET /v1/sessions/{id}/actions`."""
    return Call("GET", _session(session_id, "/actions", at=index), _ACTIONS.validate_json)


def irreversible(session_id: str, index: int, action: str) -> Call[Irreversibility]:
    """`POST /v1/sessions/{id}/irreversible`."""
    content = _dump({"index": index, "action": action})
    return Call("POST", _session(session_id, "/irreversible"), _IRREVERSIBILITY.validate_json, content)


def image(session_id: str, sha256: str) -> Call[bytes]:
    """`GET /v1/sessions/{id}/images/{sha256}`."""
    return Call("GET", _session(session_id, f"/images/{quote(sha256, safe='')}"), lambda content: content)


def tool_action(session_id: str, call: ToolCall) -> Call[ToolAction]:
    """`POST /v1/sessions/{id}/tool`."""
    return Call("POST", _session(session_id, "/tool"), _TOOL_ACTION.validate_json, call.model_dump_json().encode())


def seats(session_id: str) -> Call[Seats]:
    """`POST /v1/sessions/{id}/seats`."""
    return Call("POST", _session(session_id, "/seats"), _SEATS.validate_json)


def _seconds(retry_after: str | None) -> float | None:
    """Read the header's seconds; the header's other form, a date, is ignored."""
    return float(retry_after) if retry_after is not None and re.fullmatch(r"[0-9]{1,9}", retry_after) else None


def _session(session_id: str, suffix: str = "", at: int | None = None) -> str:
    query = "" if at is None else f"?index={at}"
    return f"/v1/sessions/{quote(session_id, safe='')}{suffix}{query}"


def _dump(body: Any) -> bytes:
    return TypeAdapter(Any).dump_json(body)
