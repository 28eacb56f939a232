"""A training run, as TOML: what to learn, from what, with which algorithm.

Light on purpose: loading and checking a recipe needs neither torch nor vLLM.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import (
    Field,
    ValidationError,
    model_validator,
)

from gymfleet_contracts._model import WireModel
from gymfleet_contracts.faults import faults
from gymfleet_contracts.parity import ParityLimits, parity_limits
from gymfleet_contracts.recipe_sections import (
    AlgorithmFacts,
    CheckpointSection,
    EnvironmentSection,
    InferenceSection,
    ModelSection,
    PlacementSection,
    PublishSection,
    RolloutSection,
    ScaleSection,
    StrategyFacts,
    StrategySection,
    TrainerSection,
)
from gymfleet_contracts.reply_format import FormatSection
from gymfleet_contracts.reward import EvaluatorSpec, RewardSection, RewardSpec
from gymfleet_contracts.rollout import (
    ActionSpace,
    EpisodeLimits,
)
from gymfleet_contracts.stages import PlannedStage, StageSection, planned
from gymfleet_contracts.trajectory import AGENT

_EVALUATOR: Final = "rollout.evaluator"
MIN_TRAIN_TEMPERATURE: Final = 0.01
"""vLLM raises any lower temperature except 0 to this one."""

MODEL_INIT: Final = "model-init"
"""Where the model from scratch is built, inside the run directory."""
LATEST_REWARD_MODELS: Final = "reward-models"
"""Directory inside the run directory. Under the name of each stage that trains a reward model, it has a link to the
last one that the stage left."""
MODEL_BUILT: Final = "build.json"
"""The last file that is written of a model: its presence shows that the model next to it is complete."""


DocumentT = TypeVar("DocumentT", bound=WireModel)


class RecipeError(Exception):
    """The recipe cannot be used; the message says which key and why."""


class Recipe(WireModel):
    """A whole run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    """Names the run directory, `runs/<name>`; letters, digits, `.`, `_`, `-`."""
    description: str = ""
    """For the report."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seeds model, task order and engine."""
    trainer_dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Precision of the trainer's computation: float32, bfloat16 (with weights in the `master_dtype` of the optimiser),
    or float64, which is slow and meant for comparisons."""
    trainer_device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto, cpu or cuda; auto takes a GPU when there is one."""
    environments: Annotated[tuple[EnvironmentSection, ...], Field(min_length=1, max_length=64)]
    model: ModelSection
    inference: InferenceSection = InferenceSection()
    rollout: RolloutSection = RolloutSection()
    reward: RewardSection = RewardSection()
    stages: Annotated[tuple[StageSection, ...], Field(min_length=1)]
    publish: PublishSection = PublishSection()
    checkpoint: CheckpointSection = CheckpointSection()
    scale: ScaleSection = ScaleSection()
    trainer: TrainerSection = TrainerSection()
    placement: PlacementSection = PlacementSection()

    @property
    def parity_limits(self) -> ParityLimits:
        """The limits on the tolerance between this engine and this trainer."""
        return parity_limits(self.inference.dtype, self.trainer_dtype)

    @model_validator(mode="after")
    def tolerance_suits_the_dtypes(self) -> Self:
        """Refuse a tolerance that no engine could meet with these dtypes."""
        given, limits = self.publish.parity_tolerance, self.parity_limits
        if given != "auto" and given < limits.least:
            coarse = "inference.dtype" if self.inference.dtype == limits.dtype else "trainer_dtype"
            raise ValueError(
                f'publish.parity_tolerance = {given:g} is for float32, and {coarse} is "{limits.dtype}", in which no '
                f'two programs agree so closely: give "auto", or at least {limits.least:g}'
            )
        return self

    @model_validator(mode="after")
    def versions_can_be_sent(self) -> Self:
        """Refuse `broadcast` for adapters, which are files."""
        if self.publish.transfer == "broadcast" and self.model.lora is not None:
            raise ValueError(
                'publish.transfer = "broadcast" sends whole weights, and [model.lora] publishes adapters, which are '
                'small files: give "disk", with a run directory that the rollout services can read'
            )
        return self

    @model_validator(mode="after")
    def gpus_are_shared(self) -> Self:
        """Require for `cuda_ipc` that the trainer is one process, on the GPU of the engines."""
        if self.publish.transfer != "cuda_ipc" or self.model.lora is not None:
            return self
        fault = ""
        if self.trainer_device == "cpu":
            fault = 'trainer_device is "cpu"'
        elif self.trainer.workers > 1:
            fault = f"trainer.workers is {self.trainer.workers}, and one process has to hold the version"
        elif self.placement.trainer is not None and self.placement.trainer != self.placement.engines:
            fault = "placement gives trainer and engines other GPUs"
        if fault:
            raise ValueError(
                f'publish.transfer = "cuda_ipc" is for engines on the trainer\'s GPU, and {fault}: give '
                '"shared_memory" or "disk"'
            )
        return self

    @model_validator(mode="after")
    def images_can_be_seen(self) -> Self:
        """Require for images that are seen a model that can see them, and one worker to learn from them."""
        if self.rollout.images == "seen" and self.model.scratch is not None:
            raise ValueError('rollout.images = "seen", and a model from scratch reads text alone: give model.path')
        if self.rollout.images == "seen" and self.trainer.workers > 1:
            raise ValueError(
                f'rollout.images = "seen" is learned from by one worker, and trainer.workers is {self.trainer.workers}'
            )
        return self

    @model_validator(mode="after")
    def gpus_are_enough(self) -> Self:
        """Require a GPU for each worker and each engine, where GPUs are named."""
        trainer, engines = self.placement.trainer, self.placement.engines
        if trainer is not None and self.trainer_device == "cpu":
            raise ValueError('placement.trainer names GPUs, and trainer_device is "cpu": leave one of them out')
        if trainer is not None and len(trainer) != self.trainer.workers:
            raise ValueError(
                f"placement.trainer names {len(trainer)} GPUs, and trainer.workers is {self.trainer.workers}: each "
                "worker takes one"
            )
        if engines is not None and self.inference.backend == "server":
            raise ValueError(
                'placement.engines names GPUs, and with inference.backend = "server" the engines are started by '
                "others: choose their GPUs there"
            )
        if engines is not None and len(engines) != self.scale.rollouts:
            raise ValueError(
                f"placement.engines names {len(engines)} GPUs, and scale.rollouts is {self.scale.rollouts}: each "
                "engine takes one"
            )
        return self

    @model_validator(mode="after")
    def environments_are_told_apart(self) -> Self:
        """Require different titles, and the same tasks and options in all tables of an environment.

        Figures are kept by title; an environment has one server, however many tables name it.
        """
        titles = [env.title for env in self.environments]
        if twice := sorted({title for title in titles if titles.count(title) > 1}):
            raise ValueError(f'environments: two are called {", ".join(twice)}: give each a label, as label = "..."')
        served = {(env.name, env.tasks, repr(sorted(env.options.items()))) for env in self.environments}
        names = [name for name, *_ in served]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"environments: the tables of {', '.join(twice)} must have the same tasks and options")
        return self

    @model_validator(mode="after")
    def episodes_fit(self) -> Self:
        """Require that an episode fits the engine's context."""
        room = self.inference.max_model_len
        for env in self.environments:
            if (wanted := self.limits_of(env).max_context_tokens) > room:
                place = "rollout" if env.limits.max_context_tokens is None else f"environments.{env.title}"
                raise ValueError(
                    f"{place}.limits.max_context_tokens ({wanted}) must not exceed inference.max_model_len ({room})"
                )
        return self

    @model_validator(mode="after")
    def stages_are_a_plan(self) -> Self:
        """Require that the stages have different names."""
        self.plan()
        return self

    def plan(self) -> list[PlannedStage]:
        """Return the stages in the order in which they are carried out. Raises `StagesError`."""
        return planned(self.stages)

    def limits_of(self, env: EnvironmentSection, step: int | None = None) -> EpisodeLimits:
        """Return the limits of an environment's episodes at a training step; with None at the end of its schedule."""
        changes = env.limits.model_dump(exclude_none=True)
        if (turns := env.changed(step).max_turns) is not None:
            changes["max_turns"] = turns
        return self.rollout.limits.model_copy(update=changes)

    def format_of(self, env: EnvironmentSection) -> FormatSection:
        """Return the reply format of an environment's episodes."""
        return env.format or self.rollout.format

    def actions_of(self, env: EnvironmentSection) -> ActionSpace:
        """Return how an environment's actions are shown."""
        return env.actions or self.rollout.actions

    def formats(self) -> dict[str, FormatSection]:
        """Return the reply formats of the run, by the place of their table."""
        own = {f"environments.{env.title}.format": env.format for env in self.environments if env.format is not None}
        return {"rollout.format": self.rollout.format, **own}

    def rewards(self) -> dict[str, RewardSection]:
        """Return the rewards of the run, by the place of their table. Raises `RecipeError` for an invalid one."""
        evaluator = self.rollout.evaluator
        of_stages = {f"{stage.table}.reward": own for stage in self.plan() if (own := stage_reward(stage)) is not None}
        return {**self._shared_rewards(), **({} if evaluator is None else {_EVALUATOR: evaluator}), **of_stages}

    def _shared_rewards(self) -> dict[str, RewardSection]:
        """Return the rewards of stages that have none of their own."""
        own = {f"environments.{env.title}.reward": env.reward for env in self.environments if env.reward is not None}
        return {"reward": self.reward, **own}

    def strategies(self) -> dict[str, StrategySection]:
        """Return the strategies of the run, by the place of their table. Raises `RecipeError` for an invalid one."""
        own = {}
        for stage in self.plan():
            if "strategy" in stage.options:
                place = f"{stage.table}.strategy"
                try:
                    own[place] = strategy_section(stage.options["strategy"])
                except ValidationError as error:
                    raise RecipeError(faults(error, within=place)) from None
        return {"rollout.strategy": self.rollout.strategy, **own}

    def suits(self, stage: PlannedStage, algorithm: str, group_size: int, facts: AlgorithmFacts) -> None:
        """Raise `RecipeError` if a stage's algorithm cannot learn with its group size, temperature or rewards."""
        if group_size < facts.min_group_size:
            raise RecipeError(
                f"{stage.table}.group_size must be at least {facts.min_group_size} for {algorithm}: a group of "
                f"{group_size} has no baseline"
            )
        temperature = self.rollout.sampling.lowest
        if temperature < MIN_TRAIN_TEMPERATURE:
            raise RecipeError(
                f"rollout.sampling.temperature = {temperature:g} cannot be trained on: greedy replies have no "
                "log-probabilities, and below "
                f"{MIN_TRAIN_TEMPERATURE:g} the engine samples at another temperature than it is asked for; give "
                "1.0, and greedy sampling to measurements alone"
            )
        own = stage_reward(stage)
        for table, reward in (self._shared_rewards() if own is None else {f"{stage.table}.reward": own}).items():
            if facts.sums_rewards and reward.allocation == "discounted":
                raise RecipeError(
                    f'{table}.allocation = "discounted" gives each turn a reward of its own, and their sum, which '
                    f"grows with the number of turns, would be the return for {algorithm}: give "
                    '"discounted_normalised", whose sum is the episode\'s reward'
                )

    def plays_by(self, facts: StrategyFacts, stage: PlannedStage) -> None:
        """Raise `RecipeError` if the episodes of `[rollout.strategy]` cannot be reinforced by a stage."""
        if facts.expert:
            raise RecipeError(
                f"rollout.strategy: {self.rollout.strategy.use} writes the replies or has the expert write them, and "
                'reinforce learns from the policy\'s alone; expert episodes are asked for by a stage of kind "collect"'
            )
        self.evaluates_for(facts, "rollout.strategy", self.rollout.strategy.use)
        known = (AGENT, *facts.roles)
        if unknown := sorted(set(stage.options.get("roles") or ()) - set(known)):
            raise RecipeError(
                f"{stage.table}.roles: {', '.join(unknown)}: unknown; {self.rollout.strategy.use} asks the policy as "
                f"{', '.join(known)}"
            )

    def values_for(self, stage: PlannedStage, algorithm: str, facts: AlgorithmFacts, strategy: StrategyFacts) -> None:
        """Raise `RecipeError` if the algorithm learns from values of states, and they are not there or do not fit."""
        exploration = stage.options.get("exploration")
        if facts.values and isinstance(exploration, Mapping) and exploration.get("novelty") is not None:
            raise RecipeError(
                f"{stage.table}.exploration.novelty: {algorithm} compares rewards with values of states, which hold no "
                "bonus for novelty: leave it out, or give an algorithm without values"
            )
        if facts.values and not strategy.values:
            raise RecipeError(
                f"{stage.table}.algorithm: {algorithm} learns from values of states, and "
                f'{self.rollout.strategy.use} says none: give [rollout.strategy] use = "forks" or "greedy_baseline"'
            )

    def evaluates_for(self, facts: StrategyFacts, table: str, strategy: str) -> None:
        """Raise `RecipeError` if a strategy has nodes valued and the recipe does not say how."""
        if facts.evaluates and self.rollout.evaluator is None:
            raise RecipeError(
                f"{table}: {strategy} has nodes valued by the reward service: say how in [{_EVALUATOR}], a table like "
                "[reward]"
            )

    def measures_by(self, facts: StrategyFacts, table: str, strategy: str) -> None:
        """Raise `RecipeError` if a measurement uses a strategy that does not ask the policy."""
        if facts.expert:
            raise RecipeError(
                f"{table}: {strategy} writes the replies or has the expert write them, and a measurement is of the "
                "policy: give a strategy that asks it"
            )

    def rejects_for(self, facts: StrategyFacts, table: str, strategy: str) -> None:
        """Raise `RecipeError` if rejected episodes are requested from a strategy that exports all that it tries."""
        if facts.by_sample:
            raise RecipeError(
                f"{table}.rejected: {strategy} plays each episode by itself and rejects none: leave it out, or give "
                "a strategy that searches one tree for all episodes of a task"
            )

    @property
    def evaluator_spec(self) -> EvaluatorSpec | None:
        """How nodes are valued, in the form for the wire."""
        given = self.rollout.evaluator
        if given is None:
            return None
        return EvaluatorSpec.model_validate({**given.terms(), "gamma": 1.0 if given.gamma is None else given.gamma})

    def reward_spec(self, env: EnvironmentSection, gamma: float, own: RewardSection | None = None) -> RewardSpec:
        """Return the reward in the form for the wire.

        It is the stage's, if that has one of its own, or else the environment's or the recipe's. Its discount is the
        algorithm's `gamma` unless one is given.
        """
        reward = own or env.reward or self.reward
        given = {**reward.terms(), "gamma": gamma if reward.gamma is None else reward.gamma}
        return RewardSpec.model_validate(given)


def strategy_section(given: Any) -> StrategySection:
    """Return the strategy that a stage's option names, by name or as a table. Raises pydantic's `ValidationError`."""
    return StrategySection.model_validate({"use": given} if isinstance(given, str) else given)


def stage_reward(stage: PlannedStage) -> RewardSection | None:
    """Return a stage's own reward. Raises `RecipeError`, which names the place, for an invalid one."""
    if (given := stage.options.get("reward")) is None:
        return None
    try:
        return RewardSection.model_validate(given)
    except ValidationError as error:
        raise RecipeError(faults(error, within=f"{stage.table}.reward")) from None


def initial_model(recipe: Recipe, run_dir: Path) -> str:
    """Return the model that a run of `recipe` begins with: a directory or a hub id.

    It does not check whether a model from scratch has been built. A relative path is relative to the working directory
    of the calling process.
    """
    return recipe.model.path or str((run_dir / MODEL_INIT).resolve())


def load_recipe(path: Path) -> Recipe:
    """Read a TOML recipe. Raises `RecipeError`, which names the file, the key and what is wrong with it."""
    return load_document(path, Recipe, "recipe")


def load_document(path: Path, kind: type[DocumentT], called: str) -> DocumentT:
    """Read a TOML file as a recipe, or as another document of its kind. Raises `RecipeError` like `load_recipe`."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"no {called} at {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RecipeError(f"{path} is not readable TOML: {error}") from error
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise RecipeError(f"{path}: {faults(error, whole=called)}") from error
