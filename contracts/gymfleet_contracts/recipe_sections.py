"""The tables of a recipe, and what plug-ins require of them."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    JsonValue,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from gymfleet_contracts._model import WireModel
from gymfleet_contracts.reply_format import FormatSection
from gymfleet_contracts.reward import EvaluatorSection, RewardSection
from gymfleet_contracts.rollout import (
    ActionSpace,
    Budget,
    EpisodeLimits,
    ImagesAs,
    MessageRoles,
    Sampling,
    StrategySpec,
    TemplateOptions,
)
from gymfleet_contracts.session import EnvironmentName, Split
from gymfleet_contracts.stages import StageName
from gymfleet_contracts.trajectory import RoleName, StrategyName

Replicas = Annotated[int, Field(ge=1, le=256)]
Gpus = Annotated[tuple[Annotated[int, Field(ge=0, le=1023)], ...], Field(min_length=1, max_length=256)]
ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$")]


class ScheduledChange(WireModel):
    """A change that holds from a training step on."""

    step: Annotated[int, Field(ge=2)]
    """The first step for which the change holds, counted within each stage that reinforces."""
    level: str | None = None
    """Difficulty from then on."""
    max_turns: PositiveInt | None = None
    """Turns of an episode from then on."""


class LimitChanges(WireModel):
    """Limits of one environment's episodes; a limit that is left out is as in `[rollout.limits]`."""

    max_turns: PositiveInt | None = None
    """Turns of an episode."""
    max_response_tokens: PositiveInt | None = None
    """Tokens of one reply."""
    max_context_tokens: PositiveInt | None = None
    """Tokens of prompt and replies in the whole episode, or in each of its sequences."""
    step_timeout_s: PositiveFloat | None = None
    """Time for one step of the environment."""
    episode_timeout_s: PositiveFloat | None = None
    """Time for the whole episode."""


class EnvironmentSection(WireModel):
    """The tasks of an environment. With several of these tables, training tasks are mixed by their weights."""

    name: EnvironmentName
    """The environment, as the gateway lists it."""
    label: StageName | None = None
    """The name of its figures; by default `name`. Two tables of one environment need labels."""
    weight: PositiveFloat = 1.0
    """Share of the training groups and of the demonstrations, relative to the other tables'."""
    level: str | None = None
    """Difficulty; by default the environment's default."""
    tasks: Literal["generated", "benchmark"] = "generated"
    """`"benchmark"`: the tasks of the upstream files that `gymfleet data import` keeps."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """The environment's own settings, as its README names them: `options = { show_actions = true }`."""
    train_split: Split = "train"
    """Tasks to train on."""
    eval_split: Split = "test"
    """Tasks to measure on; must differ from `train_split`."""
    format: FormatSection | None = None
    actions: ActionSpace | None = None
    limits: LimitChanges = LimitChanges()
    reward: RewardSection | None = None
    schedule: tuple[ScheduledChange, ...] = ()

    @field_validator("format", mode="before")
    @classmethod
    def format_by_name(cls, given: Any) -> Any:
        """Accept `format = "dbbench"` as a table with `use` alone."""
        return {"use": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def held_out(self) -> Self:
        """Require that measurements never use the split that is trained on."""
        if self.train_split == self.eval_split:
            raise ValueError("eval_split must differ from train_split")
        return self

    @model_validator(mode="after")
    def schedule_ascends(self) -> Self:
        """Require that each change comes after the one before it, and changes something."""
        steps = [change.step for change in self.schedule]
        if steps != sorted(set(steps)):
            raise ValueError(f"the steps of schedule must ascend: {', '.join(map(str, steps))}")
        if any(change.level is None and change.max_turns is None for change in self.schedule):
            raise ValueError("a change in schedule says level or max_turns")
        return self

    @property
    def title(self) -> str:
        """The name of its figures."""
        return self.label or self.name

    def changed(self, step: int | None) -> ScheduledChange:
        """Return the schedule's values at a training step; with None those at its end, which are what is measured."""
        level, max_turns = self.level, self.limits.max_turns
        for change in self.schedule:
            if step is None or change.step <= step:
                level, max_turns = change.level or level, change.max_turns or max_turns
        return ScheduledChange.model_construct(step=step or 0, level=level, max_turns=max_turns)


class ScratchModel(WireModel):
    """A small Qwen3-shaped model with a tokenizer of its own, built from the environment's texts."""

    vocab_size: PositiveInt = 512
    """Size of the tokenizer that is trained on the environment's texts."""
    hidden_size: PositiveInt = 128
    """Width."""
    intermediate_size: PositiveInt = 384
    """Width of the feed-forward layers."""
    num_layers: PositiveInt = 4
    """Depth."""
    num_heads: PositiveInt = 4
    """Attention heads."""
    num_kv_heads: PositiveInt = 2
    """Key and value heads."""
    head_dim: PositiveInt = 32
    """Width of a head."""
    tie_embeddings: bool = False
    """Share input and output embeddings."""
    corpus_episodes: PositiveInt = 200
    """Expert episodes whose texts the tokenizer is trained on."""
    chat_template: Literal["chatml", "tools"] = "chatml"
    """`"chatml"`: messages and nothing else. `"tools"`: also declarations of functions, calls of them and thoughts
    before replies, for `rollout.format = { use = "tool_call", style = "template" }`."""


class LoraSection(WireModel):
    """Low-rank adapters, which are trained and published instead of the model's weights."""

    rank: Annotated[int, Field(ge=1, le=512)] = 16
    """Width of an adapter: for each matrix of m by n weights, (m + n) times this many weights are trained."""
    alpha: PositiveFloat = 32.0
    """An adapter's output is multiplied by `alpha / rank`."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of an adapter's inputs that an update leaves out, at random."""
    target_modules: Literal["all-linear"] | Annotated[tuple[ModuleName, ...], Field(min_length=1)] = "all-linear"
    """The decoder's linear layers that get adapters, by the ends of their names, such as `["q_proj", "v_proj"]`; or
    all."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision in which adapters are held and updated. They are published in the engine's precision."""
    max_loras: Annotated[int, Field(ge=2, le=64)] = 2
    """Adapters that an engine has room for: the live version and the staged one."""


class ModelSection(WireModel):
    """Either a Hugging Face id or local path, or a model from scratch."""

    path: str | None = None
    """A Hugging Face id, or a directory in its format."""
    scratch: ScratchModel | None = None
    lora: LoraSection | None = Field(default=None, exclude_if=lambda given: given is None)

    @model_validator(mode="after")
    def one_source(self) -> Self:
        """Require exactly one of `path` and `scratch`."""
        if (self.path is None) == (self.scratch is None):
            raise ValueError("give exactly one of model.path and [model.scratch]")
        return self


class EngineSizes(WireModel):
    """The settings with which an engine is built."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the engine: float32, bfloat16, float16."""
    max_model_len: PositiveInt = 4096
    """Context of the engine, in tokens."""
    max_num_seqs: PositiveInt = 128
    """Sequences in one step of the engine."""
    max_num_batched_tokens: PositiveInt = 2048
    """Tokens in one step of the engine."""
    kv_cache_gib: PositiveFloat = 1.0
    """Memory for keys and values, in GiB."""
    enforce_eager: bool = True
    """Run without compiled graphs."""


class InferenceSection(EngineSizes):
    """The source of the policy's tokens.

    Keys that are not named here are options of the backend, which checks them.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)

    backend: Annotated[str, Field(min_length=1, max_length=1024)] = "embedded"
    """embedded: vLLM inside the rollout process; server: vLLM servers at `urls`; or one of your own: a name that an
    installed package declares, `package.module:Class`, or the path of a .py file."""

    @property
    def options(self) -> dict[str, JsonValue]:
        """The backend's options, unchecked."""
        return dict(self.model_extra or {})

    @property
    def sizes(self) -> EngineSizes:
        """The engine's settings of this table."""
        return EngineSizes.model_validate({name: getattr(self, name) for name in EngineSizes.model_fields})


class StrategySection(WireModel):
    """How the training episodes of a task are played.

    Keys that are not named here are options of the strategy, which checks them. Demonstrations are the expert's, and
    measurements are played one by one, whatever strategy is given here.
    """

    model_config = ConfigDict(extra="allow")

    use: StrategyName = "independent"
    """independent, forks, tree_sampling, greedy_baseline, masked, ranked, one that searches (best_of_n,
    self_consistency, reflexion, beam, tree_of_thoughts, graph_of_thoughts, dfsdt, mcts, go_explore, plan_and_execute),
    or one of your own: a name that an installed package declares, `package.module:Class`, or the path of a .py file."""

    @property
    def options(self) -> dict[str, Any]:
        """The strategy's options, unchecked."""
        return dict(self.model_extra or {})

    @property
    def spec(self) -> StrategySpec:
        """The strategy in the form for the wire."""
        return StrategySpec(use=self.use, options=self.options)


class StrategyFacts(WireModel):
    """What other parts of gymfleet must know about a strategy."""

    by_sample: bool = False
    """Its episodes are independent: each is played, retried and published by itself."""
    expert: bool = False
    """The environment's expert or the strategy writes the replies: there is nothing to reinforce."""
    roles: Annotated[tuple[RoleName, ...], Field(max_length=16)] = ()
    """The roles other than `agent` in which it asks the policy."""
    evaluates: bool = False
    """It has nodes valued by the reward service."""
    games: bool = False
    """It seats the players of games, and plays nothing else."""
    forks: bool = False
    """It needs forks of sessions: environments that have none are refused before anything is played."""
    actions: bool = False
    """It needs the list of possible actions: environments that list none are refused before anything is played."""
    values: bool = False
    """Its turns record the values of the states in which they were played."""
    state_keys: bool = False
    """It distinguishes states by the environment's keys, which cost time at each step."""


class RolloutSection(WireModel):
    """How episodes are played."""

    format: FormatSection = FormatSection()
    roles: MessageRoles = MessageRoles()
    template: TemplateOptions = TemplateOptions()
    actions: ActionSpace = ActionSpace()
    images: ImagesAs = "text"
    """How the policy is shown the images in observations: `"text"`, as a mark for each; `"seen"`, as the images
    themselves, for a model that sees them and environments that show some."""
    sampling: Sampling = Sampling()
    limits: EpisodeLimits = EpisodeLimits()
    strategy: StrategySection = StrategySection()
    budget: Budget = Budget()
    evaluator: EvaluatorSection | None = None

    @field_validator("format", mode="before")
    @classmethod
    def format_by_name(cls, given: Any) -> Any:
        """Accept `format = "dbbench"` as a table with `use` alone."""
        return {"use": given} if isinstance(given, str) else given


class AlgorithmFacts(WireModel):
    """What an algorithm requires of the rest of a recipe."""

    min_group_size: PositiveInt = 1
    """Minimum number of episodes of a task that it compares."""
    sums_rewards: bool = False
    """It adds up the rewards of an episode's tokens: their sum must be the episode's reward."""
    state_keys: bool = False
    """It compares turns that were played in the same state: sessions are opened with keys of their states."""
    values: bool = False
    """It learns from values of states, which the strategy has to provide."""


class PublishSection(WireModel):
    """What a new version must prove before it is sampled from."""

    parity_tolerance: PositiveFloat | Literal["auto"] = "auto"
    """Largest mean absolute difference in log-probability between trainer and engine. `"auto"` follows the coarser of
    their dtypes, and the difference that the run's first batch shows to be normal."""
    probe_prompts: PositiveInt = 16
    """Prompts of the probe."""
    probe_max_tokens: PositiveInt = 16
    """Tokens sampled for each prompt."""
    transfer: Literal["disk", "shared_memory", "broadcast", "cuda_ipc"] = "disk"
    """How engines get versions: `"disk"`, from the run's directory; `"shared_memory"`, from `/dev/shm`, for rollout
    services on the trainer's machine; `"broadcast"`, over the network, for services that see neither; `"cuda_ipc"`,
    from the memory of the GPU that engines share with the trainer. Adapters are always on disk."""
    bucket_mib: PositiveInt = 512
    """MiB of weights that are gathered, checked and written as one file; a larger tensor has a file of its own. Four
    files are written at a time: with several workers, the first holds that many in main memory."""


class CheckpointSection(WireModel):
    """How often a checkpoint is written from which the run can be resumed, and how many are kept."""

    every_steps: PositiveInt = 1
    """Steps between checkpoints."""
    keep: PositiveInt = 2
    """Checkpoints kept."""


class ScaleSection(WireModel):
    """The number of services and processes."""

    env_servers: Replicas = 1
    """Servers of each environment."""
    env_shards: Replicas = 1
    """Worker processes in each env server."""
    gateways: Replicas = 1
    """Env gateways. Locally, rollout services are assigned to them in turn, and the trainer uses the first."""
    rollouts: Replicas = 1
    """Rollout services, each with an engine of its own ([ADR
    11](adr/0011-a-rollout-replica-and-its-engine-are-one-unit.md))."""
    rewards: Replicas = 1
    """Reward services."""


class TrainerSection(WireModel):
    """How many processes train the policy together, what they survive, and where they keep their data.

    Changes results only by rounding.
    """

    workers: PositiveInt = 1
    """Number of processes. Each holds a shard of the weights and takes a share of every update; more than one run under
    Ray Train."""
    max_failures: Annotated[int, Field(ge=0)] = 3
    """How often the workers are restarted after one of them has died, before the run stops."""
    collective_timeout_s: PositiveFloat = 600.0
    """A worker that the others have waited for this long counts as dead."""
    gradient_checkpointing: Literal["auto"] | bool = "auto"
    """Keep only the inputs of each layer, and recompute the rest in the backward pass; `"auto"` does so on a GPU."""
    compile: bool = False
    """Compile the model's layers with `torch.compile`: more tokens/s and fewer activations on a GPU, at the cost of a
    minute or so at the first updates. It needs a C++ compiler, and on a GPU Triton."""
    cpu_offload: bool = False
    """Keep weights, gradients and moments in main memory and update them there; a GPU gets one layer at a time. Without
    a GPU they are there anyway."""


class PlacementSection(WireModel):
    """The GPUs of this machine that the processes of `gymfleet train` use, by the numbers of `nvidia-smi`.

    Changes no result.
    """

    trainer: Gpus | None = None
    """One GPU for each of `trainer.workers`; by default the first that are visible."""
    engines: Gpus | None = None
    """One GPU for each of `scale.rollouts`; by default those that the trainer leaves or, if `colocated`, those that it
    has."""
    colocated: bool = False
    """Trainer and engines share GPUs: an engine sleeps while the policy is updated."""

    @model_validator(mode="after")
    def named_once(self) -> Self:
        """Require that a GPU has one use, or two that take turns."""
        for key, named in (("trainer", self.trainer or ()), ("engines", self.engines or ())):
            if key == "engines" and self.colocated:
                continue  # several engines may share one: they sleep together
            if (twice := next((gpu for gpu in named if named.count(gpu) > 1), None)) is not None:
                raise ValueError(f"placement.{key} names GPU {twice} twice: give each once")
        both = set(self.trainer or ()) & set(self.engines or ())
        if both and not self.colocated:
            raise ValueError(
                f"placement: trainer and engines both name GPU {', '.join(map(str, sorted(both)))}: give each its own, "
                "or colocated = true"
            )
        return self
