"""What the trainer asks of the rollout service: groups of episodes, and new weights."""

from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import Field, JsonValue, StrictBool, model_validator

from gymfleet_contracts._model import WireModel, is_absent
from gymfleet_contracts.numbers import NUMBER, Integer
from gymfleet_contracts.reply_format import FormatSection
from gymfleet_contracts.reward import EvaluatorSpec, RewardSpec
from gymfleet_contracts.session import OpenSession
from gymfleet_contracts.trajectory import AGENT, MAX_GROUP_SIZE, Purpose, RoleName, StrategyName
from gymfleet_contracts.weights import WeightsBroadcast, WeightsOnGpu


class Sampling(WireModel):
    """How tokens are drawn. Temperature 0 is greedy."""

    temperature: Annotated[float, Field(ge=0, le=10), NUMBER] = 1.0
    """0 is greedy, which cannot be trained on: where it is reinforced at least 0.01."""
    spread: Annotated[float, Field(ge=0, lt=1), NUMBER] = 0.0
    """The samples of a group are drawn at temperatures from `1 - spread` to `1 + spread` times this one, evenly, where
    its strategy plays each by itself; 0 is off."""
    top_p: Annotated[float, Field(gt=0, le=1), NUMBER] = 1.0
    """Nucleus sampling; 1 is off."""
    top_k: Annotated[int, Field(ge=-1), NUMBER] = -1
    """-1 is off."""
    seed: Integer | None = None
    """With a seed, the engine draws the same tokens from the same logits."""

    @property
    def lowest(self) -> float:
        """Return the lowest temperature of a group's samples."""
        return self.temperature * (1 - self.spread)


class EpisodeLimits(WireModel):
    """Where an episode is cut, and when the machinery is declared broken."""

    max_turns: Annotated[int, Field(ge=1), NUMBER] = 30
    """Turns of an episode; the environment's own limit holds too."""
    max_response_tokens: Annotated[int, Field(ge=1), NUMBER] = 256
    """Tokens of one reply. A reply that is cut off is no action, unless its format shows that the action stands
    whole."""
    max_context_tokens: Annotated[int, Field(ge=2), NUMBER] = 4096
    """Prompt and replies of the whole episode, or of each of its sequences where a strategy replaces the context; at
    most `inference.max_model_len`."""
    step_timeout_s: Annotated[float, Field(gt=0), NUMBER] = 30.0
    """For one step of the environment."""
    generate_timeout_s: Annotated[float, Field(gt=0), NUMBER] = 120.0
    """For one reply. Stands still while new weights are loaded."""
    episode_timeout_s: Annotated[float, Field(gt=0), NUMBER] = 600.0
    """For the whole episode; where a strategy plays the episodes of a group together, for all of them. Stands still
    while new weights are loaded."""
    max_attempts: Annotated[int, Field(ge=1, le=10), NUMBER] = 3
    """How many times an episode is played at most, the first time included, while it fails for technical reasons; where a
    strategy plays the episodes of a group together, how many times the group is."""


class Budget(WireModel):
    """What the episodes of a group may use together, every attempt counted; without a number there is no limit.

    What is left unplayed because a budget is spent ends as `truncated` with the finish reason `budget`.
    """

    env_steps: Annotated[int, Field(ge=0), NUMBER] | None = None
    """Actions that the environment executes."""
    model_calls: Annotated[int, Field(ge=0), NUMBER] | None = None
    """Replies that the policy is asked for."""
    tokens: Annotated[int, Field(ge=0), NUMBER] | None = None
    """Tokens that the policy samples."""
    evaluations: Annotated[int, Field(ge=0), NUMBER] | None = None
    """Nodes of which the reward service is asked for the value."""
    seconds: Annotated[float, Field(gt=0), NUMBER] | None = None
    """Time since the group was begun. A call under way stands still while new weights are loaded."""

    @property
    def limits_anything(self) -> bool:
        """Whether there is a limit."""
        return any(value is not None for _, value in self)


MAX_MOVES: Final = 1000


class Move(WireModel):
    """A reply that somebody wrote, before it is put into a format."""

    thought: Annotated[str, Field(max_length=100_000)] = ""
    """What it says before it acts."""
    action: Annotated[str, Field(min_length=1, max_length=100_000, pattern=r"\S")]
    """What it does."""
    role: RoleName = Field(default=AGENT, exclude_if=lambda role: role == AGENT)
    """Under which the turn is recorded: a stage that trains on the tokens of some roles can leave others out."""


class StrategySpec(WireModel):
    """How a group is played: a strategy and its options, which the rollout service checks."""

    use: StrategyName = "independent"
    options: dict[str, JsonValue] = Field(default_factory=dict)


class MessageRoles(WireModel):
    """The roles of the chat template under which prompts are put."""

    instructions: Literal["user", "system"] = "user"
    """`"user"`: the instructions of environment and reply format stand above the first observation, in one message.
    `"system"`: in a message of their own, before it."""
    observations: Literal["user", "tool"] = "user"
    """Of what answers a reply; the first observation, which answers none, is the user's."""


class TemplateOptions(WireModel):
    """How the model's chat template is used."""

    thinking: Literal["template", "on", "off"] = "template"
    """Whether the model thinks before it replies, by a switch of the template's own; `"template"`: as that has it."""
    context: Literal["continued", "replaced"] = "continued"
    """`"continued"`: what was sampled stays in the context as it was sampled. `"replaced"`: each prompt is what the
    template makes of the whole conversation; where that leaves out earlier thoughts, say, an episode becomes several
    token sequences, each of which is learned from."""
    reasoning: Literal["kept", "dropped"] = "kept"
    """Whether the template is shown what was thought before earlier replies; `"dropped"` wants `context =
    "replaced"`."""
    max_reasoning_tokens: Annotated[int, Field(ge=1), NUMBER] | None = None
    """A reply that thinks for more tokens than these is cut off, and has no action; without a number only
    `limits.max_response_tokens` holds."""
    switches: Annotated[dict[str, JsonValue], Field(max_length=32)] = Field(default_factory=dict)
    """More variables of the template's own, such as `{ reasoning_effort = "low" }`."""

    @model_validator(mode="after")
    def dropping_replaces(self) -> Self:
        """What was sampled cannot be dropped from a context that only grows."""
        if self.reasoning == "dropped" and self.context != "replaced":
            raise ValueError('reasoning = "dropped" changes the context: give context = "replaced" with it')
        return self


class ActionSpace(WireModel):
    """What the policy is shown of the actions that are possible, where an environment lists them."""

    shown: StrictBool = False
    """Every observation ends with the list; demonstrations and measurements have it too."""
    most: Annotated[int, Field(ge=1, le=1000), NUMBER] = 100
    """So many actions of a longer list."""


ImagesAs = Literal["text", "seen"]
"""What the policy is shown of images: marks in a text, or the images."""


class GroupRequest(WireModel):
    """One task, `num_samples` episodes. The id is fixed before the rollout: `run/group`.

    A strategy that plays them together may make fewer or more of them, and its trajectories say how many.

    With `samples` it asks for these of the group alone, which came to nothing or were lost; `replay` is higher
    than it was when they were asked for before, and stands in their trajectories.
    """

    run_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
    group_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
    task: OpenSession
    num_samples: Annotated[int, Field(ge=1, le=MAX_GROUP_SIZE), NUMBER]
    samples: tuple[Annotated[int, Field(ge=0), NUMBER], ...] | None = None
    replay: Annotated[int, Field(ge=0), NUMBER] = 0
    purpose: Purpose = "train"
    strategy: StrategySpec = StrategySpec()
    format: FormatSection = FormatSection()
    roles: MessageRoles = MessageRoles()
    template: TemplateOptions = TemplateOptions()
    images: Annotated[ImagesAs, Field(exclude_if=lambda value: value == "text")] = "text"
    """What the policy is shown of images: the marks that stand for them in the text, or the images themselves."""
    actions: ActionSpace = ActionSpace()
    hint_probability: Annotated[float, Field(ge=0, le=1), NUMBER] = 0.0
    """How likely an observation ends with the expert's move; drawn once for all episodes of the group."""
    sampling: Sampling = Sampling()
    limits: EpisodeLimits = EpisodeLimits()
    budget: Budget = Budget()
    reward: RewardSpec = RewardSpec()
    evaluator: EvaluatorSpec | None = None
    """How the reward service values the nodes of a strategy that evaluates."""
    rejected: StrictBool = False
    """Hand in what the strategy tried and did not hand in too, as far as it came, behind the others."""

    @model_validator(mode="after")
    def samples_are_of_the_group(self) -> Self:
        """Each of `samples` is one of the `num_samples`."""
        if self.samples is not None and any(sample >= self.num_samples for sample in self.samples):
            raise ValueError(f"samples must be below num_samples ({self.num_samples})")
        return self

    @property
    def wanted(self) -> tuple[int, ...]:
        """The samples that are to be played."""
        return tuple(range(self.num_samples)) if self.samples is None else self.samples

    def temperature_of(self, sample: int | None) -> float:
        """Return the temperature of a sample; with None that of samples which are played together."""
        sampling = self.sampling
        if sample is None or self.num_samples < 2:
            return sampling.temperature
        return sampling.temperature * (1 + sampling.spread * (2 * sample / (self.num_samples - 1) - 1))

    @property
    def again(self) -> str:
        """What tells this request from those that asked for others of the group's samples, or for the same before.

        Empty for the first one. Each sample is asked for once with each `replay`.
        """
        return f"{self.replay}.{min(self.wanted)}" if self.replay else ""


class JobState(StrEnum):
    """The life of a job submitted over HTTP."""

    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class SubmitJob(WireModel):
    """`POST /v1/jobs`: groups to play outside the stream."""

    groups: Annotated[tuple[GroupRequest, ...], Field(min_length=1, max_length=4096)]
    publish: StrictBool = False
    """Also put the trajectories on the raw stream."""


class Job(WireModel):
    """Progress of a job."""

    job_id: str
    state: JobState
    num_episodes: int
    num_finished: int
    status_counts: dict[str, int] = Field(default_factory=dict)
    error: str | None = None


class StageVersion(WireModel):
    """`POST /v1/policy/versions`: load weights everywhere and answer the probe with them.

    Nothing else is generated until the version is committed or refused; without
    either within `decision_timeout_s` the last live version comes back.
    """

    version: Annotated[int, Field(ge=0), NUMBER]
    weights_path: str
    """A directory with Hugging Face safetensors that the service can read; with `broadcast` it need not."""
    broadcast: WeightsBroadcast | None = None
    """How the service gets the weights, if the trainer sends them."""
    on_gpu: Annotated[WeightsOnGpu | None, Field(exclude_if=is_absent)] = None
    """Where its engines find the bytes of `weights_path` on the GPU that they share with the trainer."""
    probe_prompts: Annotated[
        tuple[Annotated[tuple[Integer, ...], Field(min_length=1)], ...], Field(min_length=1, max_length=256)
    ]
    probe_max_tokens: Annotated[int, Field(ge=1, le=256), NUMBER] = 8
    decision_timeout_s: Annotated[float, Field(gt=0), NUMBER] = 60.0


class ProbeSample(WireModel):
    """What one engine sampled (temperature 1) for one probe prompt, with its log-probabilities."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class EngineProbe(WireModel):
    """An engine's answers, in the order of the probe's prompts."""

    engine: str
    samples: tuple[ProbeSample, ...]


class StagedVersion(WireModel):
    """Staged, not live: the trainer compares and then commits or refuses."""

    version: int
    engines: tuple[EngineProbe, ...]
    pause_s: float
    update_s: float


class SleepRequest(WireModel):
    """`POST /v1/policy/sleep`: free the engines' memory until `POST /v1/policy/wake`, or until a version is staged.

    Asked again it renews the lease. Without that the engines wake by themselves, with the live version.
    """

    lease_s: Annotated[float, Field(gt=0, le=3600), NUMBER] = 60.0


class Policy(WireModel):
    """`GET /v1/policy`."""

    model: str
    live_version: int
    staged_version: int | None
    backend: str
    dtype: str
    num_engines: int
    max_lora_rank: int = 0
    """The highest rank of the adapters that versions are; 0 where versions are whole weights."""
    tokens_generated: int
    """In replies that have ended."""
    tokens_sampled: int = 0
    """Grows with every token that an engine samples for a reply, long before that ends: the sign that it lives."""
    sees_images: bool = False
    """The policy can be shown images: the model sees them, and the engines take them."""
    sleep_mode: bool = False
    """The engines were started so that they can sleep."""
    asleep: bool = False
    """The engines' memory is free for the trainer, and requests wait."""


class LivePolicy(WireModel):
    """What the trainer says of its run in Redis."""

    run_id: str
    version: int
