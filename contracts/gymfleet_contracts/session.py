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
"""The key of `info` for the number of times that a session was replayed on another process."""


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
    """The same task, seed and actions give the same episode, as long as models that it asks give the same replies."""
    stable_observations: bool = True
    """Observation texts are identical, character by character, when an episode is replayed."""
    fork: ForkSupport = ForkSupport.NONE
    expert: bool = False
    state_keys: bool = False
    """Sessions that are opened with `state_keys` report a key of their state."""
    admissible_actions: bool = False
    """Sessions list the actions that are possible now."""
    irreversible: bool = False
    """Some actions cannot be taken back. After one of them, no replay can restore a lost session or make a fork."""


MAX_SLOTS: Final = 255
"""The most slots that one session takes."""
TOOL_NAME: Final = r"^[a-zA-Z][a-zA-Z0-9_-]{0,63}$"


class Tool(WireModel):
    """A kind of action as a tool that a model can call."""

    name: Annotated[str, Field(pattern=TOOL_NAME)]
    description: str
    parameters: dict[str, JsonValue]
    """JSON Schema (2020-12) of the arguments, an object."""


class ModelRole(WireModel):
    """A language model that an environment itself asks: a simulated user, a host, a judge."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
    purpose: Annotated[str, Field(min_length=1, max_length=256)]
    """What the model is asked for, in words for whoever chooses it."""
    max_calls: Annotated[int, Field(ge=1, le=4096)]
    """Maximum number of calls in one session."""
    max_tokens: Annotated[int, Field(ge=1, le=1_048_576)]
    """Maximum number of tokens of all replies in one session; each call counts with the most that it allows its
    reply."""


class EnvironmentSpec(WireModel):
    """An environment's description of itself."""

    name: EnvironmentName
    version: str
    summary: str
    format: str = "react"
    """The reply format that its benchmark is played with: the name of one that comes with gymfleet, or of a plug-in."""
    instructions: str
    """Task-independent rules; the rollout puts them, with those of the reply format, at the head of the prompt."""
    max_turns: int
    levels: tuple[str, ...]
    default_level: str
    splits: dict[Split, int]
    """Tasks in each split, at the default level."""
    capabilities: Capabilities
    max_action_chars: int = 4096
    task_source: str = "generated"
    reward_rule: str = ""
    """The rule that rewards and scores follow, if an option of the environment chooses between several."""
    licence: str = ""
    slots: Annotated[int, Field(ge=1, le=MAX_SLOTS)] = 1
    """How many of a server's slots, its `max_sessions`, one session takes."""
    step_timeout_s: Annotated[float | None, Field(gt=0, exclude_if=is_absent)] = None
    """The longest time that a call of one of its tasks may take, if tasks have limits of their own."""
    tools: Annotated[tuple[Tool, ...], Field(exclude_if=is_absent)] = ()
    """The environment's actions as tools."""
    images: Annotated[Literal["beside", "only"] | None, Field(exclude_if=is_absent)] = None
    """Whether its observations show images: `"beside"` texts that say the same, or as the `"only"` thing that says
    it."""
    models: Annotated[tuple[ModelRole, ...], Field(exclude_if=is_absent)] = ()
    """The models that the environment itself asks. The server's operator configures who answers; callers see none of
    it."""
    seats: Annotated[tuple[SeatName, ...], Field(max_length=MAX_SEATS, exclude_if=is_absent)] = ()
    """Its players, if it is a game that several share."""


_ONE_SELECTOR: Final[JsonDict] = {
    "oneOf": [
        {"required": [given], "properties": {given: {"type": kind}, other: {"type": "null"}}}
        for given, kind, other in (("task_id", "string", "task_index"), ("task_index", "integer", "task_id"))
    ]
}


class OpenSession(WireModel):
    """The task to play, by its own id or by its place in a split."""

    model_config = ConfigDict(json_schema_extra=_ONE_SELECTOR)

    env: EnvironmentName
    split: Split = "train"
    level: Annotated[str, Field(max_length=64)] | None = None
    task_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    task_index: Annotated[int, Field(ge=0, lt=2**63), NUMBER] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63), NUMBER] = 0
    lease_s: Annotated[float, Field(gt=0, le=86_400), NUMBER] | None = None
    wait_s: Annotated[float, Field(ge=0, le=3600), NUMBER] | None = None
    """How long a gateway may let the caller wait for a slot, at most its own limit. Env servers never let it wait."""
    recoveries: Annotated[int, Field(ge=0, lt=2**31), NUMBER] | None = None
    """How often the session was lost and replayed. A gateway sets it, whatever was sent; `info` reports it."""
    state_keys: Annotated[bool, Strict()] | None = None
    """Report the key of the state with every answer, if the environment has keys; they cost time at each step."""
    owner: Annotated[str, Field(max_length=64)] | None = None
    """The owner that the session counts for in `ServerLoad`. The gateway sets it to the caller's tenant, whatever was
    sent."""
    record_replies: Annotated[bool, Strict()] | None = None
    """Send the replies of models to the environment along with the stream's answers, so that a replay can repeat them.
    A gateway sets it, whatever was sent, and passes the replies on to nobody."""

    @model_validator(mode="after")
    def one_selector(self) -> Self:
        """Require exactly one of `task_id` and `task_index`."""
        if (self.task_id is None) == (self.task_index is None):
            raise ValueError("give exactly one of task_id and task_index")
        return self


StateKey = Annotated[str | None, Field(max_length=64, exclude_if=is_absent)]
"""A key that is equal for equal states of one task, whatever led there and however many turns it took: for search, and
for groups by anchor state. Absent unless the session was opened with `state_keys` and the environment has a key for
this state."""


MAX_SEALED_CHARS: Final = 131_072
Sealed = Annotated[str | None, Field(max_length=MAX_SEALED_CHARS, pattern=r"^[A-Za-z0-9_=-]+$", exclude_if=is_absent)]
"""The environment's data for the reward service alone, such as a gold answer, sealed for that service's key: carry it
unread. Absent if there is no such data, or if the env server was given no key to seal it with."""


class Seat(WireModel):
    """What one player of a game sees, and its rewards and score so far."""

    observation: str
    reward: float = 0.0
    """The sum of all its rewards so far; a player may also gain or lose by the moves of others."""
    score: float = 0.0
    """Its success so far in [0, 1]; 1 means won."""


class Game(WireModel):
    """The state of a game that several players share.

    The session in which a game was opened sees every seat, and its next step is the action of the seat that is to move:
    it is for a caller that plays all seats. `POST /v1/sessions/{id}/seats` of a gateway gives each player a session id
    of its own, which sees and plays that seat alone.
    """

    to_move: SeatName | None
    """The seat whose action is the next step; None when the game is over."""
    moved: SeatName | None = None
    """The seat whose action the last step was."""
    seats: dict[SeatName, Seat]


SharedGame = Annotated[Game | None, Field(exclude_if=is_absent)]
"""The state of the game; absent if the environment has no seats."""


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
    """The session is closed if it is not touched for this long."""
    expires_in_s: float
    terminated: bool = False
    truncated: bool = False
    score: float = 0.0
    info: dict[str, JsonValue] = Field(default_factory=dict)
    """The `info` of the last step's result; before the first step, the environment's info on the first observation."""
    state_key: StateKey = None
    sealed: Sealed = None
    parts: Parts = ()
    """The observation in full, if it is more than text."""
    game: SharedGame = None


class Step(WireModel):
    """One action. `index` counts from 0 and makes a repeat safe: the same index with another action is refused."""

    index: Annotated[int, Field(ge=0, lt=2**63), NUMBER]
    action: str


class StepResult(WireModel):
    """The result of a step. A repeat of the last step gets the stored result again."""

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
    """Diagnostics. Never holds a gold answer. `recovered` is the number of times that the session was replayed so far
    because its process died; it is absent if that never happened."""
    state_key: StateKey = None
    sealed: Sealed = None
    parts: Parts = ()
    """The observation in full, if it is more than text."""
    game: SharedGame = None


class SessionStep(Step):
    """One item of `POST /v1/steps`."""

    session_id: SessionId


class AtIndex(WireModel):
    """What the caller knows about the session, for calls that take no step.

    An `index` other than the session's is refused as `step-out-of-order`, and a session whose process died is replayed
    only if all of these steps are known.
    """

    index: Annotated[int, Field(ge=0, lt=2**63), NUMBER] | None = None
    """The number of steps taken."""


class Fork(AtIndex):
    """A fork: how many children to make."""

    count: Annotated[int, Field(ge=1, le=64), NUMBER] = 1


class RenewLease(WireModel):
    """Extend a session's life; without `lease_s` by the lease that it had last."""

    lease_s: Annotated[float, Field(gt=0, le=86_400), NUMBER] | None = None


class ServerLoad(WireModel):
    """`GET /v1/load` of an env server: the figures by which its gateways decide."""

    max_sessions: int
    """Slots for sessions. A session takes as many as its environment's `slots`, usually one."""
    draining: bool = False
    """The server is shutting down: it opens no more sessions and ends when those it has are closed."""
    sessions: dict[EnvironmentName, dict[str, int]] = Field(default_factory=dict)
    """Open sessions by environment and owner; the owner of a session that was opened without one is ``""``."""


class ExpertMove(WireModel):
    """The next move of the environment's expert. By default served on the train split alone."""

    thought: str
    action: str


class ToolCall(WireModel):
    """A call of one of the environment's tools, as a model makes it."""

    name: Annotated[str, Field(max_length=64)]
    arguments: dict[str, JsonValue] = Field(default_factory=dict)


class ToolAction(WireModel):
    """The action that a tool call spells, to be sent as a step.

    A call is not a step itself. An action stays one text: a repeated step is compared by it, journals and replays hold
    it, and a trajectory records it.
    """

    action: str


class AdmissibleActions(WireModel):
    """The actions that are possible now. Actions with free text, such as a search, are not listed."""

    actions: list[str]
    complete: bool = True
    """False if there are more than one answer holds, or one that is too long for an action."""


class Irreversibility(WireModel):
    """Whether a step that is taken now could not be taken back."""

    irreversible: bool


class Ticket(WireModel):
    """Opens one socket, once: `/v1/stream?ticket=...`. For browsers, whose sockets carry no header."""

    ticket: str
    expires_in_s: float
