"""OpenEnv 0.10's wire: what its clients send, what they read, and JSON within bounds."""

from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from gymfleet_contracts import problems
from gymfleet_contracts.numbers import NUMBER
from gymfleet_contracts.session import EnvironmentSpec, OpenSession, Split
from gymfleet_kit.problems import ServiceError
from gymfleet_kit.session_problems import InvalidRequest
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

MAX_FRAME_CHARS: Final = 1024 * 1024
_MAX_ECHO_CHARS: Final = 64
_MAX_FAULTS: Final = 16
_decode_json: Final = msgspec.json.Decoder().decode
_encode_json: Final = msgspec.json.Encoder().encode
M = TypeVar("M", bound=BaseModel)


class ErrorCode(StrEnum):
    """`code` of an error frame."""

    INVALID_JSON = "INVALID_JSON"
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    VALIDATION_ERROR = "VALIDATION_ERROR"
    EXECUTION_ERROR = "EXECUTION_ERROR"
    CAPACITY_REACHED = "CAPACITY_REACHED"
    SESSION_ERROR = "SESSION_ERROR"


class FrameError(Exception):
    """A failure that is answered with an error frame; the socket stays open."""

    def __init__(self, code: ErrorCode, message: str, **figures: JsonValue) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.figures = figures

    def frame(self) -> dict[str, Any]:
        """Return the error frame."""
        return {"type": "error", "data": {**self.figures, "message": self.message, "code": self.code}}


_CODES: Final = {
    problems.VALIDATION: ErrorCode.VALIDATION_ERROR,
    problems.ACTION_TOO_LARGE: ErrorCode.VALIDATION_ERROR,
    problems.UNKNOWN_TASK: ErrorCode.VALIDATION_ERROR,
    problems.RATE_LIMITED: ErrorCode.CAPACITY_REACHED,
    problems.QUOTA_EXCEEDED: ErrorCode.CAPACITY_REACHED,
    problems.ENVIRONMENT_FULL: ErrorCode.CAPACITY_REACHED,
    problems.UNKNOWN_SESSION: ErrorCode.SESSION_ERROR,
    problems.SESSION_LOST: ErrorCode.SESSION_ERROR,
    problems.STEP_OUT_OF_ORDER: ErrorCode.SESSION_ERROR,
}
_TOO_MANY: Final = 429


def frame_error(error: ServiceError) -> FrameError:
    """Translate a gateway failure into OpenEnv's terms, keeping the problem's own type and figures."""
    problem = error.problem()
    code = _CODES.get(problem.type, ErrorCode.EXECUTION_ERROR)
    if problem.status == _TOO_MANY:
        code = ErrorCode.CAPACITY_REACHED
    message = problem.detail or problem.title
    if code is ErrorCode.SESSION_ERROR:
        message = f"session lost, reset required: {message}"
    figures: dict[str, JsonValue] = {**(problem.model_extra or {}), "type": problem.type, "status": problem.status}
    if error.retry_after_s is not None:
        figures["retry_after_s"] = error.retry_after_s
    for reserved in ("message", "code"):
        figures.pop(reserved, None)
    return FrameError(code, message, **figures)


class TextAction(BaseModel):
    """What the agent says: the action's text, as the environment's instructions ask for it."""

    model_config = ConfigDict(extra="forbid")

    message: str = Field(description="The action, in the words that the environment's instructions name")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Not read")


class TextObservation(BaseModel):
    """What the environment shows."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(description="The observation")
    done: bool = Field(default=False, description="The episode has ended")
    reward: float | None = Field(default=None, description="Of the last action; null after a reset")
    metadata: dict[str, Any] = Field(
        default_factory=dict,
        description="terminated, truncated, score in [0, 1], step_count, action_valid; after a reset the task "
        "(task_id, split, level, seed), session_id and lease_s",
    )


class EpisodeState(BaseModel):
    """The state of the episode. Both fields are empty before the first reset."""

    model_config = ConfigDict(extra="allow")

    episode_id: str | None = None
    step_count: Annotated[int, Field(ge=0)] = 0


_MAX_NUMBER: Final = 2**53 - 1
"""The largest integer that is exact in every JSON implementation, even where numbers are floats."""
_ONE_TASK: Final[dict[str, Any]] = {
    "not": {
        "properties": {"task_id": {"type": "string"}, "task_index": {"type": "integer"}},
        "required": ["task_id", "task_index"],
    }
}


class ResetArguments(BaseModel):
    """What `reset` takes. Without a task, `seed` picks one of the split, modulo their count; without a seed, any."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=_ONE_TASK)

    seed: Annotated[int, Field(ge=0, le=_MAX_NUMBER), NUMBER] | None = None
    episode_id: Annotated[str, Field(max_length=255)] | None = None
    task_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    task_index: Annotated[int, Field(ge=0, le=_MAX_NUMBER), NUMBER] | None = None
    split: Split | None = None
    level: Annotated[str, Field(max_length=64)] | None = None

    @property
    def names_task(self) -> bool:
        """Whether the task is named, not picked."""
        return self.task_id is not None or self.task_index is not None

    def body(self, spec: EnvironmentSpec, lease_s: float, draw: int, count: int | None = None) -> dict[str, Any]:
        """Return the `open` body; `draw` chooses the task when nothing else does. Raises `InvalidRequest`.

        `count` is the number of tasks, if it is another than at the default level.
        """
        if self.task_id is not None and self.task_index is not None:
            raise InvalidRequest("give task_id or task_index, not both")
        split: Split = self.split or "train"
        selector: dict[str, Any] = {"task_id": self.task_id}
        if self.task_id is None:
            count = spec.splits.get(split, 0) if count is None else count
            if not count:
                raise InvalidRequest(f"{spec.name} has no {split} tasks; it has {', '.join(_with_tasks(spec))}")
            chosen = self.task_index
            selector = {"task_index": (draw if self.seed is None else self.seed) % count if chosen is None else chosen}
        return OpenSession(
            env=spec.name, split=split, level=self.level, seed=self.seed or 0, lease_s=lease_s, **selector
        ).model_dump(mode="json", exclude_none=True)


class ResetFrame(BaseModel):
    """`reset`."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["reset"]
    data: ResetArguments = Field(default_factory=ResetArguments)


class StepFrame(BaseModel):
    """`step`; `data` is the action itself."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["step"]
    data: dict[str, Any]


class BareFrame(BaseModel):
    """`state` and `close`."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["state", "close"]


class RpcFrame(BaseModel):
    """`mcp`; `data` is a JSON-RPC request."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["mcp"]
    data: dict[str, Any]


Frame = ResetFrame | StepFrame | BareFrame | RpcFrame
_FRAMES: Final[dict[str, type[Frame]]] = {
    "reset": ResetFrame, "step": StepFrame, "state": BareFrame, "close": BareFrame, "mcp": RpcFrame,
}  # fmt: skip


def read_json(text: str | bytes | None) -> Any:
    """Parse any JSON value of bounded size and depth. Raises `FrameError`."""
    if text is None:
        raise FrameError(ErrorCode.INVALID_JSON, "Invalid JSON: frames are text, not binary")
    if len(text) > MAX_FRAME_CHARS:
        raise FrameError(
            ErrorCode.VALIDATION_ERROR, f"the frame has {len(text)} characters; at most {MAX_FRAME_CHARS} are read"
        )
    try:
        return _decode_json(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise FrameError(ErrorCode.INVALID_JSON, f"Invalid JSON: {error}") from None


def read_frame(text: str | None) -> Frame:
    """Parse a request frame. Raises `FrameError`."""
    frame = read_json(text)
    if not isinstance(frame, dict):
        raise FrameError(ErrorCode.VALIDATION_ERROR, "Invalid message: a frame is a JSON object with a 'type'")
    kind = frame.get("type", "")
    model = _FRAMES.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise FrameError(ErrorCode.UNKNOWN_TYPE, f"Unknown message type: {str(kind)[:_MAX_ECHO_CHARS]}")
    return read_model(model, frame)


def read_model(model: type[M], value: Any) -> M:
    """Validate a value. Raises a `FrameError` that lists what does not fit the model."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)[:_MAX_FAULTS]
        faults: list[JsonValue] = list(found)  # type: ignore[arg-type]
        told = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in found)
        raise FrameError(ErrorCode.VALIDATION_ERROR, f"Invalid message: {told}", errors=faults) from None


def write_frame(frame: dict[str, Any]) -> str:
    """Return a frame as text."""
    return _encode_json(frame).decode()


def observed(text: str, *, reward: float | None, done: bool, metadata: dict[str, Any]) -> dict[str, Any]:
    """Return an observation's payload. Typed clients look for metadata inside it, generic ones next to it."""
    return {
        "observation": {"text": text, "metadata": metadata}, "reward": reward, "done": done, "metadata": metadata,
    }  # fmt: skip


def _with_tasks(spec: EnvironmentSpec) -> list[str]:
    return [split for split, count in spec.splits.items() if count]
