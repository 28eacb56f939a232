"""One record of an episode: what was seen, sampled, done and gained."""

from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, JsonValue, StrictBool, model_validator

from gymfleet_contracts._model import WireModel, is_absent
from gymfleet_contracts.numbers import NUMBER, NUMBERS, Integer
from gymfleet_contracts.observation import ImageFile, Parts, Sha256
from gymfleet_contracts.session import Sealed, SeatName, StateKey, TaskRef

Purpose = Literal["train", "eval", "demonstration", "collect"]

EXPERT: Final = "expert"
"""The `model` of episodes that an environment's expert wrote: their replies were not sampled."""

MAX_GROUP_SIZE: Final = 1024
MAX_SEEN_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of all images that an episode's prompts show, each counted once."""

_LOGPROB_EPSILON: Final = 1e-3
"""How far above 0 rounding may put the log-probability of a token whose probability is 1."""

StrategyName = Annotated[str, Field(min_length=1, max_length=256)]
TokenIds = Annotated[tuple[Annotated[int, Field(ge=0)], ...], NUMBERS]
PolicyVersion = Annotated[int, Field(ge=0), NUMBER]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Logprob = Annotated[float, Field(strict=True, allow_inf_nan=False, le=_LOGPROB_EPSILON)]


AGENT: Final = "agent"
"""The role of a reply if its strategy names no other."""
RoleName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]

TurnContext = Literal["continued", "replaced"]

NodeId = Annotated[str, Field(min_length=1, max_length=256)]


def _absent_without(default: Any) -> Any:
    """Return a field that is left out of a record if it has its default value."""
    return Field(default, exclude_if=lambda value: value == default)


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
    BUDGET = "budget"
    """The group's budget was spent."""
    STOPPED = "stopped"
    """The strategy went no further."""
    LEFT = "left"
    """Another player of the game could not go on."""
    ERROR = "error"

    @property
    def cut_by_recipe(self) -> bool:
        """Whether the recipe ended the episode: the environment would have gone on."""
        return self in (
            FinishReason.MAX_TURNS, FinishReason.CONTEXT_LENGTH, FinishReason.BUDGET, FinishReason.STOPPED,
            FinishReason.LEFT,
        )  # fmt: skip


class ReplyEnd(StrEnum):
    """Why a reply ended."""

    STOP = "stop"
    """The policy ended it."""
    LENGTH = "length"
    """It was cut by `max_response_tokens` or by the context: it may end in half an action."""


class PolicyRef(WireModel):
    """The weights that wrote the episode; the two versions differ if a new version was published meanwhile."""

    model: str
    version_min: PolicyVersion
    version_max: PolicyVersion

    @model_validator(mode="after")
    def versions_are_ordered(self) -> Self:
        """Require `version_min <= version_max`."""
        if self.version_min > self.version_max:
            raise ValueError(f"version_min is {self.version_min}, above version_max, {self.version_max}")
        return self

    def spans(self, version: int) -> bool:
        """Whether a version lies between the two."""
        return self.version_min <= version <= self.version_max


class VersionSpan(WireModel):
    """Consecutive tokens that one version of the policy sampled."""

    version: PolicyVersion
    num_tokens: Annotated[int, Field(ge=1), NUMBER]


def sampled_by(version: int, num_tokens: int) -> tuple[VersionSpan, ...]:
    """Return the spans of a reply that a single version sampled."""
    return (VersionSpan(version=version, num_tokens=num_tokens),) if num_tokens else ()


class StateValue(WireModel):
    """The value of a state: the mean total reward of the episodes that the policy played on from it."""

    mean: Finite
    samples: Annotated[int, Field(ge=1), NUMBER]
    """Number of these episodes."""


class PromptImage(WireModel):
    """Where a prompt shows an image: a run of the model's image token."""

    sha256: Sha256
    start: Annotated[int, Field(ge=0), NUMBER]
    """The position of its first token in the turn's `prompt_token_ids`."""
    num_tokens: Annotated[int, Field(ge=1), NUMBER]

    @property
    def end(self) -> int:
        """Return where its tokens end, exclusive."""
        return self.start + self.num_tokens


class Turn(WireModel):
    """One exchange. A sequence's tokens are its turns' prompt and response ids, in order."""

    observation: str
    parts: Parts = ()
    """The observation in full, if it is more than text. The prompt has the text, and the images of `prompt_images`."""
    role: RoleName = _absent_without(AGENT)
    """The role in which the policy was asked, such as `planner`: stages may train on the tokens of some roles alone."""
    context: TurnContext = _absent_without("continued")
    """`"replaced"`: the prompt begins a new sequence, and the policy did not see the tokens of the turns before it."""
    prompt_token_ids: TokenIds
    """Only the tokens that are new since the last response: template, observation, generation prompt. If the context
    was replaced, the whole prompt."""
    prompt_images: Annotated[tuple[PromptImage, ...], Field(exclude_if=is_absent)] = ()
    """The images that the prompt shows, where the policy sees them, in order; the trajectory has the files."""
    response_token_ids: TokenIds
    response_logprobs: tuple[Logprob, ...] | None
    """Log-probabilities as the engine gave them, after temperature and top-p; None if an expert wrote the turn."""
    policy_versions: tuple[VersionSpan, ...] = _absent_without(())
    """Which version sampled which response tokens, in order; empty if an expert wrote the turn. There are several if
    new weights went live while the reply was sampled."""
    text: str
    reply_end: ReplyEnd = ReplyEnd.STOP
    thought: str
    notes: dict[str, str] = _absent_without({})
    """The other parts of the reply, by the names of its format: a plan, a prediction."""
    num_reasoning_tokens: Annotated[int, Field(ge=0), NUMBER] = _absent_without(0)
    """Number of response tokens in which the model thought, if its chat template has a place for thoughts."""
    num_prefilled_tokens: Annotated[int, Field(ge=0), NUMBER] = _absent_without(0)
    """Tokens before the response that the engine computed for it; the others were in its prefix cache."""
    action: str | None
    """What the reply asks the environment to do; None if it asks for nothing. A turn without an action is not an
    environment step."""
    format_valid: StrictBool
    """The reply follows the format to the letter."""
    action_valid: StrictBool
    """The environment understood the action."""
    reward: Finite = 0.0
    terminated: StrictBool = False
    truncated: StrictBool = False
    info: dict[str, JsonValue] = Field(default_factory=dict)
    sealed: Sealed = None
    """Sealed data for the reward service alone, from the step's result."""
    generate_s: Finite = 0.0
    environment_s: Finite = 0.0
    node: NodeId | None = _absent_without(None)
    """If a strategy branched: the node of the group's tree that the turn leads to. Trajectories share the turns whose
    nodes they share."""
    parent: NodeId | None = _absent_without(None)
    """The node from which the turn leads on."""
    state_key: StateKey = None
    """The environment's key of the state in which the turn was played, if the trainer asked for keys."""
    value: StateValue | None = _absent_without(None)
    """The value of the state in which the turn was played, if the strategy played on from it several times."""
    node_value: Finite | None = _absent_without(None)
    """The value of the node that the turn leads to in a search: the reward service's number, or the strategy's own."""

    @model_validator(mode="after")
    def parts_fit_together(self) -> Self:
        """Require that the parts of the turn fit together.

        There is one log-probability and one version per sampled token, versions ascend from span to span, and images
        follow one another within the prompt.
        """
        end = 0
        for image in self.prompt_images:
            if image.start < end or image.end > len(self.prompt_token_ids):
                raise ValueError(
                    f"prompt_images: they must follow one another within {len(self.prompt_token_ids)} tokens"
                )
            end = image.end
        num_tokens = len(self.response_token_ids)
        num_sampled = num_tokens if self.response_logprobs is not None else 0
        if self.response_logprobs is not None and len(self.response_logprobs) != num_tokens:
            raise ValueError(f"{num_tokens} response tokens have {len(self.response_logprobs)} log-probabilities")
        spans = self.policy_versions
        if len(spans) == 1 and spans[0].num_tokens == num_sampled:  # nearly every turn
            return self
        if (given := sum(span.num_tokens for span in spans)) != num_sampled:
            raise ValueError(f"{num_sampled} sampled tokens have policy_versions for {given}")
        versions = [span.version for span in spans]
        if any(later <= earlier for earlier, later in pairwise(versions)):
            raise ValueError(f"policy_versions must ascend from span to span, not {_shown(versions)}")
        return self


class Trajectory(WireModel):
    """An episode. `trajectory_id` is `run/group/sample` and the key for idempotence."""

    trajectory_id: str
    run_id: str
    group_id: str
    sample: Annotated[int, Field(ge=0), NUMBER]
    attempt: Integer = 1
    replay: Annotated[int, Field(ge=0), NUMBER] = 0
    """The `replay` of the request that it answers: 0 unless the trainer asked for this sample again."""
    task: TaskRef
    sealed: Sealed = None
    """Sealed data for the reward service alone, from the beginning of the session."""
    policy: PolicyRef
    strategy: StrategyName = "independent"
    """The strategy that played it, by the reference in the request."""
    seat: SeatName | None = _absent_without(None)
    """The player of a game whose episode it is."""
    group_size: Annotated[int, Field(ge=1, le=MAX_GROUP_SIZE), NUMBER] | None = _absent_without(None)
    """Number of episodes in the group, if a strategy that plays them together decided it; otherwise the group has as
    many as were asked for."""
    selected: StrictBool = _absent_without(False)
    """A search chose it for how well it ended: it is not a sample of the policy, and no policy gradient learns from
    it."""
    rejected: StrictBool = _absent_without(False)
    """A search tried it and chose others; it was returned because the request asked for it. It is not a sample of the
    policy either, and it is not imitated: it is there for comparison."""
    purpose: Purpose = "train"
    temperature: Annotated[Finite, Field(ge=0)] | None = _absent_without(None)
    """The temperature at which its tokens were sampled; None if an expert wrote them, and in records that do not give
    it."""
    format: str
    """The name of the reply format."""
    format_version: Integer
    turns: tuple[Turn, ...]
    final_observation: str = ""
    """What the environment showed after the last action."""
    final_parts: Parts = ()
    """`final_observation` in full, if it is more than text."""
    final_prompt_token_ids: TokenIds = ()
    """The tokens of `final_observation` as the next prompt would have held them, after the last sequence, if the recipe
    cut the episode: a critic values the state from which the policy was not allowed to continue."""
    images: Annotated[tuple[ImageFile, ...], Field(exclude_if=is_absent)] = ()
    """The files of the images that its prompts show, each once."""
    status: Status
    score: Finite = 0.0
    """The environment's score, in [0, 1]."""
    success: StrictBool = False
    finish_reason: FinishReason
    error: str | None = None
    started_at: Finite = 0.0
    """Unix seconds."""
    duration_s: Finite = 0.0

    @model_validator(mode="after")
    def parts_fit_together(self) -> Self:
        """Require that the parts of the trajectory fit together.

        The id names run, group and sample, and the sample is one of the group's. The policy's versions span those of
        the turns, and the policy's replies have log-probabilities.
        """
        if self.trajectory_id != (expected := trajectory_id(self.run_id, self.group_id, self.sample)):
            raise ValueError(f"trajectory_id is {self.trajectory_id!r}, its parts make {expected!r}")
        if self.group_size is not None and self.sample >= self.group_size:
            raise ValueError(f"sample {self.sample} is none of {self.group_size}")
        if self.selected and self.rejected:
            raise ValueError("what a search selected it did not reject")
        if self.turns and self.turns[0].context == "replaced":
            raise ValueError("turns.0: there is no context before the first turn that it could replace")
        self._require_files()
        if self.by_expert:
            return self
        for place, turn in enumerate(self.turns):
            if turn.response_logprobs is None:
                raise ValueError(f"turns.{place}: the policy's replies have log-probabilities")
            if any(not self.policy.spans(span.version) for span in turn.policy_versions):
                raise ValueError(f"turns.{place}: its policy versions are outside the trajectory's")
        return self

    def _require_files(self) -> None:
        """Raise ValueError unless there is a file for each image that prompts show, and no other."""
        shown = {image.sha256 for turn in self.turns for image in turn.prompt_images}
        if not shown and not self.images:
            return
        files = [image.sha256 for image in self.images]
        if sorted(files) != sorted(shown):
            raise ValueError(f"images: there are {len(files)} files for the {len(shown)} images that prompts show")
        if (size_bytes := sum(len(image.data) for image in self.images)) > MAX_SEEN_BYTES:
            raise ValueError(f"images: they have {size_bytes} bytes, and at most {MAX_SEEN_BYTES} are kept")

    @property
    def by_expert(self) -> bool:
        """Whether an environment's expert wrote the replies, which then have no log-probabilities."""
        return self.policy.model == EXPERT

    def sequences(self) -> list[tuple[Turn, ...]]:
        """Return the turns of each token sequence that the policy was sampled from, in order.

        There is one sequence, or more if a turn replaced the context.
        """
        starts = [place for place, turn in enumerate(self.turns) if place == 0 or turn.context == "replaced"]
        return [self.turns[start:end] for start, end in pairwise([*starts, len(self.turns)])]

    @property
    def num_response_tokens(self) -> int:
        """Tokens that the policy wrote."""
        return sum(len(turn.response_token_ids) for turn in self.turns)


class RewardComponent(WireModel):
    """One term of the total: `value = weight * raw`."""

    raw: Finite
    weight: Finite
    value: Finite
    error: str | None = None
    """Why the component could not be computed, if its options say that it then counts 0."""


class Reward(WireModel):
    """The total, its breakdown and its share for each sampled token."""

    total: Finite
    components: dict[str, RewardComponent]
    allocation: str
    token_rewards: tuple[tuple[Finite, ...], ...]
    """One tuple per turn, aligned with `response_token_ids`."""
    scorers: dict[str, str]
    """Component name to the version of the code that computed it."""


class ScoredTrajectory(WireModel):
    """A trajectory and its reward; no reward when the machinery failed."""

    trajectory: Trajectory
    reward: Reward | None
    reward_error: str | None = None
    """Why an episode that was played to its end has no reward: which component failed, and how."""

    @model_validator(mode="after")
    def reward_fits_the_trajectory(self) -> Self:
        """Require a reward for each token, and none for an episode that says nothing about the policy."""
        if self.reward is None:
            return self
        if not self.trajectory.status.trainable:
            raise ValueError(f"an episode with status {self.trajectory.status.value} has no reward")
        if self.reward_error is not None:
            raise ValueError("there is a reward and an error that prevented it")
        lengths = [len(turn.response_token_ids) for turn in self.trajectory.turns]
        given = [len(tokens) for tokens in self.reward.token_rewards]
        if given != lengths:
            raise ValueError(f"turns of {_shown(lengths)} response tokens have {_shown(given)} token rewards")
        return self


def _shown(numbers: list[int]) -> str:
    """Return enough of a list of numbers to see what is wrong with it."""
    return str(numbers) if len(numbers) <= 16 else f"{numbers[:16]} and {len(numbers) - 16} more"


TrajectoryId = Annotated[str, Field(pattern=r"^[^/\s]+/[^/\s]+/\d+$")]


def trajectory_id(run_id: str, group_id: str, sample: int) -> str:
    """Return the deterministic id of one sample of a group."""
    return f"{run_id}/{group_id}/{sample}"
