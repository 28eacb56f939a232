"""One record of an episode: what was seen, sampled, done and gained."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, JsonValue, StrictBool, StrictFloat

from gymfleet_contracts._model import WireModel
from gymfleet_contracts.numbers import Integer
from gymfleet_contracts.session import TaskRef

Strategy = Literal["policy", "expert"]
Purpose = Literal["train", "eval", "demonstration"]


class Status(StrEnum):
    """How an episode ended. Only the first two are ever trained on or scored."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ENV_ERROR = "env_error"
    POLICY_ERROR = "policy_error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"

    @property
    def trainable(self) -> bool:
        """Whether the episode says something about the policy rather than about the machinery."""
        return self in (Status.COMPLETED, Status.TRUNCATED)


class FinishReason(StrEnum):
    """Why the last turn was the last."""

    TERMINATED = "terminated"
    ENV_TURN_LIMIT = "env_turn_limit"
    MAX_TURNS = "max_turns"
    CONTEXT_LENGTH = "context_length"
    EXPERT_STUCK = "expert_stuck"
    ERROR = "error"


class PolicyRef(WireModel):
    """Which weights wrote the episode; the two differ when a publish fell into it."""

    model: str
    version_min: Integer
    version_max: Integer


class Turn(WireModel):
    """One exchange. The episode's tokens are all turns' prompt and response ids, in order."""

    observation: str
    prompt_token_ids: tuple[Integer, ...]
    """Only what is new since the last response: template, observation, generation prompt."""
    response_token_ids: tuple[Integer, ...]
    response_logprobs: tuple[StrictFloat, ...] | None
    """As the engine gave them, after temperature and top-p; None when an expert wrote the turn."""
    policy_version_min: Integer
    policy_version_max: Integer
    text: str
    thought: str
    action: str | None
    format_valid: StrictBool
    """The reply follows the grammar to the letter."""
    action_valid: StrictBool
    """The environment understood the action."""
    reward: StrictFloat = 0.0
    terminated: StrictBool = False
    truncated: StrictBool = False
    info: dict[str, JsonValue] = Field(default_factory=dict)
    generate_s: StrictFloat = 0.0
    environment_s: StrictFloat = 0.0


class Trajectory(WireModel):
    """An episode. `trajectory_id` is `run/group/sample` and the key to idempotence."""

    trajectory_id: str
    run_id: str
    group_id: str
    sample: Integer
    attempt: Integer = 1
    task: TaskRef
    policy: PolicyRef
    strategy: Strategy = "policy"
    purpose: Purpose = "train"
    grammar: str
    grammar_version: Integer
    turns: tuple[Turn, ...]
    final_observation: str = ""
    """What the environment showed after the last action."""
    status: Status
    score: StrictFloat = 0.0
    """The environment's own, in [0, 1]."""
    success: StrictBool = False
    finish_reason: FinishReason
    error: str | None = None
    parent: str | None = None
    started_at: StrictFloat = 0.0
    """Unix seconds."""
    duration_s: StrictFloat = 0.0

    @property
    def num_response_tokens(self) -> int:
        """Tokens that the policy wrote."""
        return sum(len(turn.response_token_ids) for turn in self.turns)


class RewardComponent(WireModel):
    """One term of the total: `value = weight * raw`."""

    raw: StrictFloat
    weight: StrictFloat
    value: StrictFloat
    error: str | None = None
    """Why the component could not be computed; it then counts 0 and is reported."""


class Reward(WireModel):
    """The total, its breakdown and its share for each sampled token."""

    total: StrictFloat
    components: dict[str, RewardComponent]
    allocation: str
    token_rewards: tuple[tuple[StrictFloat, ...], ...]
    """One tuple per turn, aligned with `response_token_ids`."""
    scorers: dict[str, str]
    """Component name to the version of the code that computed it."""


class ScoredTrajectory(WireModel):
    """A trajectory and its reward; no reward when the machinery failed."""

    trajectory: Trajectory
    reward: Reward | None


TrajectoryId = Annotated[str, Field(pattern=r"^[^/\s]+/[^/\s]+/\d+$")]


def trajectory_id(run_id: str, group_id: str, sample: int) -> str:
    """The deterministic id of one sample of a group."""
    return f"{run_id}/{group_id}/{sample}"
