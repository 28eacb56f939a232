"""Learning from preferences: pairs of episodes that earlier stages left, and preferences in files."""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import structlog
from gymfleet_contracts.data_records import Preference as PreferenceRecord
from gymfleet_contracts.recipe import Recipe, RecipeError
from gymfleet_contracts.stages import PlannedStage, StageFacts
from gymfleet_contracts.trajectory import ScoredTrajectory
from pydantic import BaseModel, ConfigDict, JsonValue, PositiveInt

from gymfleet_trainer.errors import NothingLeft
from gymfleet_trainer.learning.algorithm import Need, Sample
from gymfleet_trainer.learning.options import PreferenceUpdates, Roles
from gymfleet_trainer.learning.pairs import Found
from gymfleet_trainer.learning.plugins import algorithm_of
from gymfleet_trainer.learning.preferences import Example, Examples, Preference
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.model.optimizer import OptimizerOptions
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.run.records import converter_in
from gymfleet_trainer.stage import Stage

log = structlog.get_logger()


class PreferenceStageOptions(BaseModel):
    """Learning from preferences. Keys that are not named here are options of the algorithm, which checks them."""

    model_config = ConfigDict(extra="allow", frozen=True)

    data: str | tuple[str, ...]
    """The episodes from which pairs are made, or the preferences: of a stage, of several, or of a file."""
    converter: str | dict[str, JsonValue] | None = None
    """The converter that reads the files that `data` names, if they are not in gymfleet's format: `trl`, one of your
    own, or a table with `use` and its options."""
    algorithm: str = "dpo"
    """dpo, ipo, kto, orpo, simpo, or one of your own: a name that an installed package declares,
    `package.module:Class`, or the path of a .py file."""
    epochs: PositiveInt = 1
    """Passes over the pairs."""
    pairs_per_batch: PositiveInt = 32
    """Maximum number of pairs (with kto, episodes) per optimiser update. All updates of a pass have nearly as many."""
    tokens_per_microbatch: PositiveInt = 8192
    """Bounds memory; the loss does not depend on it."""
    roles: Roles = None
    """Train only on the tokens of these roles, as the strategy names them; by default of all roles."""
    reference: str | None = None
    """The model to which the policy is held, a directory or a hub id; by default the policy as it is when the stage
    begins."""
    optimizer: OptimizerOptions = OptimizerOptions()

    @property
    def options(self) -> dict[str, Any]:
        """The algorithm's options, unchecked."""
        return dict(self.model_extra or {})


class LearnPreferences(Stage[PreferenceStageOptions]):
    """Prefer the better of two episodes, by an algorithm such as DPO; from earlier stages, or from files."""

    Options = PreferenceStageOptions
    facts: ClassVar[StageFacts] = StageFacts(
        reads=True,
        leaves=("model",),
        plugins={"converter": "converter", "algorithm": "algorithm"},
        passes_on="algorithm",
    )
    small: ClassVar[Mapping[str, Any]] = {
        "epochs": 2,
        "pairs_per_batch": 2,
        "pairs": {"max_pairs_per_task": 2},
        "optimizer": {"learning_rate": 0.01},
    }

    @cached_property
    def algorithm(self) -> Preference[Any]:
        """The algorithm with its options. Raises `PluginError`, and `RecipeError` for one not based on preferences."""
        algorithm = algorithm_of(self.options, self.table)
        if not isinstance(algorithm, Preference):
            raise RecipeError(
                f"{self.table}.algorithm: {self.options.algorithm} does not learn from preferences; dpo, ipo, kto, "
                "orpo and simpo do"
            )
        return algorithm

    def check(self, recipe: Recipe, planned: PlannedStage) -> None:  # noqa: ARG002 - what every stage is given
        """Make the algorithm and the converter before anything is started."""
        needs = self.algorithm.needs
        if self.options.reference is not None and Need.REFERENCE not in needs:
            raise RecipeError(f"{self.table}.reference: {self.options.algorithm} has no reference: leave it out")
        converter_in(self.options.converter, self)

    async def run(self, run: RunContext) -> None:
        """Make the remaining updates."""
        records = await run.worker.run(run.compared_records, converter_in(self.options.converter, self))
        episodes = [record for record in records if isinstance(record, ScoredTrajectory)]
        run.publisher.adopt_probe(run.state, episodes)
        given = await run.rendered_pairs([record for record in records if isinstance(record, PreferenceRecord)])
        made = await run.worker.run(self._examples, episodes, given)
        # Set, not added up: a resumed stage reads them again.
        run.state.counts[f"examples.{self.name}"] = len(made.examples)
        for reason, number in sorted(made.left_out.items()):
            run.state.counts[f"left_out.{self.name}.{reason.value}"] = number
        told = ", ".join(f"{number} {reason.value}" for reason, number in sorted(made.left_out.items()))
        log.info("preferences.found", stage=self.name, examples=len(made.examples), left_out=told)
        if not made.examples:
            raise NothingLeft(
                f"{self.table}: there is nothing to compare in {len(records)} records of {', '.join(self.data)} "
                f"({told}): loosen pairs.min_gap and pairs.min_chosen_reward, or collect more episodes of each task"
            )
        await self._train(run, made.examples)

    def _examples(self, episodes: Sequence[ScoredTrajectory], given: Found) -> Examples:
        """Return the examples, each under its own unit, even where the data names an episode twice."""
        samples = [Sample(scored, staleness=1, roles=self.options.roles) for scored in episodes]
        made = self.algorithm.examples(samples) if samples else Examples()
        examples = [*made.examples, *(example for pair in given.pairs for example in self.algorithm.of_pair(pair))]
        # Not fresh: the policy is not expected to agree with the author of these tokens.
        numbered = [
            [replace(row, unit=str(number), staleness=1) for row in rows] for number, rows in enumerate(examples)
        ]
        return Examples(numbered, made.left_out + given.left_out)

    async def _train(self, run: RunContext, examples: Sequence[Example]) -> None:
        options, per_epoch = self.options, -(-len(examples) // self.options.pairs_per_batch)
        total = options.epochs * per_epoch
        section = PreferenceUpdates(
            steps=total,
            algorithm=options.algorithm,
            options=options.options,
            roles=options.roles,
            reference=options.reference,
            tokens_per_microbatch=options.tokens_per_microbatch,
            optimizer=options.optimizer,
        )
        async with run.training(section):
            await self._updates(run, examples, per_epoch, total)

    async def _updates(self, run: RunContext, examples: Sequence[Example], per_epoch: int, total: int) -> None:
        saved_at = time.monotonic()
        run.reporter.begin(self.name, step=run.state.done, total=total, unit="updates")
        for step in range(run.state.done, total):
            started = time.monotonic()
            rows = self._batch(run.recipe.seed, examples, *divmod(step, per_epoch), of=per_epoch)
            metrics = await run.worker.run(run.learner.update_rows, rows)
            seconds = time.monotonic() - started
            run.state.done = step + 1
            run.state.age += 1
            run.state.count("tokens_trained", metrics["num_trained_tokens"])
            run.state.spend("preference_update", seconds)
            run.directory.metric(
                "preference_step", stage=self.name, step=step + 1, seconds=round(seconds, 4), **metrics
            )
            run.reporter.advance(step + 1, "comparing", metrics={"preference_loss": metrics["loss"]})
            if step + 1 < total and time.monotonic() - saved_at > run.settings.sft_checkpoint_every_s:
                await run.checkpoint()
                saved_at = time.monotonic()

    def _batch(self, seed: int, examples: Sequence[Example], epoch: int, part: int, *, of: int) -> list[TrainSequence]:
        """Return the rows of one update, in an order that depends only on the seed, the stage and the epoch."""
        order = random.Random(f"{seed}/{self.name}/{epoch}").sample(examples, len(examples))
        return [row for example in order[part::of] for row in example]
