"""A training run, as TOML: what to learn, from what, with which algorithm.

Light on purpose: loading and checking a recipe needs neither torch nor vLLM.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, JsonValue, PositiveFloat, PositiveInt, ValidationError, model_validator

from gymfleet_contracts._model import WireModel
from gymfleet_contracts.faults import faults
from gymfleet_contracts.reward import Discount, RewardSpec, RewardTerms
from gymfleet_contracts.rollout import EpisodeLimits, Sampling
from gymfleet_contracts.session import EnvironmentName, Split

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


class RolloutSection(WireModel):
    """How episodes are played."""

    grammar: str = "react"
    """Reply format: which parser reads the replies, and which instructions the model gets."""
    sampling: Sampling = Sampling()
    limits: EpisodeLimits = EpisodeLimits()


class RewardSection(RewardTerms):
    """How episodes are scored."""

    gamma: Discount | None = None
    """Discount per token, for the discounted allocations; without it `rl.critic.gamma` for ppo, and 1 for grpo."""


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


class KlSection(WireModel):
    """Distance to the reference policy (the policy at the start of reinforcement learning)."""

    coefficient: Annotated[float, Field(ge=0)] = 0.0
    """Weight; 0 is off."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """k1, k2 or k3; k1, whose gradient is 0 in expectation, in the reward only."""
    placement: Literal["loss", "reward"] = "loss"
    """In the loss or in the reward."""

    @model_validator(mode="after")
    def loss_has_a_gradient(self) -> Self:
        """The expected gradient of k1 over the policy's own samples is 0: as a loss it is noise alone."""
        if self.coefficient > 0 and self.placement == "loss" and self.estimator == "k1":
            raise ValueError(
                'rl.kl.estimator = "k1" has no gradient in expectation as a loss: give estimator = "k2" or "k3", or '
                'placement = "reward"'
            )
        return self


class CriticSection(WireModel):
    """PPO's value function: its own model, initialised from the policy's body."""

    gamma: Fraction = 1.0
    """Discount per token."""
    lam: Fraction = 0.95
    """Of generalised advantage estimation."""
    value_clip: PositiveFloat = 0.5
    """Clip range of the value loss."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps in which the critic alone is trained."""
    optimizer: OptimizerSection = OptimizerSection(learning_rate=1e-5)


LossAggregation = Literal["token_mean", "sequence_mean_token_sum", "sequence_mean_token_mean"]


class RlSection(WireModel):
    """Reinforcement learning with GRPO or PPO."""

    algorithm: Literal["grpo", "ppo"] = "grpo"
    """grpo or ppo."""
    steps: PositiveInt = 100
    """Batches of trajectories."""
    groups_per_step: PositiveInt = 32
    """Tasks in a batch."""
    group_size: PositiveInt = 8
    """Episodes per task; at least 2 for grpo."""
    updates_per_step: PositiveInt = 1
    """Optimiser updates per batch: its groups are split into so many parts."""
    epochs_per_step: PositiveInt = 1
    """Passes over each batch."""
    tokens_per_microbatch: PositiveInt = 8192
    """Bounds memory; the loss does not depend on it."""
    clip_low: PositiveFloat = 0.2
    """The ratio is clipped at `1 - clip_low`."""
    clip_high: PositiveFloat = 0.28
    """The ratio is clipped at `1 + clip_high`."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Bound of the loss for negative advantages; above 1."""
    aggregation: LossAggregation = "token_mean"
    """token_mean, sequence_mean_token_sum or sequence_mean_token_mean."""
    normalise_by_std: bool = True
    """Divide a group's advantages by their standard deviation."""
    entropy_coefficient: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the entropy bonus."""
    kl: KlSection = KlSection()
    critic: CriticSection = CriticSection()
    max_staleness: Annotated[int, Field(ge=0)] = 0
    """Policy versions that a trajectory may be behind; 0 is synchronous. The groups that were asked for first are
    trained on first, and one that would be too old after a step is waited for: long episodes are learned from as
    often as short ones."""
    importance_cap: PositiveFloat = 2.0
    """C of truncated importance sampling, min(exp(old_logprobs - behaviour_logprobs), C), where the two disagree."""
    optimizer: OptimizerSection = OptimizerSection()
    max_wall_s: PositiveFloat | None = None
    """Stop after the step in which this much time was spent, even before `steps`."""

    @model_validator(mode="after")
    def groups_can_be_compared(self) -> Self:
        """GRPO's baseline is the group: one episode alone has none."""
        if self.algorithm == "grpo" and self.group_size < 2:
            raise ValueError("rl.group_size must be at least 2 for grpo: a group of one has no baseline")
        if self.updates_per_step > self.groups_per_step:
            raise ValueError("rl.updates_per_step must not exceed rl.groups_per_step")
        return self

    @property
    def gamma(self) -> float:
        """The algorithm's discount per token: GRPO has none."""
        return self.critic.gamma if self.algorithm == "ppo" else 1.0


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

    @model_validator(mode="after")
    def returns_are_conserved(self) -> Self:
        """GRPO sums the rewards of an episode's tokens: the sum must be the episode's reward."""
        if self.rl is not None and self.rl.algorithm == "grpo" and self.reward.allocation == "discounted":
            raise ValueError(
                'reward.allocation = "discounted" gives each turn a reward of its own, and their sum, which grows '
                'with the number of turns, would be the return for grpo: give "discounted_normalised", whose sum is '
                "the episode's reward"
            )
        return self

    @property
    def reward_spec(self) -> RewardSpec:
        """The reward section as it stands on the wire: with a discount, the algorithm's unless one is given."""
        gamma = self.reward.gamma
        if gamma is None:
            gamma = 1.0 if self.rl is None else self.rl.gamma
        terms = {name: getattr(self.reward, name) for name in RewardTerms.model_fields}
        return RewardSpec(**terms, gamma=gamma)


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
