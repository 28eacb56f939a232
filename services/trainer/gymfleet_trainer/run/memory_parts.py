"""The memory of a trainer's worker and of an engine: the parts of a memory plan."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.recipe_sections import LoraSection
from gymfleet_contracts.stages import is_path
from torch import nn

from gymfleet_trainer.learning.algorithm import Algorithm, Need
from gymfleet_trainer.learning.options import (
    BradleyTerryOptions,
    GenerativeJudgeOptions,
    ReinforceOptions,
    RewardModelOptions,
)
from gymfleet_trainer.learning.plugins import ALGORITHMS, algorithm_of
from gymfleet_trainer.learning.preferences import Paired
from gymfleet_trainer.learning.sft_update import TOKENS_PER_MICROBATCH
from gymfleet_trainer.model.families import decoder_of
from gymfleet_trainer.model.held import Held, held, meta_adapted, meta_policy, rounded_bytes
from gymfleet_trainer.model.memory import Microbatch, ModelSize, microbatch_bytes
from gymfleet_trainer.model.microbatches import MAX_PARAMETERS
from gymfleet_trainer.model.optimizer import masters_of
from gymfleet_trainer.run.devices import GIB, Devices
from gymfleet_trainer.stage import Stage

_FRAGMENTED: Final = 0.15
"""Memory that glibc keeps between blocks of activations on a CPU, as a share of the activations: 2 to 17 % were seen.
It keeps none where `MALLOC_MMAP_THRESHOLD_` is 65536, and updates of small models then take a third longer."""
_FRAGMENTED_BY_ADAPTERS: Final = 0.45
"""The same with adapters: their narrow products are kept until the backward pass, and pin the memory around them.
Where tensors of 585 MiB were alive, 850 were taken; on another machine, 1,180 for 548."""


@dataclass(frozen=True, slots=True)
class Part:
    """One item in the memory of a process."""

    what: str
    size_bytes: int
    helps: str
    """A change that makes it smaller."""


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """The memory that a worker holds."""

    on_device: tuple[Part, ...]
    """The parts on the device where it computes."""
    in_main_memory: tuple[Part, ...] = ()
    """The parts in main memory, next to a GPU."""
    resting_bytes: int = 0
    """Bytes on the device between updates, while engines that share it are awake."""

    @property
    def size_bytes(self) -> int:
        """Return the sum of the parts on the device."""
        return sum(part.size_bytes for part in self.on_device)


@dataclass(frozen=True, slots=True)
class Counter:
    """The basis from which all parts are counted."""

    recipe: Recipe
    devices: Devices
    config: Any
    size: ModelSize
    stored: torch.dtype
    """The dtype of the model's files."""
    threads: int
    known: dict[tuple[object, ...], int] = field(default_factory=dict)
    """Bytes of activations that were counted already."""

    @property
    def on_gpu(self) -> bool:
        """Return whether the trainer computes on GPUs."""
        return self.devices.are_gpus and self.recipe.trainer_device != "cpu"

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the trainer's computation."""
        found: torch.dtype = getattr(torch, self.recipe.trainer_dtype)
        return found

    def microbatch(self, options: Any) -> Microbatch:
        """Return the largest micro-batch of a stage."""
        tokens = int(getattr(options, "tokens_per_microbatch", TOKENS_PER_MICROBATCH))
        longest = self._longest(options)
        # A longer row is a micro-batch of its own, and so are the two rows of a pair, which stay together.
        return Microbatch(max(tokens, longest * (2 if _compares(options) else 1)), longest)

    def _longest(self, options: Any) -> int:
        """Return the tokens of a stage's longest row: those of the recipe's own episodes have a limit of their own."""
        data = getattr(options, "data", ())
        from_files = any(map(is_path, (data,) if isinstance(data, str) else data))
        if from_files or isinstance(options, RewardModelOptions):  # which reads transcripts of whole episodes
            return self.recipe.inference.max_model_len
        return max(self.recipe.limits_of(env).max_context_tokens for env in self.recipe.environments)

    def activations(
        self, options: Any, *, recompute: bool, masters: torch.dtype | None = None, adapted: bool | None = None
    ) -> int:
        """Return the bytes of a stage's largest micro-batch, for the policy or for a model that is trained whole."""
        lora = self._lora_of(options) if adapted is not False else None
        key = (self.microbatch(options), recompute, masters, lora)
        if key not in self.known:
            self.known[key] = microbatch_bytes(
                self.config, self.microbatch(options), dtype=self.dtype, on_gpu=self.on_gpu, recompute=recompute,
                masters=masters, lora=lora,
            )  # fmt: skip
        return self.known[key]

    def worker(self, stage: Stage[Any]) -> WorkerParts:
        """Return the memory that one worker holds in an update of a stage."""
        options, workers = stage.options, self.recipe.trainer.workers
        algorithm = algorithm_of(options, stage.table) if hasattr(options, "algorithm") else None
        resident = list(self._resident(stage, algorithm))
        sharded = workers > 1 or (self.recipe.trainer.cpu_offload and self.on_gpu)
        gathered = (2 * self.size.largest_layer + self.size.outer) * _at_least_float32(self.dtype).itemsize
        layers = [Part("gathered layers", gathered, "a smaller model")] if sharded else []
        passing = [*layers, *self._of_microbatches(options, algorithm)]
        offered = list(self._offered())
        kept = sum(part.size_bytes for part in offered)
        if self.recipe.trainer.cpu_offload and self.on_gpu:
            return WorkerParts((*offered, *passing), tuple(resident), resting_bytes=kept)
        gradients = sum(part.size_bytes for part in resident if part.what == "gradients")
        free = gradients + sum(part.size_bytes for part in passing)
        more = [] if isinstance(options, RewardModelOptions) else list(self._while_publishing(options, free))
        resting = self._resting(options, resident) + kept
        parts = (*resident, *offered, *passing, *more)
        return WorkerParts((*parts, *self._while_loading(parts)), resting_bytes=resting)

    def _offered(self) -> Iterator[Part]:
        """Yield the version that the trainer keeps on its GPU for engines to load: see `CudaIpc`."""
        if self.on_gpu and self.recipe.publish.transfer == "cuda_ipc" and self.recipe.model.lora is None:
            item = getattr(torch, self.recipe.inference.dtype).itemsize
            yield Part("version for engines", self.size.total * item, 'publish.transfer = "shared_memory"')

    def _resting(self, options: Any, resident: Sequence[Part]) -> int:
        """Return the bytes of `resident` that stay when updates are over, plus those that publishing takes."""
        if isinstance(options, ReinforceOptions):  # it plays between updates, and keeps all that they need again
            stays = [part for part in resident if part.what != "gradients"]
        else:
            policy = "policy" if isinstance(options, RewardModelOptions) else "weights"
            stays = [part for part in resident if part.what == policy]
        return sum(part.size_bytes for part in stays) + self._rounded(options)

    def _resident(self, stage: Stage[Any], algorithm: Algorithm[Any] | None) -> Iterator[Part]:
        """Yield the parts that stay from one micro-batch to the next."""
        options, workers = stage.options, self.recipe.trainer.workers
        helps = "more trainer.workers, which share it" if self.on_gpu else "a smaller model"
        masters, lora = masters_of(options.optimizer), self.recipe.model.lora
        needs = frozenset[Need]() if algorithm is None else algorithm.needs
        if isinstance(options, RewardModelOptions):
            yield Part("policy", held(self._policy(None), None, workers=workers).weights, helps)
            whole = meta_policy(self.config, masters or _at_least_float32(self.dtype))
            own = whole if isinstance(options, GenerativeJudgeOptions) else decoder_of(whole)
        else:
            own = self._policy(masters)
        state = held(own, options.optimizer, workers=workers)
        yield Part("weights", state.weights + self._first_adapter(own), helps)
        yield Part("gradients", state.gradients, helps)
        less = "" if options.optimizer.kind != "adamw" else ', or optimizer.kind = "adamw_8bit"'
        yield Part("optimiser", state.optimizer, helps + less)
        given = getattr(options, "reference", None) is not None
        if Need.REFERENCE in needs and (lora is None or given):  # adapters have it in the weights that they have
            reference = meta_policy(self.config, (masters if lora is None else None) or _at_least_float32(self.dtype))
            size = held(reference, None, workers=workers).weights
            yield Part("reference", size, f"no KL term in {stage.table}, or [model.lora]")
        if algorithm is not None and Need.CRITIC in needs:
            critic = self._critic(algorithm, masters if lora is None else None).total
            yield Part("critic with optimiser", critic, "an algorithm without a critic")

    def _policy(self, masters: torch.dtype | None) -> nn.Module:
        lora = self.recipe.model.lora
        found: nn.Module = (
            meta_policy(self.config, masters or _at_least_float32(self.dtype))
            if lora is None
            else meta_adapted(self.config, lora, self.dtype)
        )
        return found

    def _critic(self, algorithm: Algorithm[Any], masters: torch.dtype | None) -> Held:
        section = algorithm.critic_optimizer
        dtype = masters_of(section) or masters or _at_least_float32(self.dtype)
        return held(decoder_of(meta_policy(self.config, dtype)), section, workers=self.recipe.trainer.workers)

    def _lora_of(self, options: Any) -> LoraSection | None:
        return None if isinstance(options, RewardModelOptions) else self.recipe.model.lora

    def _first_adapter(self, policy: nn.Module) -> int:
        """Return the bytes of the initial adapter, which every process on a CPU keeps whole."""
        if self.on_gpu:
            return 0
        return sum(one.nbytes for name, one in policy.named_parameters() if ".lora_" in name and one.requires_grad)

    def _while_loading(self, parts: Sequence[Part]) -> Iterator[Part]:
        """Yield the main memory that loading the weights takes beyond that of an update: their files are mapped.

        Several workers read only their rows. What is trained whole mostly has moments that take more.
        """
        if self.on_gpu or self.recipe.trainer.workers > 1:
            return
        files = self.size.total * self.stored.itemsize
        loading = files + next(part.size_bytes for part in parts if part.what in ("weights", "policy"))
        if (more := loading - sum(part.size_bytes for part in parts)) > 0:
            yield Part("more while loading", more, "a model whose files are in bfloat16")

    def _while_publishing(self, options: Any, free: int) -> Iterator[Part]:
        """Yield the memory that publishing takes beyond the `free` bytes that an update leaves to it."""
        copied = self._rounded(options)
        if copied > free:
            yield Part("more while publishing", copied - free, f'trainer_dtype = "{self.recipe.inference.dtype}"')

    def _rounded(self, options: Any) -> int:
        """Return the bytes of the weights that are compared as they are published, besides those that are held."""
        published: torch.dtype = getattr(torch, self.recipe.inference.dtype)
        masters = None if isinstance(options, RewardModelOptions) else masters_of(options.optimizer)
        policy, workers = self._policy(masters), self.recipe.trainer.workers
        return rounded_bytes(policy, published, self.dtype, workers=workers)

    def _of_microbatches(self, options: Any, algorithm: Algorithm[Any] | None) -> Iterator[Part]:
        microbatch, masters = self.microbatch(options), masters_of(options.optimizer)
        asked = self.recipe.trainer.gradient_checkpointing
        recompute = self.on_gpu if asked == "auto" else asked
        once = self.activations(options, recompute=recompute, masters=masters)
        if algorithm is not None and Need.CRITIC in algorithm.needs:
            of_critic = masters_of(algorithm.critic_optimizer)
            once += self.activations(options, recompute=recompute, masters=of_critic, adapted=False)
        width = self._width(options)
        helps = f"fewer tokens_per_microbatch than {microbatch.tokens}, or a shorter max_context_tokens"
        yield Part(f"{width} x activations" if width > 1 else "activations", once * width, helps)
        if not self.on_gpu:
            share = _FRAGMENTED if self._lora_of(options) is None else _FRAGMENTED_BY_ADAPTERS
            yield Part("lost between blocks", int(once * width * share), helps)
        if width > 1:
            trained = held(self._policy(masters), options.optimizer).gradients
            yield Part("their gradients", trained * width, "a single thread of torch")

    def _width(self, options: Any) -> int:
        """Return how many micro-batches run at a time: see `PolicyModel.executor`."""
        lora = self._lora_of(options)
        small = (self.size.trained if lora is None else self.size.total) <= MAX_PARAMETERS
        alone = not self.on_gpu and small and self.recipe.trainer.workers == 1
        return self.threads if alone and (lora is None or not lora.dropout) else 1

    def engine(self) -> list[Part]:
        """Return the parts that one engine holds."""
        sizes, lora = self.recipe.inference, self.recipe.model.lora
        item = getattr(torch, sizes.dtype).itemsize
        text = self.config.get_text_config()
        wide = 4 * text.hidden_size + 2 * int(getattr(text, "intermediate_size", None) or text.hidden_size)
        batch = sizes.max_num_batched_tokens * wide * item + 3 * sizes.max_num_seqs * text.vocab_size * 4
        smaller = 'inference.dtype = "bfloat16"' if item > 2 else "a smaller model"
        parts = [Part("weights", self.size.total * item, smaller)]
        if lora is not None:
            parts.append(Part("adapters", lora.max_loras * self._adapter_numbers(lora.rank) * item, "a smaller rank"))
        parts.append(Part("KV cache", int(sizes.kv_cache_gib * GIB), "a smaller inference.kv_cache_gib"))
        # A version is loaded in place, layer by layer, while the engine computes nothing.
        loaded = 0 if lora is not None else max(self.size.largest_layer, self.size.outer) * item
        return [*parts, Part("batches", max(batch, loaded), "fewer inference.max_num_batched_tokens")]

    def _adapter_numbers(self, rank: int) -> int:
        """Return the size of an adapter in vLLM, which reserves room in all linear layers whatever the recipe names."""
        layers = decoder_of(meta_policy(self.config, self.dtype)).layers
        linears = [one for one in layers.modules() if isinstance(one, nn.Linear)]
        return sum(rank * (one.in_features + one.out_features) for one in linears)

    def token_bytes(self) -> int:
        """Return the bytes that one token takes in the KV cache."""
        text, dtype = self.config.get_text_config(), getattr(torch, self.recipe.inference.dtype)
        head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        return int(2 * text.num_hidden_layers * heads * head * dtype.itemsize)


def _compares(options: Any) -> bool:
    """Return whether a stage learns from pairs, whose two rows are in one micro-batch."""
    if isinstance(options, GenerativeJudgeOptions):
        return "judge_pairs" in options.components
    if isinstance(options, BradleyTerryOptions):
        return True
    return hasattr(options, "algorithm") and issubclass(ALGORITHMS.find(options.algorithm), Paired)


def resident_bytes() -> int:
    """Return the resident memory of this process, which has loaded the same as a trainer."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - no file of ours
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
