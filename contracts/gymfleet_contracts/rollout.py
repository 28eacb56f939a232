"""What the trainer requests from the rollout service: groups of episodes, and new weights."""

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
    """0 is greedy, which cannot be trained on: a policy that is reinforced needs at least 0.01."""
    spread: Annotated[float, Field(ge=0, lt=1), NUMBER] = 0.0
    """The samples of a group are drawn at temperatures spread evenly from `1 - spread` to `1 + spread` times
    `temperature`, if its strategy plays each by itself; 0 is off."""
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
    """When an episode is cut off, and when the machinery counts as broken."""

    max_turns: Annotated[int, Field(ge=1), NUMBER] = 30
    """Turns of an episode; the environment's own limit holds too."""
    max_response_tokens: Annotated[int, Field(ge=1), NUMBER] = 256
    """Tokens of one reply. A reply that is cut off is no action, unless its format shows that the action is whole."""
    max_context_tokens: Annotated[int, Field(ge=2), NUMBER] = 4096
    """Tokens of prompt and replies in the whole episode, or in each of its sequences where a strategy replaces the
    context; at most `inference.max_model_len`."""
    step_timeout_s: Annotated[float, Field(gt=0), NUMBER] = 30.0
    """Time for one step of the environment."""
    generate_timeout_s: Annotated[float, Field(gt=0), NUMBER] = 120.0
    """Time for one reply. The clock stops while new weights are loaded."""
    episode_timeout_s: Annotated[float, Field(gt=0), NUMBER] = 600.0
    """Time for the whole episode or, where a strategy plays the episodes of a group together, for all of them. The
    clock stops while new weights are loaded."""
    max_attempts: Annotated[int, Field(ge=1, le=10), NUMBER] = 3
    """Maximum number of times that an episode is played, including the first, while it fails for technical reasons.
    Where a strategy plays the episodes of a group together, it applies to the whole group."""


class Budget(WireModel):
    """What the episodes of a group may use together, over all attempts; without a number there is no limit.

    An episode that is left unplayed because a budget is spent ends as `truncated` with the finish reason `budget`.
    """

    env_steps: Annotated[int, Field(ge=0), NUMBER] | None = None
    """Actions that the environment executes."""
    model_calls: Annotated[int, Field(ge=0), NUMBER] | None = None
    """Replies that the policy is asked for."""
    tokens: Annotated[int, Field(ge=0), NUMBER] | None = None
    """Tokens that the policy samples, and those of its prompts that the engine computes: what is in its prefix cache is
    free. A reply that might need more is not sampled."""
    evaluations: Annotated[int, Field(ge=0), NUMBER] | None = None
    """Nodes whose value the reward service is asked for."""
    seconds: Annotated[float, Field(gt=0), NUMBER] | None = None
    """Time since the group began. The limit on a call in progress is paused while new weights are loaded."""

    @property
    def limits_anything(self) -> bool:
        """Whether there is a limit."""
        return any(value is not None for _, value in self)


MAX_MOVES: Final = 1000


class Move(WireModel):
    """A reply that somebody wrote, before it is put into a reply format."""

    thought: Annotated[str, Field(max_length=100_000)] = ""
    """The thought before the action."""
    action: Annotated[str, Field(min_length=1, max_length=100_000, pattern=r"\S")]
    """The action."""
    role: RoleName = Field(default=AGENT, exclude_if=lambda role: role == AGENT)
    """The role under which the turn is recorded: a stage that trains on the tokens of some roles can leave others
    out."""


class StrategySpec(WireModel):
    """How a group is played: a strategy and its options, which the rollout service checks."""

    use: StrategyName = "independent"
    options: dict[str, JsonValue] = Field(default_factory=dict)


class MessageRoles(WireModel):
    """The roles of the chat template that the parts of a prompt have."""

    instructions: Literal["user", "system"] = "user"
    """`"user"`: the instructions of environment and reply format precede the first observation, in one message.
    `"system"`: they have a message of their own before it."""
    observations: Literal["user", "tool"] = "user"
    """The role of observations that answer a reply; the first observation, which answers none, is the user's."""


class TemplateOptions(WireModel):
    """How the model's chat template is used."""

    thinking: Literal["template", "on", "off"] = "template"
    """Whether the model thinks before it replies, set by a switch of the chat template; `"template"`: as the template
    decides."""
    context: Literal["continued", "replaced"] = "continued"
    """`"continued"`: sampled tokens stay in the context as they are. `"replaced"`: each prompt is the template's
    rendering of the whole conversation; if that leaves out earlier thoughts, for example, an episode becomes several
    token sequences, each of which is learned from."""
    reasoning: Literal["kept", "dropped"] = "kept"
    """Whether the template is shown the thoughts before earlier replies; `"dropped"` needs `context = "replaced"`."""
    max_reasoning_tokens: Annotated[int, Field(ge=1), NUMBER] | None = None
    """A reply that thinks for more tokens than this is cut off and has no action; without a number, only
    `limits.max_response_tokens` applies."""
    switches: Annotated[dict[str, JsonValue], Field(max_length=32)] = Field(default_factory=dict)
    """Further variables of the template, such as `{ reasoning_effort = "low" }`."""

    @model_validator(mode="after")
    def dropping_replaces(self) -> Self:
        """Require a context that is replaced for dropping: nothing can be dropped from a context that only grows."""
        if self.reasoning == "dropped" and self.context != "replaced":
            raise ValueError('reasoning = "dropped" changes the context: give context = "replaced" with it')
        return self


class ActionSpace(WireModel):
    """Whether and how the policy is shown the possible actions, where an environment lists them."""

    shown: StrictBool = False
    """End every observation with the list, in demonstrations and measurements too."""
    most: Annotated[int, Field(ge=1, le=1000), NUMBER] = 100
    """Maximum number of actions that are shown of a longer list."""


ImagesAs = Literal["text", "seen"]
"""How the policy is shown images: as marks in a text, or as images."""


class GroupRequest(WireModel):
    """One task, `num_samples` episodes. The id is fixed before the rollout: `run/group`.

    A strategy that plays the episodes together may make fewer or more of them; its trajectories record how many.

    With `samples`, the request is for these samples of the group alone, which failed or were lost. `replay` is then
    higher than in the previous request for them, and is recorded in their trajectories.
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
    """How the policy is shown images: as the marks that stand for them in the text, or as the images themselves."""
    actions: ActionSpace = ActionSpace()
    hint_probability: Annotated[float, Field(ge=0, le=1), NUMBER] = 0.0
    """Probability that an observation ends with the expert's move; drawn once for all episodes of the group."""
    sampling: Sampling = Sampling()
    limits: EpisodeLimits = EpisodeLimits()
    budget: Budget = Budget()
    reward: RewardSpec = RewardSpec()
    evaluator: EvaluatorSpec | None = None
    """How the reward service values the nodes of a strategy that evaluates."""
    rejected: StrictBool = False
    """Also return, after the others, the episodes that the strategy tried and did not export, as far as they were
    played."""

    @model_validator(mode="after")
    def samples_are_of_the_group(self) -> Self:
        """Require that each of `samples` is one of the `num_samples`."""
        if self.samples is not None and any(sample >= self.num_samples for sample in self.samples):
            raise ValueError(f"samples must be below num_samples ({self.num_samples})")
        return self

    @property
    def wanted(self) -> tuple[int, ...]:
        """The samples to play."""
        return tuple(range(self.num_samples)) if self.samples is None else self.samples

    def temperature_of(self, sample: int | None) -> float:
        """Return the temperature of a sample; with None that of samples that are played together."""
        sampling = self.sampling
        if sample is None or self.num_samples < 2:
            return sampling.temperature
        return sampling.temperature * (1 + sampling.spread * (2 * sample / (self.num_samples - 1) - 1))

    @property
    def again(self) -> str:
        """A text that distinguishes this request from other and earlier requests for samples of the group.

        It is empty for the first one. Each sample is requested once with each `replay`.
        """
        return f"{self.replay}.{min(self.wanted)}" if self.replay else ""


class JobState(StrEnum):
    """The life of a job submitted over HTTP."""

    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class SubmitJob(WireModel):
    """`POST /v1/jobs`: groups to play outside the stream. `POST /v1/playable` checks them and plays nothing."""

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

    Nothing else is generated until the version is committed or refused. If neither happens within `decision_timeout_s`,
    the last live version comes back.
    """

    version: Annotated[int, Field(ge=0), NUMBER]
    weights_path: str
    """A directory with Hugging Face safetensors that the service can read; with `broadcast` it need not be able to."""
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
    """The tokens that one engine sampled (temperature 1) for one probe prompt, with their log-probabilities."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class EngineProbe(WireModel):
    """An engine's answers, in the order of the probe's prompts."""

    engine: str
    samples: tuple[ProbeSample, ...]


class StagedVersion(WireModel):
    """A version that is staged, not live: the trainer compares and then commits or refuses it."""

    version: int
    engines: tuple[EngineProbe, ...]
    pause_s: float
    update_s: float


class SleepRequest(WireModel):
    """`POST /v1/policy/sleep`: free the engines' memory until `POST /v1/policy/wake`, or until a version is staged.

    A repeated request renews the lease. Without one, the engines wake by themselves, with the live version.
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
    """The highest rank of adapters, if versions are adapters; 0 if versions are whole weights."""
    tokens_generated: int
    """Tokens in replies that have ended."""
    tokens_sampled: int = 0
    """Grows with every token that an engine samples for a reply, long before the reply ends: a sign that the engine is
    alive."""
    sees_images: bool = False
    """The policy can be shown images: the model sees them, and the engines take them."""
    sleep_mode: bool = False
    """The engines were started so that they can sleep."""
    asleep: bool = False
    """The engines' memory is free for the trainer, and requests wait."""


class LivePolicy(WireModel):
    """What the trainer publishes about its run in Redis."""

    run_id: str
    version: int
