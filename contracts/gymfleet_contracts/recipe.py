"""A training run, as TOML: what to learn, from what, with which algorithm.

Light on purpose: loading and checking a recipe needs neither torch nor vLLM.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    JsonValue,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from gymfleet_contracts._model import WireModel
from gymfleet_contracts.faults import faults
from gymfleet_contracts.reply_format import FormatSection
from gymfleet_contracts.reward import ComponentTable, Discount, RewardSpec, RewardTerms
from gymfleet_contracts.rollout import Budget, EpisodeLimits, Sampling, StrategySpec
from gymfleet_contracts.session import EnvironmentName, Split
from gymfleet_contracts.trajectory import StrategyName

Fraction = Annotated[float, Field(ge=0, le=1)]
Replicas = Annotated[int, Field(ge=1, le=256)]

MIN_TRAIN_TEMPERATURE: Final = 0.01
"""vLLM raises any lower temperature but 0 to this one."""

MODEL_INIT: Final = "model-init"
"""Where the model from scratch is built, inside the run directory."""
MODEL_BUILT: Final = "build.json"
"""Written last of its files: its presence says that the model beside it is complete."""


class RecipeError(Exception):
    """The recipe cannot be used; the message says which key and why."""


class EnvironmentSection(WireModel):
    """Which tasks."""

    name: EnvironmentName
    """The environment, as the gateway lists it."""
    level: str | None = None
    """Difficulty; without it the environment's default."""
    tasks: Literal["generated", "benchmark"] = "generated"
    """`"benchmark"`: those of the upstream files that `gymfleet data import` keeps."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """The environment's own settings, as its README names them: `options = { show_actions = true }`."""
    train_split: Split = "train"
    """Tasks to train on."""
    eval_split: Split = "test"
    """Tasks to measure on; must differ from `train_split`."""

    @model_validator(mode="after")
    def held_out(self) -> Self:
        """Never measure on what was trained."""
        if self.train_split == self.eval_split:
            raise ValueError("env.eval_split must differ from env.train_split")
        return self


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


class ModelSection(WireModel):
    """Either a Hugging Face id or local path, or a model from scratch."""

    path: str | None = None
    """A Hugging Face id, or a directory in its format."""
    scratch: ScratchModel | None = None

    @model_validator(mode="after")
    def one_source(self) -> Self:
        """Exactly one of `path` and `scratch`."""
        if (self.path is None) == (self.scratch is None):
            raise ValueError("give exactly one of model.path and [model.scratch]")
        return self


class EngineSizes(WireModel):
    """What an engine of vLLM is built with."""

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
    """Who samples: vLLM inside the rollout process, or vLLM servers by URL."""

    backend: Literal["embedded", "server"] = "embedded"
    """embedded: the engine runs in the rollout process; server: vLLM servers at `urls`."""
    urls: tuple[str, ...] = ()
    """Base URLs of the servers, each replica by itself; only with `server`."""

    @model_validator(mode="after")
    def servers_have_urls(self) -> Self:
        """`urls` belongs to `backend = "server"`, and only there."""
        if (self.backend == "server") != bool(self.urls):
            raise ValueError('inference.urls must be given with backend = "server", and only then')
        return self


class StrategySection(WireModel):
    """How the training episodes of a task are played. Keys that are not named here are options of the strategy, which
    checks them. Demonstrations are the expert's, and measurements are played one by one whatever stands here.
    """

    model_config = ConfigDict(extra="allow")

    use: StrategyName = "independent"
    """independent, or one of your own: a name that an installed package declares, `package.module:Class`, or the path
    of a .py file."""

    @property
    def options(self) -> dict[str, Any]:
        """The strategy's options, unchecked."""
        return dict(self.model_extra or {})

    @property
    def spec(self) -> StrategySpec:
        """The strategy as it stands on the wire."""
        return StrategySpec(use=self.use, options=self.options)


class StrategyFacts(WireModel):
    """What others must know of a strategy."""

    by_sample: bool = False
    """Its episodes have nothing to do with each other: each is played, tried again and put out by itself."""
    expert: bool = False
    """The environment's expert writes the replies: there is nothing to reinforce."""


class RolloutSection(WireModel):
    """How episodes are played."""

    format: FormatSection = FormatSection()
    sampling: Sampling = Sampling()
    limits: EpisodeLimits = EpisodeLimits()
    strategy: StrategySection = StrategySection()
    budget: Budget = Budget()

    @field_validator("format", mode="before")
    @classmethod
    def format_by_name(cls, given: Any) -> Any:
        """Take `format = "dbbench"` for a table with `use` alone."""
        return {"use": given} if isinstance(given, str) else given


class RewardSection(RewardTerms):
    """How episodes are scored. Every other key is a table: one component, under a label."""

    gamma: Discount | None = None
    """Discount per token, for the discounted allocations; without it the algorithm's own: `rl.critic.gamma` for ppo, 1
    for grpo and rloo."""

    @model_validator(mode="before")
    @classmethod
    def other_keys_are_tables(cls, given: Any) -> Any:
        """A misspelt key is told from a component."""
        for key, value in given.items() if isinstance(given, dict) else ():
            if key not in cls.model_fields and not isinstance(value, dict | ComponentTable):
                raise ValueError(f"{key}: unknown; known: {', '.join(cls.model_fields)}, and tables of components")
        return given


class OptimizerSection(WireModel):
    """AdamW, a linear warm-up and a cosine or constant schedule."""

    learning_rate: Annotated[float, Field(ge=0)] = 1e-6
    """Peak of the schedule."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """Of AdamW."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Of AdamW."""
    eps: PositiveFloat = 1e-8
    """Of AdamW."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Updates of linear growth at the start."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """constant, cosine or linear after the warm-up."""
    min_lr_ratio: Fraction = 0.0
    """Where the schedule ends, as a share of the peak."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradients are clipped to this norm."""


class SftSection(WireModel):
    """Warm start on expert demonstrations."""

    num_demonstrations: PositiveInt = 40
    """Expert episodes, played on train tasks through the same path as every other episode."""
    epochs: PositiveInt = 10
    """Passes over them."""
    tokens_per_batch: PositiveInt = 8192
    """Tokens of one optimiser update."""
    optimizer: OptimizerSection = OptimizerSection(learning_rate=1e-3)


class UpdateSection(WireModel):
    """How a batch of trajectories becomes optimiser updates."""

    steps: PositiveInt = 100
    """Batches of trajectories."""
    updates_per_step: PositiveInt = 1
    """Optimiser updates per batch: its groups are split into so many parts."""
    epochs_per_step: PositiveInt = 1
    """Passes over each batch."""
    tokens_per_microbatch: PositiveInt = 8192
    """Bounds memory; the loss does not depend on it."""
    optimizer: OptimizerSection = OptimizerSection()


class RlSection(UpdateSection):
    """Reinforcement learning. Keys that are not named here are options of the algorithm, which checks them."""

    model_config = ConfigDict(extra="allow")

    algorithm: str = "grpo"
    """grpo, rloo, ppo, or one of your own: a name that an installed package declares, `package.module:Class`, or the
    path of a .py file."""
    groups_per_step: PositiveInt = 32
    """Tasks in a batch."""
    group_size: PositiveInt = 8
    """Episodes per task; at least 2 where an algorithm compares them, as grpo and rloo do."""
    max_staleness: Annotated[int, Field(ge=0)] = 0
    """Policy versions that a trajectory may be behind; 0 is synchronous. The groups that were asked for first are
    trained on first, and one that would be too old after a step is waited for: long episodes are learned from as
    often as short ones."""
    max_wall_s: PositiveFloat | None = None
    """Stop after the step in which this much time was spent, even before `steps`."""

    @model_validator(mode="after")
    def updates_have_groups(self) -> Self:
        """Every update of a batch has at least one of its groups."""
        if self.updates_per_step > self.groups_per_step:
            raise ValueError("rl.updates_per_step must not exceed rl.groups_per_step")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The algorithm's options, unchecked."""
        return dict(self.model_extra or {})


class AlgorithmFacts(WireModel):
    """What an algorithm asks of the rest of a recipe."""

    min_group_size: PositiveInt = 1
    """Episodes of a task that it compares at the least."""
    sums_rewards: bool = False
    """It adds up the rewards of an episode's tokens: their sum must be the episode's reward."""


class EvalSection(WireModel):
    """Measurement on held-out tasks; task i is played `samples_per_task` times."""

    num_tasks: PositiveInt = 200
    """Held-out tasks."""
    samples_per_task: PositiveInt = 1
    """Episodes of each."""
    sampling: Sampling = Sampling(temperature=1.0)
    every_steps: Annotated[int, Field(ge=0)] = 0
    """Also measure every so many steps; 0 is before and after only."""

    @property
    def num_episodes(self) -> int:
        """Episodes of one measurement."""
        return self.num_tasks * self.samples_per_task


class PublishSection(WireModel):
    """What a new version must prove before it is sampled from."""

    parity_tolerance: PositiveFloat = 0.001
    """Largest mean absolute difference in log-probability between trainer and engine."""
    probe_prompts: PositiveInt = 16
    """Prompts of the probe."""
    probe_max_tokens: PositiveInt = 16
    """Tokens sampled for each."""


class CheckpointSection(WireModel):
    """How often the run can be resumed from."""

    every_steps: PositiveInt = 1
    """Steps between checkpoints."""
    keep: PositiveInt = 2
    """Checkpoints kept."""


class ScaleSection(WireModel):
    """How many of what."""

    env_servers: Replicas = 1
    """Servers of the environment."""
    env_shards: Replicas = 1
    """Worker processes in each of them."""
    gateways: Replicas = 1
    """Env gateways; locally, rollout services take turns among them, and the trainer uses the first."""
    rollouts: Replicas = 1
    """Rollout services, each with an engine of its own ([ADR
    11](adr/0011-a-rollout-replica-and-its-engine-are-one-unit.md))."""
    rewards: Replicas = 1
    """Reward services."""


class TrainerSection(WireModel):
    """How many processes train the policy together, and what they survive. Changes no result but by rounding."""

    workers: PositiveInt = 1
    """Processes. Each holds a shard of the weights and takes a share of every update; more than one run under Ray
    Train."""
    max_failures: Annotated[int, Field(ge=0)] = 3
    """How often the workers are started again after one of them died, before the run stops."""
    collective_timeout_s: PositiveFloat = 600.0
    """A worker that the others have waited for so long counts as dead."""


class Recipe(WireModel):
    """A whole run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    """Names the run directory, `runs/<name>`; letters, digits, `.`, `_`, `-`."""
    description: str = ""
    """For the report."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seeds model, task order and engine."""
    trainer_dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Precision of the trainer's computation: float32, bfloat16 (with weights in float32), or float64, which is slow
    and meant for comparisons."""
    trainer_device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto, cpu or cuda; auto takes a GPU when there is one."""
    env: EnvironmentSection
    model: ModelSection
    inference: InferenceSection = InferenceSection()
    rollout: RolloutSection = RolloutSection()
    reward: RewardSection = RewardSection()
    sft: SftSection | None = None
    rl: RlSection | None = None
    eval: EvalSection = EvalSection()
    publish: PublishSection = PublishSection()
    checkpoint: CheckpointSection = CheckpointSection()
    scale: ScaleSection = ScaleSection()
    trainer: TrainerSection = TrainerSection()

    @model_validator(mode="after")
    def episodes_fit(self) -> Self:
        """An episode must fit the engine's context."""
        if self.rollout.limits.max_context_tokens > self.inference.max_model_len:
            raise ValueError(
                f"rollout.limits.max_context_tokens ({self.rollout.limits.max_context_tokens}) must not exceed "
                f"inference.max_model_len ({self.inference.max_model_len})"
            )
        return self

    @model_validator(mode="after")
    def trained_episodes_are_sampled(self) -> Self:
        """A policy gradient is one over samples of the distribution whose log-probabilities the trainer computes."""
        temperature = self.rollout.sampling.temperature
        if self.rl is not None and temperature < MIN_TRAIN_TEMPERATURE:
            raise ValueError(
                f"rollout.sampling.temperature = {temperature:g} cannot be trained on: greedy replies have no "
                "log-probabilities, and below "
                f"{MIN_TRAIN_TEMPERATURE:g} the engine samples at another temperature than it is asked for; give "
                "1.0, and greedy sampling to eval.sampling alone"
            )
        return self

    def suits(self, facts: AlgorithmFacts) -> None:
        """Raise `RecipeError` for what the algorithm of `[rl]` cannot learn from."""
        if self.rl is None:
            return
        name = self.rl.algorithm
        if self.rl.group_size < facts.min_group_size:
            raise RecipeError(
                f"rl.group_size must be at least {facts.min_group_size} for {name}: a group of "
                f"{self.rl.group_size} has no baseline"
            )
        if facts.sums_rewards and self.reward.allocation == "discounted":
            raise RecipeError(
                'reward.allocation = "discounted" gives each turn a reward of its own, and their sum, which grows '
                f'with the number of turns, would be the return for {name}: give "discounted_normalised", whose sum '
                "is the episode's reward"
            )

    def plays_by(self, facts: StrategyFacts) -> None:
        """Raise `RecipeError` if the strategy's episodes cannot be reinforced."""
        if self.rl is not None and facts.expert:
            raise RecipeError(
                f"rollout.strategy: {self.rollout.strategy.use} has the environment's expert write the replies, and "
                "[rl] learns from the policy's alone; expert episodes are asked for by [sft]"
            )

    def reward_spec(self, gamma: float) -> RewardSpec:
        """The reward section as it stands on the wire: with a discount, the algorithm's `gamma` unless one is given."""
        given = dict(self.reward)
        return RewardSpec.model_validate({**given, "gamma": gamma if self.reward.gamma is None else self.reward.gamma})


def initial_model(recipe: Recipe, run_dir: Path) -> str:
    """What a run of `recipe` begins with: a directory or a hub id. Whether a model from scratch is built, is not asked.

    A relative path means what it means to the process that asks.
    """
    return recipe.model.path or str((run_dir / MODEL_INIT).resolve())


def load_recipe(path: Path) -> Recipe:
    """Read a TOML recipe. RecipeError names the file, the key and what is wrong with it."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"no recipe at {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RecipeError(f"{path} is not readable TOML: {error}") from error
    try:
        return Recipe.model_validate(document)
    except ValidationError as error:
        raise RecipeError(f"{path}: {faults(error, whole='recipe')}") from error
