"""The session API: spoken by every env server and, with routing added, by the gateway."""

from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, Strict, model_validator
from pydantic.config import JsonDict

from gymfleet_contracts._model import WireModel, is_absent
from gymfleet_contracts.numbers import NUMBER, Integer
from gymfleet_contracts.observation import Parts

Split = Literal["train", "validation", "test"]
EnvironmentName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
MAX_SESSION_ID_CHARS = 256
SessionId = Annotated[str, Field(min_length=1, max_length=MAX_SESSION_ID_CHARS)]


RECOVERED: Final = "recovered"
"""The key of `info` under which a session that was played again on another process says how often it was."""


SeatName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
MAX_SEATS: Final = 16


class ForkSupport(StrEnum):
    """How an environment makes a child in the parent's exact state."""

    NATIVE = "native"
    REPLAY = "replay"
    NONE = "none"


class Capabilities(WireModel):
    """What a caller may rely on."""

    deterministic: bool
    """The same task, seed and actions give the same episode, and the same replies of models where it asks any."""
    stable_observations: bool = True
    """Observation texts are identical, character by character, when an episode is replayed."""
    fork: ForkSupport = ForkSupport.NONE
    expert: bool = False
    state_keys: bool = False
    """Sessions that are opened with `state_keys` tell a key of their state."""
    admissible_actions: bool = False
    """Sessions say which actions are possible now."""
    irreversible: bool = False
    """Some actions cannot be taken back. Once one was taken, no replay brings a lost session back or makes a fork."""


MAX_SLOTS: Final = 255
"""The most that one session takes."""
TOOL_NAME: Final = r"^[a-zA-Z][a-zA-Z0-9_-]{0,63}$"


class Tool(WireModel):
    """A kind of action as a tool that a model can call."""

    name: Annotated[str, Field(pattern=TOOL_NAME)]
    description: str
    parameters: dict[str, JsonValue]
    """JSON Schema (2020-12) of the arguments, an object."""


class ModelRole(WireModel):
    """A language model that an environment asks itself: a simulated user, a host, a judge."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
    purpose: Annotated[str, Field(min_length=1, max_length=256)]
    """What it is asked for, in words for whoever chooses the model."""
    max_calls: Annotated[int, Field(ge=1, le=4096)]
    """In one session."""
    max_tokens: Annotated[int, Field(ge=1, le=1_048_576)]
    """Of all replies in one session: each call counts with the most that it allows its reply."""


class EnvironmentSpec(WireModel):
    """What an environment says of itself."""

    name: EnvironmentName
    version: str
    summary: str
    format: str = "react"
    """The reply format that its benchmark is played with: the name of one that comes with gymfleet, or of a plug-in."""
    instructions: str
    """Task-independent rules; the rollout puts them, with the reply format's own, at the head of the prompt."""
    max_turns: int
    levels: tuple[str, ...]
    default_level: str
    splits: dict[Split, int]
    """Tasks in each split, at the default level."""
    capabilities: Capabilities
    max_action_chars: int = 4096
    task_source: str = "generated"
    reward_rule: str = ""
    """The rule that rewards and scores follow, where an option of the environment chooses between several."""
    licence: str = ""
    slots: Annotated[int, Field(ge=1, le=MAX_SLOTS)] = 1
    """How many of a server's slots, its `max_sessions`, one session takes."""
    step_timeout_s: Annotated[float | None, Field(gt=0, exclude_if=is_absent)] = None
    """The longest that a call of one of its tasks may take, where tasks have limits of their own."""
    tools: Annotated[tuple[Tool, ...], Field(exclude_if=is_absent)] = ()
    """The environment's actions as tools."""
    images: Annotated[Literal["beside", "only"] | None, Field(exclude_if=is_absent)] = None
    """Whether its observations show images: beside texts that say the same, or as the only thing that says it."""
    models: Annotated[tuple[ModelRole, ...], Field(exclude_if=is_absent)] = ()
    """The models that the environment asks itself. The server's operator says who answers; callers see none of it."""
    seats: Annotated[tuple[SeatName, ...], Field(max_length=MAX_SEATS, exclude_if=is_absent)] = ()
    """Its players, where it is a game that several share."""


_ONE_SELECTOR: Final[JsonDict] = {
    "oneOf": [
        {"required": [given], "properties": {given: {"type": kind}, other: {"type": "null"}}}
        for given, kind, other in (("task_id", "string", "task_index"), ("task_index", "integer", "task_id"))
    ]
}


class OpenSession(WireModel):
    """Which task to play: by its own id, or by its place in a split."""

    model_config = ConfigDict(json_schema_extra=_ONE_SELECTOR)

    env: EnvironmentName
    split: Split = "train"
    level: Annotated[str, Field(max_length=64)] | None = None
    task_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    task_index: Annotated[int, Field(ge=0, lt=2**63), NUMBER] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63), NUMBER] = 0
    lease_s: Annotated[float, Field(gt=0, le=86_400), NUMBER] | None = None
    wait_s: Annotated[float, Field(ge=0, le=3600), NUMBER] | None = None
    """How long a gateway may let the caller wait for a slot, at most its own limit. Env servers never do."""
    recoveries: Annotated[int, Field(ge=0, lt=2**31), NUMBER] | None = None
    """How often the session was lost and played again. A gateway sets it, whatever was sent; `info` says it."""
    state_keys: Annotated[bool, Strict()] | None = None
    """Tell the key of the state with every answer, where the environment has keys; they cost time at each step."""
    owner: Annotated[str, Field(max_length=64)] | None = None
    """Whom the session counts for in `ServerLoad`. The gateway sets it to the caller's tenant, whatever was sent."""
    record_replies: Annotated[bool, Strict()] | None = None
    """Send what models replied to the environment along with the stream's answers, so that a replay can repeat it. A
    gateway sets it, whatever was sent, and tells the replies to nobody."""

    @model_validator(mode="after")
    def one_selector(self) -> Self:
        """Exactly one of `task_id` and `task_index`."""
        if (self.task_id is None) == (self.task_index is None):
            raise ValueError("give exactly one of task_id and task_index")
        return self


StateKey = Annotated[str | None, Field(max_length=64, exclude_if=is_absent)]
"""Equal for equal states of one task, whatever led there and however many turns it took: for search, and for groups by
anchor state. Absent unless the session was opened with `state_keys` and the environment has a key for this state."""


MAX_SEALED_CHARS: Final = 131_072
Sealed = Annotated[str | None, Field(max_length=MAX_SEALED_CHARS, pattern=r"^[A-Za-z0-9_=-]+$", exclude_if=is_absent)]
"""What the environment tells the reward service alone, such as a gold answer, sealed for that service's key: carry it
unread. Absent where there is no such thing, and where the env server was given no key to seal with."""


class Seat(WireModel):
    """What one player of a game sees and has reached."""

    observation: str
    reward: float = 0.0
    """The sum of all its rewards so far; a player may also gain or lose by what others do."""
    score: float = 0.0
    """Its success so far in [0, 1]; 1 means won."""


class Game(WireModel):
    """The state of a game that several players share.

    The session in which a game was opened sees every seat, and its next step is the action of the seat that is to
    move: it is for whoever plays them all. `POST /v1/sessions/{id}/seats` of a gateway gives each player a session id
    of its own, which sees and plays that seat alone.
    """

    to_move: SeatName | None
    """The seat whose action is the next step; None when the game is over."""
    moved: SeatName | None = None
    """The seat whose action the last step was."""
    seats: dict[SeatName, Seat]


SharedGame = Annotated[Game | None, Field(exclude_if=is_absent)]
"""Absent where the environment has no seats."""


class Seats(WireModel):
    """The session id of each player of a game."""

    seats: dict[SeatName, SessionId]


class TaskRef(WireModel):
    """The task that a session plays. `task_id` is the benchmark's own id where it has one."""

    env: EnvironmentName
    split: Split
    level: str
    task_id: str
    seed: Integer = 0


class Session(WireModel):
    """An open session. `index` is the number of steps taken so far."""

    session_id: SessionId
    task: TaskRef
    observation: str
    index: int = 0
    lease_s: float
    """The session is closed when it is not touched for so long."""
    expires_in_s: float
    terminated: bool = False
    truncated: bool = False
    score: float = 0.0
    info: dict[str, JsonValue] = Field(default_factory=dict)
    """What `StepResult.info` says beside `observation`, and the environment beside the first one."""
    state_key: StateKey = None
    sealed: Sealed = None
    parts: Parts = ()
    """The observation in full, where it is more than text."""
    game: SharedGame = None


class Step(WireModel):
    """One action. `index` counts from 0 and makes a repeated request safe: the same index with another is refused."""

    index: Annotated[int, Field(ge=0, lt=2**63), NUMBER]
    action: str


class StepResult(WireModel):
    """What a step gave. A repeat of the last step gets the stored one again."""

    index: int
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    score: float = 0.0
    """Success so far in [0, 1]; 1 means solved."""
    action_valid: bool = True
    """False when the environment did not understand the action."""
    info: dict[str, JsonValue] = Field(default_factory=dict)
    """Diagnostics. Never holds a gold answer. `recovered` says how often the session was played again so far
    because its process died; it is absent where that never happened."""
    state_key: StateKey = None
    sealed: Sealed = None
    parts: Parts = ()
    """The observation in full, where it is more than text."""
    game: SharedGame = None


class SessionStep(Step):
    """One item of `POST /v1/steps`."""

    session_id: SessionId


class AtIndex(WireModel):
    """What the caller knows of the session, for calls that take no step.

    Another `index` than the session's is refused as `step-out-of-order`, and a session whose process died is played
    again only if all of these steps are known.
    """

    index: Annotated[int, Field(ge=0, lt=2**63), NUMBER] | None = None
    """The number of steps taken."""


class Fork(AtIndex):
    """How many children to make."""

    count: Annotated[int, Field(ge=1, le=64), NUMBER] = 1


class RenewLease(WireModel):
    """Extend a session's life; without `lease_s` by the lease it was opened with."""

    lease_s: Annotated[float, Field(gt=0, le=86_400), NUMBER] | None = None


class ServerLoad(WireModel):
    """`GET /v1/load` of an env server: what its gateways decide by."""

    max_sessions: int
    """Slots for sessions: a session takes as many as its environment's `slots` says, mostly one."""
    draining: bool = False
    """The server is on its way out: it opens no more sessions and ends when those it has are closed."""
    sessions: dict[EnvironmentName, dict[str, int]] = Field(default_factory=dict)
    """Open sessions by environment and owner; the owner of a session that was opened without one is ``""``."""


class ExpertMove(WireModel):
    """What the environment's expert would do next. Served on the train split alone."""

    thought: str
    action: str


class ToolCall(WireModel):
    """A call of one of the environment's tools, as a model makes it."""

    name: Annotated[str, Field(max_length=64)]
    arguments: dict[str, JsonValue] = Field(default_factory=dict)


class ToolAction(WireModel):
    """The action that a tool call spells, to be sent as a step.

    A call is not a step itself: an action stays one text, which is what a step's repeat is compared by, what is
    journaled and replayed, and what a trajectory records.
    """

    action: str


class AdmissibleActions(WireModel):
    """The actions that are possible now. Actions with free text, such as a search, are not listed."""

    actions: list[str]
    complete: bool = True
    """False when there are more than one answer holds."""


class Irreversibility(WireModel):
    """Whether a step, if it were taken now, could not be taken back."""

    irreversible: bool


class Ticket(WireModel):
    """Opens one socket, once: `/v1/stream?ticket=...`. For browsers, whose sockets carry no header."""

    ticket: str
    expires_in_s: float
