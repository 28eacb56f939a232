"""The policy as the training loop sees it: trained, measured, saved and restored.

Every method blocks; all but `vocab_size` are called in the torch thread.
"""

import gc
import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.recipe_sections import LoraSection
from gymfleet_contracts.rollout import Sampling
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.chat.transcripts import Transcripts
from transformers.utils.logging import disable_progress_bar

from gymfleet_trainer.distributed.ranks import Ranks, device_of
from gymfleet_trainer.distributed.row_files import together
from gymfleet_trainer.errors import RunDirectoryError, UnsupportedModel
from gymfleet_trainer.learning.algorithm import Need, Sample
from gymfleet_trainer.learning.background_write import BackgroundWrite
from gymfleet_trainer.learning.checkpoint_files import (
    Kept,
    begin_kept,
    random_states,
    read_states,
    restore_random_states,
    write_kept,
)
from gymfleet_trainer.learning.engine import UpdateEngine
from gymfleet_trainer.learning.images import LazyReader
from gymfleet_trainer.learning.novelty import Novelty
from gymfleet_trainer.learning.options import (
    GenerativeJudgeOptions,
    PreferenceUpdates,
    ReinforceOptions,
    RewardModelOptions,
    SupervisedOptions,
)
from gymfleet_trainer.learning.plugins import algorithm_of, blamed
from gymfleet_trainer.learning.protocol import Training
from gymfleet_trainer.learning.reward_update import RewardUpdater
from gymfleet_trainer.learning.sampled_tokens import own_tokens, unweighted
from gymfleet_trainer.learning.sft_update import SftUpdater
from gymfleet_trainer.model.adapted_policy import AdaptedPolicy
from gymfleet_trainer.model.adapters import ADAPTER
from gymfleet_trainer.model.batching import TrainSequence, sequences_from_trajectory
from gymfleet_trainer.model.files import GENERATION, READING, keep_files
from gymfleet_trainer.model.judge_model import JudgeModel
from gymfleet_trainer.model.optimizer import masters_of
from gymfleet_trainer.model.policy_model import PolicyModel, Reference
from gymfleet_trainer.model.streaming import streamed
from gymfleet_trainer.model.temperatures import pack_by_temperature
from gymfleet_trainer.model.weight_files import write_model
from gymfleet_trainer.publish.probe import Parity, compare
from gymfleet_trainer.run.groups import Group

MODEL: Final = "model"
_REFERENCE: Final = "reference"
_MICROBATCH_TOKENS: Final = 8192
_PARITY_SEQUENCES: Final = 32


ModelT = TypeVar("ModelT", bound=PolicyModel)


class LocalLearner:
    """The learner of this process, alone or as one of several ranks that make the same calls at the same time.

    Args:
        recipe: the recipe of the run.
        source: the weights to start from, a directory or a hub id; its tokenizer is saved with every model.
        references: where a stage keeps the reference policy of its KL term, in a folder named after the stage.
        ranks: the ranks that share the model. The first of them writes what is saved.
    """

    def __init__(self, recipe: Recipe, source: str, references: Path, ranks: Ranks | None = None) -> None:
        self._recipe = recipe
        self._source = source
        self._images = LazyReader(source)
        self._references = references
        self._ranks = ranks
        self._device = device_of(recipe.trainer_device)
        if recipe.trainer.cpu_offload and ranks is None and self._device.type != "cpu":
            self._ranks = Ranks.alone()  # the weights of a single process too come to its GPU layer by layer
        self._masters: torch.dtype | None = None
        """The dtype in which the policy's weights are held; None for the dtype of the trainer, or float32."""
        torch.manual_seed(recipe.seed)
        disable_progress_bar()  # one bar per saved version would flood the log
        self._model = self._load(source) if recipe.model.lora is None else self._adapting(source, recipe.model.lora)
        self._stage = ""
        self._training: Training | None = None
        self._previous: Path | None = None
        self._sft: SftUpdater | None = None
        self._rl: UpdateEngine | None = None
        self._reward: RewardUpdater | None = None
        self._novelty: Novelty | None = None
        self._restored: dict[str, Any] = {}
        self._refreshed: Reference | None = None
        """The reference policy of the loaded checkpoint, where it was refreshed since the start of the stage."""
        self._writing: BackgroundWrite | None = None
        self._checked_version = -1

    @property
    def vocab_size(self) -> int:
        """Return the size of the vocabulary; every token id is smaller."""
        return int(self._model.config.vocab_size)

    # --- training

    def start_from(self, model: Path | None) -> None:
        """Replace the weights by those that an earlier stage left in a directory, or by the run's initial ones."""
        self._stand_still()
        if isinstance(self._model, AdaptedPolicy):
            self._model.load_adapter(model)
        else:
            self._model = self._load(self._source if model is None else str(model))

    def begin(self, stage: str, training: Training, previous: Path | None = None) -> None:
        """See `Learner`."""
        self._stand_still()
        self._stage, self._training, self._previous = stage, training, previous
        self._sft = self._rl = self._reward = self._novelty = None
        if self._restored.get("stage") != stage:
            self._restored, self._refreshed = {}, None
        if not isinstance(training, RewardModelOptions):  # which leaves the policy as it is
            self._hold_in(masters_of(training.optimizer))

    def end(self) -> None:
        """Drop the stage's optimiser."""
        self._stage, self._training, self._previous = "", None, None
        self._sft = self._rl = self._reward = self._novelty = None
        self._restored, self._refreshed = {}, None

    def release_memory(self) -> None:
        """See `Learner`. The CPU's allocator does so by itself."""
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def sequences(
        self, trajectories: Sequence[ScoredTrajectory], roles: Sequence[str] | None = None
    ) -> list[TrainSequence]:
        """Return demonstrations as training sequences, with a loss only on the tokens of these roles, or on all."""
        rows = (row for scored in trajectories for row in sequences_from_trajectory(scored, roles=roles))
        return self._images.rows(rows)

    def sft_epoch(self, sequences: list[TrainSequence], epoch: int) -> dict[str, Any]:
        """Make one pass over the demonstrations, in an order that depends only on the seed, stage and `epoch`."""
        options = self._training
        if not isinstance(options, SupervisedOptions):
            raise TypeError("no stage that imitates was begun")
        self._stand_still()
        if self._sft is None:
            self._sft = SftUpdater(self._model, options, num_tokens=sum(len(s.token_ids) for s in sequences))
            if "sft" in self._restored:
                self._sft.load_state_dict(self._restored.pop("sft"))
        order = random.Random(f"{self._recipe.seed}/{self._stage}/{epoch}")
        return asdict(self._sft.sft_epoch(sequences, options.tokens_per_batch, order))

    def update(self, groups: Sequence[Group], staleness: Callable[[int], int | None]) -> dict[str, Any]:
        """Train on whole groups. `staleness` returns the number of weight changes since a policy version."""
        engine = self._engine()
        episodes: list[list[ScoredTrajectory]] = [list(group.trajectories) for group in groups]
        told: dict[str, Any] = {}
        if self._novelty is not None:
            episodes, told = self._novelty.rewarded(episodes)
        with blamed(engine.algorithm):
            # Count by age, not by version number: after a restart the same weights get a different number.
            samples = [
                [Sample(scored, staleness(scored.trajectory.policy.version_min) or 0, self._roles) for scored in group]
                for group in episodes
            ]
            rows = [row for group in samples for row in engine.algorithm.rows(group)]
            return engine.update(self._images.rows(rows)) | told

    def miss_update(self) -> None:
        """See `Learner`."""
        self._engine().miss_batch()

    def update_rows(self, rows: list[TrainSequence]) -> dict[str, Any]:
        """Train, with the stage's algorithm, on one batch of rows that the stage made itself."""
        self._stand_still()
        engine = self._engine()
        with blamed(engine.algorithm):
            return engine.update(self._images.rows(rows))

    def reward_epoch(self, rows: list[TrainSequence], epoch: int) -> dict[str, Any]:
        """Make one pass of a reward model over its rows, in an order that depends on the same as in `sft_epoch`."""
        self._stand_still()
        return self._reward_model().epoch(rows, random.Random(f"{self._recipe.seed}/{self._stage}/{epoch}"))

    def reward_numbers(self, rows: list[TrainSequence]) -> list[list[float]]:
        """Return the reward model's numbers for each row."""
        return self._reward_model().numbers(rows)

    # --- parity with the engine

    def sampled_logprobs(self, prompts: list[list[int]], samples: list[list[int]]) -> list[list[float]]:
        """Return the log-probabilities, at temperature 1, of each sample's tokens after its prompt.

        They are computed with the weights as they are published.
        """
        sequences = [
            unweighted([*prompt, *sample], len(prompt), str(index))
            for index, (prompt, sample) in enumerate(zip(prompts, samples, strict=True))
        ]
        rows = self._published_logprobs(sequences, temperature=1.0)
        return [row[len(prompt) :] for row, prompt in zip(rows, prompts, strict=True)]

    def batch_parity(self, trajectories: Sequence[ScoredTrajectory], version: int) -> Parity | None:
        """Return the parity over tokens sampled from exactly `version`, the live one; once per version.

        Returns None if this version was checked before, if no token was sampled
        from it, or if the sampling truncates the distribution: the engine's
        log-probabilities are then of a different distribution than the policy's.
        """
        sampling = self._recipe.rollout.sampling
        if version == self._checked_version or not _is_plain(sampling):
            return None
        chosen = [
            scored
            for scored in trajectories
            if any(own_tokens(turns, version) for turns in scored.trajectory.sequences())
        ]
        if not chosen:
            return None
        self._checked_version = version
        chosen = chosen[:: -(-len(chosen) // _PARITY_SEQUENCES)]
        rows = self._published_logprobs(self.sequences(chosen), temperature=sampling.temperature)
        ours: list[list[float]] = []
        theirs: list[list[float]] = []
        for turns, row in zip(
            (turns for scored in chosen for turns in scored.trajectory.sequences()), rows, strict=True
        ):
            for start, logprobs in own_tokens(turns, version):
                ours.append(row[start : start + len(logprobs)])
                theirs.append(logprobs)
        return compare(ours, theirs)

    def _published_logprobs(self, sequences: Sequence[TrainSequence], *, temperature: float) -> list[list[float]]:
        """Return `_logprobs` under the weights as they are published, which are those of the engines."""
        if self._ranks is not None and self._model.to_be_rounded(self._published_dtype):
            self._stand_still()  # FSDP2 holds on to its shards, which are therefore rounded in place
        with self._model.rounded(self._published_dtype):
            return self._logprobs(sequences, temperature=temperature)

    @torch.no_grad()
    def _logprobs(self, sequences: Sequence[TrainSequence], *, temperature: float) -> list[list[float]]:
        """Return one value per token for each sequence; 0 on tokens that the model did not write.

        `temperature` is for sequences that name none.
        """
        rows: list[list[float]] = [[] for _ in sequences]
        # Every rank computes all of it: this is little work, and rarely done.
        for packed in pack_by_temperature(sequences, _MICROBATCH_TOKENS, default=temperature):
            batch = packed.to(self._device)
            logprobs = self._model.token_logprobs(batch, temperature=batch.temperature).logprobs.cpu()
            for place, part in zip(batch.indices, torch.split(logprobs, list(batch.lengths)), strict=True):
                rows[place] = part.tolist()
        return rows

    # --- on disk

    def save_weights(self, directory: Path) -> None:
        """Write the weights that the engine loads, in its dtype: the model, or with `[model.lora]` only the adapter."""
        if isinstance(self._model, AdaptedPolicy):
            self._model.save_adapter(directory, dtype=self._published_dtype)
        else:
            model, dtype = self._model.hf, self._published_dtype
            write_model(
                directory, model, streamed(model, dtype, self._ranks), dtype,
                writes=self._writes, bucket_bytes=self._recipe.publish.bucket_mib << 20,
            )  # fmt: skip
            self._keep(directory, GENERATION)

    def save_model(self, directory: Path) -> None:
        """Write weights, config and tokenizer, as a model that transformers can load from `directory`.

        With `[model.lora]` that is the merged model; the adapter lies in a directory inside it.
        """
        self._model.save_pretrained(directory)
        if isinstance(self._model, AdaptedPolicy):
            self._model.save_adapter(directory / ADAPTER)
        self._keep(directory, GENERATION)
        self._keep(directory, READING)

    def save_reward_model(self, directory: Path) -> None:
        """Write the reward model, its tokenizer and a note of its template, as the reward service loads them.

        For a judge, write the files that a server of language models loads.
        """
        self._reward_model().save_pretrained(directory)
        writes_text = isinstance(self._training, GenerativeJudgeOptions)
        self._keep(directory, GENERATION + READING if writes_text else READING)
        if self._writes and not writes_text:
            Transcripts(directory).note(directory)

    def _keep(self, directory: Path, patterns: tuple[str, ...]) -> None:
        if self._writes:
            keep_files(self._source, directory, patterns)

    def save_checkpoint(self, directory: Path) -> None:
        """See `Learner`."""
        self.begin_checkpoint(directory)
        self.finish_checkpoint()

    def begin_checkpoint(self, directory: Path) -> None:
        """See `Learner`."""
        self._stand_still()
        parts = {"sft": self._sft, "rl": self._rl, "reward": self._reward, "novelty": self._novelty}
        states: dict[str, Any] = {**random_states(self._device), "stage": self._stage, **self._restored}
        states |= {name: part.state_dict() for name, part in parts.items() if part is not None}
        refreshed = self._refreshed
        if self._rl is not None:
            refreshed = self._rl.reference if self._rl.reference_is_refreshed else None
        models: dict[Path, Kept] = {directory / MODEL: self._model}
        if refreshed is not None:
            models[directory / _REFERENCE] = refreshed
        files = READING if isinstance(self._model, AdaptedPolicy) else GENERATION + READING
        kept = begin_kept(
            models,
            self._ranks,
            beside=lambda: keep_files(self._source, directory / MODEL, files),
            states=(directory, states),
        )
        self._writing = BackgroundWrite(kept.write, kept.sync)

    def finish_checkpoint(self) -> float:
        """See `Learner`."""
        writing = self._writing
        if writing is None:
            raise TypeError("no checkpoint was begun")
        seconds: list[float] = []
        try:
            together(self._ranks, lambda: seconds.append(writing.result()))
        finally:
            self._writing = None  # not before the write is over: an update in another thread waits for it
        return seconds[0]

    @property
    def finishes_apart(self) -> bool:
        """See `Learner`."""
        return self._ranks is None

    @property
    def waited_s(self) -> float:
        """See `Learner`."""
        return 0.0 if self._rl is None else self._rl.waited_s

    def _stand_still(self) -> None:
        """Wait for any checkpoint that is being written from the weights and moments, as they are about to change."""
        writing = self._writing  # another thread may finish it
        if writing is not None:
            writing.wait()

    def load_checkpoint(self, directory: Path) -> None:
        """Load weights, optimiser and random state from a checkpoint."""
        self.start_from(directory / MODEL)
        self._sft = self._rl = self._reward = self._novelty = None
        self._restored = read_states(directory, self._ranks)
        restore_random_states(self._restored, self._device)
        refreshed = directory / _REFERENCE
        self._refreshed = self._loaded_reference(refreshed) if refreshed.is_dir() else None

    @property
    def _roles(self) -> tuple[str, ...] | None:
        training = self._training
        return None if training is None or isinstance(training, RewardModelOptions) else training.roles

    @property
    def _published_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self._recipe.inference.dtype)
        return dtype

    @property
    def _writes(self) -> bool:
        return self._ranks is None or self._ranks.first

    def _load(self, path: str, *, frozen: bool = False) -> PolicyModel:
        return self._loaded(PolicyModel, path, self._masters, frozen=frozen)

    def _adapting(self, path: str, section: LoraSection) -> AdaptedPolicy:
        return AdaptedPolicy.adapting(
            path,
            section,
            seed=self._recipe.seed,
            dtype=self._recipe.trainer_dtype,
            device=self._device,
            gradient_checkpointing=self._recomputes,
            compiled=self._recipe.trainer.compile,
            ranks=self._ranks,
            cpu_offload=self._recipe.trainer.cpu_offload,
        )

    def _loaded_reference(self, directory: Path) -> Reference:
        """Load what `_save_reference` wrote, or a checkpoint of it."""
        if isinstance(self._model, AdaptedPolicy):
            return self._model.reference(directory)
        return self._load(str(directory), frozen=True)

    @property
    def _recomputes(self) -> bool:
        recomputes = self._recipe.trainer.gradient_checkpointing
        return self._device.type == "cuda" if recomputes == "auto" else recomputes

    def _loaded(self, kind: type[ModelT], path: str, masters: torch.dtype | None, *, frozen: bool = False) -> ModelT:
        return kind.from_pretrained(
            path,
            dtype=self._recipe.trainer_dtype,
            device=self._device,
            masters=masters,
            gradient_checkpointing=self._recomputes,
            compiled=self._recipe.trainer.compile,
            ranks=self._ranks,
            cpu_offload=self._recipe.trainer.cpu_offload,
            frozen=frozen,
        )

    def _hold_in(self, masters: torch.dtype | None) -> None:
        """Hold the policy's weights, and those of its reference, in another dtype, rounded to the nearest."""
        if masters == self._masters or isinstance(self._model, AdaptedPolicy):  # adapters say it themselves
            return
        self._masters = masters
        self._model = self._held(self._model)
        if isinstance(self._refreshed, PolicyModel):
            self._refreshed = self._held(self._refreshed, frozen=True)

    def _held(self, model: PolicyModel, *, frozen: bool = False) -> PolicyModel:
        # FSDP2 keeps the dtype that it saw in the first pass, so the model is loaded once more.
        place = self._references / ".held"
        if self._writes:
            shutil.rmtree(place, ignore_errors=True)  # what a killed process left
        self._save_reference(place, model)
        held = self._load(str(place), frozen=frozen)
        if self._ranks is not None:
            self._ranks.agree(None)  # no rank removes it before all have loaded it
        if self._writes:
            shutil.rmtree(place)
        return held

    def _reward_model(self) -> RewardUpdater:
        options = self._training
        if not isinstance(options, RewardModelOptions):
            raise TypeError("no stage that trains a reward model was begun")
        if self._reward is None:
            previous = None if "reward" in self._restored else self._previous
            try:
                self._reward = self._new_reward_model(options, previous)
            except (OSError, ValueError, UnsupportedModel) as error:
                if previous is None:
                    raise
                told = " ".join(str(error).split())
                raise RunDirectoryError(
                    f"stages.{self._stage}.start_from: {previous} is no model: {told:.200}"
                ) from None
            if "reward" in self._restored:
                self._reward.load_state_dict(self._restored.pop("reward"))
        return self._reward

    def _new_reward_model(self, options: RewardModelOptions, previous: Path | None) -> RewardUpdater:
        if isinstance(options, GenerativeJudgeOptions):
            # Loaded once more: a copy in memory would not keep the ranks' shards, nor weights that are tied.
            source, masters = str(previous or self._kept_policy(whole=True)), masters_of(options.optimizer)
            return RewardUpdater(self._loaded(JudgeModel, source, masters), options)
        return RewardUpdater(self._model, options, previous)

    def _engine(self) -> UpdateEngine:
        """Create the engine at the first update, when the weights are those of the reference policy."""
        rl = self._training
        if not isinstance(rl, ReinforceOptions | PreferenceUpdates):
            raise TypeError("no stage that learns by an algorithm was begun")
        if self._rl is None:
            sampling = self._recipe.rollout.sampling
            exact = self._recipe.inference.dtype == self._recipe.trainer_dtype == "float32" and _is_plain(sampling)
            algorithm = algorithm_of(rl, f"stages.{self._stage}")
            self._rl = UpdateEngine(
                self._model,
                algorithm,
                rl,
                seed=self._recipe.seed,
                temperature=sampling.temperature if isinstance(rl, ReinforceOptions) else 1.0,
                reference=self._reference_policy() if Need.REFERENCE in algorithm.needs else None,
                sampler_is_exact=exact,
                before_change=self._stand_still,
            )
            if "rl" in self._restored:
                self._rl.load_state_dict(self._restored.pop("rl"))
            if isinstance(rl, ReinforceOptions) and rl.exploration.novelty is not None:
                self._novelty = Novelty(rl.exploration.novelty)
                self._novelty.load_state_dict(self._restored.pop("novelty", {}))
        return self._rl

    def _reference_policy(self) -> Reference:
        if self._refreshed is not None:
            refreshed, self._refreshed = self._refreshed, None
            return refreshed
        if isinstance(self._training, PreferenceUpdates) and (given := self._training.reference) is not None:
            return self._given_reference(given)
        return self._loaded_reference(self._kept_policy())

    def _kept_policy(self, *, whole: bool = False) -> Path:
        """Return the directory of the policy (its adapter, unless it must be whole) as it was when the stage began.

        Raises RunDirectoryError if it is missing, and the policy has been trained by the stage.
        """
        place = self._references / self._stage
        exists = place.is_dir()
        if not (exists if self._ranks is None else self._ranks.agree(exists)):
            if "rl" in self._restored:
                raise RunDirectoryError(
                    f"{place} is missing, the policy as it was when the stage began, and the checkpoint's is another: "
                    "restore it, or resume from a checkpoint of an earlier stage"
                )
            self._save_reference(place, self._model, whole=whole)
        return place

    def _given_reference(self, path: str) -> PolicyModel:
        try:
            reference = self._load(path, frozen=True)
        except (OSError, ValueError) as error:
            told = " ".join(str(error).split())
            raise RunDirectoryError(f"stages.{self._stage}.reference: {path} is no model: {told:.200}") from None
        if (known := int(reference.config.vocab_size)) != self.vocab_size:
            raise RunDirectoryError(
                f"stages.{self._stage}.reference: {path} has {known} tokens and the policy has {self.vocab_size}: a "
                "reference must have the policy's vocabulary"
            )
        return reference

    def _save_reference(self, place: Path, model: PolicyModel, *, whole: bool = False) -> None:
        temporary = place.with_name(f".{place.name}.writing")
        if self._writes:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        if whole and isinstance(model, AdaptedPolicy):
            model.save_pretrained(temporary)  # merged
        else:
            write_kept({temporary: model}, self._ranks)
        if self._writes:
            os.sync()
            temporary.rename(place)
        if self._ranks is not None:
            self._ranks.agree(None)  # no rank loads it before it is there


def _is_plain(sampling: Sampling) -> bool:
    return sampling.temperature > 0 and sampling.top_p == 1.0 and sampling.top_k <= 0
