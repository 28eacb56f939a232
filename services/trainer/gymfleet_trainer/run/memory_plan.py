"""What of a run lies where, before it is started: counted from recipe and config, without any weights."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import torch
from gymfleet_contracts.recipe import Recipe, RecipeError

from gymfleet_trainer.learning.algorithm import Need
from gymfleet_trainer.learning.options import GenerativeJudgeOptions, RewardModelOptions, SupervisedOptions
from gymfleet_trainer.learning.plugins import algorithm_of
from gymfleet_trainer.learning.sft_update import TOKENS_PER_MICROBATCH
from gymfleet_trainer.model.families import config_of, empty_model, examine
from gymfleet_trainer.model.memory import Microbatch, ModelSize, microbatch_bytes
from gymfleet_trainer.model.microbatches import MAX_PARAMETERS
from gymfleet_trainer.model.optimizer import OptimizerOptions
from gymfleet_trainer.model.scratch import scratch_config
from gymfleet_trainer.run.devices import GIB, Devices
from gymfleet_trainer.run.plan import stages_of
from gymfleet_trainer.stage import Stage

_CUDA_CONTEXT: Final = 1 << 30
"""What a process takes on a GPU without any tensor: its context, libraries and communicators. About that much."""
_ENGINE_PROCESS: Final = 3 << 29
"""The resident memory of vLLM on a CPU without weights, cache and batches. About that much."""
_FRAGMENTED: Final = 0.15
"""What glibc keeps between blocks of activations on a CPU, as a share of these: seen were 2 to 17 %."""
_USABLE: Final = 0.95
"""Of a GPU's memory; the rest is lost between blocks."""
_TRAINED_COPIES: Final = (("weights", 1), ("gradients", 1), ("optimiser", 2))
"""Of each trained weight in the weights' dtype: itself, its gradient, and AdamW's two moments."""


@dataclass(frozen=True, slots=True)
class Part:
    """One thing in the memory of a process."""

    what: str
    size_bytes: int
    helps: str
    """What makes it smaller."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that needs memory of a device."""

    name: str
    parts: tuple[Part, ...]

    @property
    def size_bytes(self) -> int:
        """Return the sum of its parts."""
        return sum(part.size_bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class Device:
    """A device and what lies on it."""

    name: str
    size_bytes: int
    processes: tuple[Process, ...]

    @property
    def used_bytes(self) -> int:
        """Return what its processes need together."""
        return sum(process.size_bytes for process in self.processes)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where everything lies, and what does not fit."""

    model: str
    num_parameters: int
    stage: str
    """The stage of the recipe that needs most; the trainer's parts are those of its updates."""
    devices: tuple[Device, ...]
    notes: tuple[str, ...]
    faults: tuple[str, ...]
    """A line for each device, process or cache that is too small, with what would help."""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Planner:
    """What all parts are counted from."""

    recipe: Recipe
    devices: Devices
    config: Any
    size: ModelSize
    threads: int
    known: dict[tuple[Microbatch, bool], int] = field(default_factory=dict)
    """Bytes of activations that were counted already."""

    @property
    def on_gpu(self) -> bool:
        return self.devices.are_gpus and self.recipe.trainer_device != "cpu"

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.recipe.trainer_dtype)
        return found

    @property
    def held(self) -> int:
        """Bytes of a weight: masters are float32 at least."""
        return torch.promote_types(self.dtype, torch.float32).itemsize

    def microbatch(self, options: Any) -> Microbatch:
        tokens = int(getattr(options, "tokens_per_microbatch", TOKENS_PER_MICROBATCH))
        longest = max(self.recipe.limits_of(env).max_context_tokens for env in self.recipe.environments)
        return Microbatch(max(tokens, longest), longest)  # a longer row is a micro-batch of its own

    def activations(self, microbatch: Microbatch, *, recompute: bool) -> int:
        if (microbatch, recompute) not in self.known:
            self.known[microbatch, recompute] = microbatch_bytes(
                self.config, microbatch, dtype=self.dtype, on_gpu=self.on_gpu, recompute=recompute
            )
        return self.known[microbatch, recompute]

    def trainer_parts(self, stage: Stage[Any]) -> list[Part]:
        """Return what one worker holds in an update of a stage."""
        workers, options = self.recipe.trainer.workers, stage.options
        more = "more trainer.workers, which share it" if self.on_gpu else "a smaller model"
        needs = frozenset[Need]() if not hasattr(options, "algorithm") else algorithm_of(options, stage.table).needs
        trained = self.size.trained * self.held // workers
        parts = []
        if isinstance(options, RewardModelOptions):
            own = self.size.trained if isinstance(options, GenerativeJudgeOptions) else self.size.body
            parts.append(Part("policy", self.size.total * self.held // workers, more))
            trained = own * self.held // workers
        for what, copies in _TRAINED_COPIES:
            frozen = self.size.total - self.size.trained if what == "weights" and not parts else 0
            parts.append(Part(what, trained * copies + frozen * self.held // workers, more))
        if Need.REFERENCE in needs:
            parts.append(Part("reference", self.size.total * self.held // workers, f"no KL term in {stage.table}"))
        if Need.CRITIC in needs:
            critic = sum(copies for _, copies in _TRAINED_COPIES) * self.size.body * self.held // workers
            parts.append(Part("critic with optimiser", critic, "an algorithm without a critic"))
        if workers > 1:
            gathered = (2 * self.size.largest_layer + self.size.outer) * self.held
            parts.append(Part("gathered layers", gathered, "a smaller model"))
        return [*parts, *self._of_microbatches(options, critic=Need.CRITIC in needs)]

    def _of_microbatches(self, options: Any, *, critic: bool) -> Iterator[Part]:
        microbatch = self.microbatch(options)
        asked = self.recipe.trainer.gradient_checkpointing
        recompute = self.on_gpu if asked == "auto" else asked
        once = self.activations(microbatch, recompute=recompute) * (2 if critic else 1)
        few = self.size.trained <= MAX_PARAMETERS
        width = self.threads if not self.on_gpu and few and self.recipe.trainer.workers == 1 else 1
        helps = f"fewer tokens_per_microbatch than {microbatch.tokens}, or a shorter max_context_tokens"
        yield Part(f"{width} x activations" if width > 1 else "activations", once * width, helps)
        if not self.on_gpu:
            yield Part("lost between blocks", int(once * width * _FRAGMENTED), helps)
        if width > 1:
            yield Part("their gradients", self.size.trained * self.held * width, "a single thread of torch")

    def engine_parts(self) -> list[Part]:
        """Return what one engine holds."""
        sizes = self.recipe.inference
        item = torch.empty(0, dtype=getattr(torch, sizes.dtype)).itemsize
        text = self.config.get_text_config()
        wide = 4 * text.hidden_size + 2 * int(getattr(text, "intermediate_size", None) or text.hidden_size)
        batch = sizes.max_num_batched_tokens * wide * item + 3 * sizes.max_num_seqs * text.vocab_size * 4
        return [
            Part("weights", self.size.total * item, 'inference.dtype = "bfloat16"' if item > 2 else "a smaller model"),
            Part("KV cache", int(sizes.kv_cache_gib * GIB), "a smaller inference.kv_cache_gib"),
            Part("batches", batch, "fewer inference.max_num_batched_tokens"),
        ]  # fmt: skip

    def token_bytes(self) -> int:
        """Return what one token takes in the KV cache."""
        text, dtype = self.config.get_text_config(), getattr(torch, self.recipe.inference.dtype)
        head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        return int(2 * text.num_hidden_layers * heads * head * dtype.itemsize)


def memory_plan(recipe: Recipe, devices: Devices, *, threads: int = 1) -> MemoryPlan:
    """Return where everything of a recipe lies on such devices.

    Args:
        recipe: the recipe; of its model the config is read and nothing else.
        devices: what there is.
        threads: threads of torch in a trainer without a GPU, each of which may run a micro-batch.

    Raises:
        UnsupportedModel: the trainer cannot compute the model.
        RecipeError: the recipe has what is not counted yet.
    """
    stages = stages_of(recipe)
    if uncounted := ", ".join(_uncounted(recipe, stages)):
        raise RecipeError(f"{recipe.name}: gymfleet plan does not count {uncounted} yet")
    config, name = _config(recipe)
    plan = _Planner(recipe, devices, config, ModelSize.of(empty_model(config)), threads)
    trained = [(stage, plan.trainer_parts(stage)) for stage in _that_train(stages)]
    stage, parts = max(trained, key=lambda one: sum(part.size_bytes for part in one[1]), default=(None, ()))
    base = _CUDA_CONTEXT if devices.are_gpus else _resident_bytes()
    own = Part("process", base, "nothing")
    workers = [
        Process(f"trainer, worker {rank}", (*parts, own)) for rank in range(recipe.trainer.workers if stage else 0)
    ]
    engine_base = Part("process", _CUDA_CONTEXT if devices.are_gpus else _ENGINE_PROCESS, "nothing")
    engines = [
        Process(f"engine {number}", (*plan.engine_parts(), engine_base)) for number in range(_num_engines(recipe))
    ]
    placed = tuple(_placed(plan, workers, engines))
    return MemoryPlan(
        model=name,
        num_parameters=plan.size.total,
        stage=stage.table if stage is not None else "",
        devices=placed,
        notes=tuple(_notes(plan, stage, len(workers), len(engines))),
        faults=tuple(_faults(plan, placed)),
    )


def _uncounted(recipe: Recipe, stages: Sequence[Stage[Any]]) -> Iterator[str]:
    """Yield what changes how much is held, and is left out of the sums."""
    if recipe.model.lora is not None:
        yield "[model.lora]"
    if recipe.trainer.cpu_offload:
        yield "trainer.cpu_offload"
    for stage in _that_train(stages):
        optimizer = getattr(stage.options, "optimizer", OptimizerOptions())
        if optimizer.kind != "adamw" or optimizer.master_dtype != "float32":
            yield f"the optimiser of {stage.table}"


def _config(recipe: Recipe) -> tuple[Any, str]:
    longest, scratch = recipe.inference.max_model_len, recipe.model.scratch
    if scratch is not None:
        return scratch_config(scratch, longest, scratch.vocab_size), "model.scratch"
    path = str(recipe.model.path)
    examine(path, context=longest)
    return config_of(path), path


def _that_train(stages: Sequence[Stage[Any]]) -> list[Stage[Any]]:
    """Return the stages that train; those that are alike, such as the rounds of a repeat, once."""
    alike = {(stage.table, repr(stage.options)): stage for stage in stages}.values()
    trains = (SupervisedOptions, RewardModelOptions)
    return [stage for stage in alike if isinstance(stage.options, trains) or hasattr(stage.options, "algorithm")]


def _num_engines(recipe: Recipe) -> int:
    urls = recipe.inference.options.get("urls")
    return len(urls) if isinstance(urls, list) and urls else recipe.scale.rollouts


def _placed(plan: _Planner, workers: list[Process], engines: list[Process]) -> Iterator[Device]:
    """Yield the devices: workers take the first, engines those that are left; without any left they share."""
    devices = plan.devices
    on: list[list[Process]] = [[] for _ in range(devices.count)]
    host: list[Process] = []
    for rank, worker in enumerate(workers):
        (on[rank % devices.count] if plan.on_gpu or not devices.are_gpus else host).append(worker)
    first = len(workers) if not host else 0
    free = list(range(first, devices.count)) or list(range(devices.count))
    for number, engine in enumerate(engines):
        on[free[number % len(free)]].append(engine)
    for number, processes in enumerate(on):
        name = f"GPU {number} ({devices.kind})" if devices.are_gpus else "this machine"
        yield Device(name, devices.size_bytes, tuple(processes))


def _faults(plan: _Planner, placed: Sequence[Device]) -> Iterator[str]:
    workers = plan.recipe.trainer.workers
    if plan.on_gpu and workers > plan.devices.count:
        yield f"trainer.workers = {workers}: each takes a GPU, and there are {plan.devices.count}: lower it"
    for device in placed:
        room = int(device.size_bytes * (_USABLE if plan.devices.are_gpus else 1.0))
        if device.used_bytes > room:
            parts = [
                (part, process) for process in device.processes for part in process.parts if part.what != "process"
            ]
            largest, whose = max(parts, key=lambda one: one[0].size_bytes)
            apart = "more GPUs, so that trainer and engines have their own, or " if len(device.processes) > 1 else ""
            yield (
                f"{device.name} has {room / GIB:.1f} GiB, and {device.used_bytes / GIB:.1f} GiB are needed: most are "
                f"{largest.what} of {whose.name}, {largest.size_bytes / GIB:.1f} GiB; what helps: "
                f"{apart if plan.devices.are_gpus else ''}{largest.helps}"
            )
    tokens = int(plan.recipe.inference.kv_cache_gib * GIB) // plan.token_bytes()
    if tokens < (longest := plan.recipe.inference.max_model_len):
        needed = longest * plan.token_bytes() / GIB
        yield (
            f"the KV cache of {plan.recipe.inference.kv_cache_gib:g} GiB holds {tokens:,} tokens, and one sequence may "
            f"have {longest:,}: give inference.kv_cache_gib at least {needed:.2f}, or a shorter max_model_len"
        )


def _notes(plan: _Planner, stage: Stage[Any] | None, num_workers: int, num_engines: int) -> Iterator[str]:
    inference = plan.recipe.inference
    tokens = int(inference.kv_cache_gib * GIB) // plan.token_bytes()
    yield (
        f"the KV cache of an engine holds {tokens:,} tokens: {tokens / inference.max_model_len:.1f} sequences of "
        f"{inference.max_model_len:,}"
    )
    if stage is not None:
        microbatch = plan.microbatch(stage.options)
        both = [plan.activations(microbatch, recompute=recompute) / GIB for recompute in (True, False)]
        yield (
            f"activations of a micro-batch of {microbatch.tokens:,} tokens in rows of {microbatch.length:,}: "
            f"{both[0]:.2f} GiB with recomputation, as on GPUs, and {both[1]:.2f} GiB without"
        )
    if plan.on_gpu and num_workers + num_engines > plan.devices.count:
        yield f"{num_workers} workers and {num_engines} engines share {plan.devices.count} GPUs"
    if plan.devices.are_gpus and not plan.on_gpu:
        yield 'the trainer takes no GPU: trainer_device = "cpu"'


def _resident_bytes() -> int:
    """Return the resident memory of this process, which has loaded what a trainer loads."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - no file of ours
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
