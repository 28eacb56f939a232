"""Where the memory of a run goes, before it is started: counted from recipe and config, without any weights."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from gymfleet_contracts.recipe import Recipe

from gymfleet_trainer.learning.options import RewardModelOptions, SupervisedOptions
from gymfleet_trainer.model.families import config_of, empty_model, examine
from gymfleet_trainer.model.memory import ModelSize
from gymfleet_trainer.model.optimizer import masters_of
from gymfleet_trainer.model.scratch import scratch_config
from gymfleet_trainer.run.devices import GIB, Devices
from gymfleet_trainer.run.memory_parts import Counter, Part, WorkerParts, resident_bytes
from gymfleet_trainer.run.plan import stages_of
from gymfleet_trainer.stage import Stage

_CUDA_CONTEXT: Final = 1 << 30
"""Memory of a process on a GPU without any tensor: its context, libraries and communicators. Approximate."""
_ENGINE_PROCESS: Final = 3 << 29
"""The resident memory of vLLM on a CPU without weights, cache and batches. Approximate."""
_WAITING: Final = frozenset({"weights", "adapters"})
"""The parts of an engine that wait in main memory while it sleeps."""
_USABLE: Final = 0.95
"""Usable share of a GPU's memory; the rest is lost between blocks."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that needs memory of a device."""

    name: str
    parts: tuple[Part, ...]
    resting_bytes: int = 0
    """Bytes that it keeps on a device that it shares by turns, while it is not its turn."""

    @property
    def size_bytes(self) -> int:
        """Return the sum of its parts."""
        return sum(part.size_bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class Device:
    """A device and the processes on it."""

    name: str
    size_bytes: int | None
    """None if unknown to the plan, as for the main memory next to GPUs."""
    processes: tuple[Process, ...]
    sleepers: tuple[Process, ...] = ()
    """Engines that sleep while the device's other processes work, and are awake while those rest."""

    @property
    def turns(self) -> tuple[int, int]:
        """Return the bytes needed while the sleepers sleep, and while they are awake."""
        others = [process for process in self.processes if process not in self.sleepers]
        return (
            sum(one.size_bytes for one in others) + sum(one.resting_bytes for one in self.sleepers),
            sum(one.resting_bytes for one in others) + sum(one.size_bytes for one in self.sleepers),
        )

    @property
    def used_bytes(self) -> int:
        """Return the bytes that its processes need together, or in the turn in which they need most."""
        return max(self.turns) if self.sleepers else sum(process.size_bytes for process in self.processes)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The place of everything, and what does not fit."""

    model: str
    num_parameters: int
    stage: str
    """The stage of the recipe that needs most; the trainer's parts are those of its updates."""
    devices: tuple[Device, ...]
    notes: tuple[str, ...]
    faults: tuple[str, ...]
    """A line for each device, process or cache that is too small, with a remedy."""

    def as_dict(self) -> dict[str, Any]:
        """Return the plan in its JSON form."""
        told = asdict(self)
        for device, found in zip(self.devices, told["devices"], strict=True):
            found["used_bytes"] = device.used_bytes
        return told


def memory_plan(recipe: Recipe, devices: Devices, *, threads: int = 1) -> MemoryPlan:
    """Return where everything in a recipe is placed on the devices.

    Args:
        recipe: the recipe; of its model, only the config is read.
        devices: the devices that there are.
        threads: threads of torch in a trainer without a GPU, each of which may run a micro-batch.

    Raises:
        UnsupportedModel: the trainer cannot compute the model.
        PluginError, RecipeError: the recipe cannot be run.
    """
    config, name = _config(recipe)
    stored = _dtype_of(config)  # before a model that is made from the config changes it
    plan = Counter(recipe, devices, config, ModelSize.of(empty_model(config)), stored, threads)
    trained = [(stage, plan.worker(stage)) for stage in _that_train(stages_of(recipe))]
    stage, parts = max(trained, key=lambda one: one[1].size_bytes, default=(None, WorkerParts(())))
    num_workers = recipe.trainer.workers if stage is not None else 0
    own = Part("process", _CUDA_CONTEXT if plan.on_gpu else resident_bytes(), "nothing")
    resting = max((one.resting_bytes for _, one in trained), default=0) + own.size_bytes
    workers = _processes(num_workers, (*parts.on_device, own), resting)
    beside = _processes(num_workers, (*parts.in_main_memory, Part("process", resident_bytes(), "nothing")))
    engine_base = Part("process", _CUDA_CONTEXT if devices.are_gpus else _ENGINE_PROCESS, "nothing")
    engine = (*plan.engine(), engine_base)
    engines = [Process(f"engine {number}", engine, engine_base.size_bytes) for number in range(_num_engines(recipe))]
    placed = tuple(_placed(plan, workers, engines, beside if parts.in_main_memory else []))
    return MemoryPlan(
        model=name,
        num_parameters=plan.size.total,
        stage=stage.table if stage is not None else "",
        devices=placed,
        notes=tuple(_notes(plan, stage, len(workers), len(engines), placed)),
        faults=tuple(_faults(plan, placed)),
    )


def _processes(count: int, parts: tuple[Part, ...], resting_bytes: int = 0) -> list[Process]:
    return [Process(f"trainer, worker {rank}", parts, resting_bytes) for rank in range(count)]


def _config(recipe: Recipe) -> tuple[Any, str]:
    longest, scratch = recipe.inference.max_model_len, recipe.model.scratch
    if scratch is not None:
        return scratch_config(scratch, longest, scratch.vocab_size), "model.scratch"
    path = str(recipe.model.path)
    examine(path, context=longest)
    return config_of(path), path


def _dtype_of(config: Any) -> torch.dtype:
    """Return the dtype of the model's files."""
    named = config.get_text_config().dtype or config.dtype or torch.float32
    found: torch.dtype = getattr(torch, named) if isinstance(named, str) else named
    return found


def _that_train(stages: Sequence[Stage[Any]]) -> list[Stage[Any]]:
    """Return the stages that train; equal stages, such as the rounds of a repeat, only once."""
    alike = {(stage.table, repr(stage.options)): stage for stage in stages}.values()
    trains = (SupervisedOptions, RewardModelOptions)
    return [stage for stage in alike if isinstance(stage.options, trains) or hasattr(stage.options, "algorithm")]


def _num_engines(recipe: Recipe) -> int:
    urls = recipe.inference.options.get("urls")
    return len(urls) if isinstance(urls, list) and urls else recipe.scale.rollouts


def _placed(plan: Counter, workers: list[Process], engines: list[Process], beside: list[Process]) -> Iterator[Device]:
    """Yield the devices: workers take the first ones and engines the rest, unless `[placement]` decides otherwise; if
    none are left, they share.

    With GPUs there is also main memory, which holds workers that have no GPU, the parts kept `beside` workers that have
    one, and the weights of engines that sleep.
    """
    devices, shared = plan.devices, _share_by_turns(plan)
    on: list[list[Process]] = [[] for _ in range(devices.count)]
    host = list(beside)
    of_workers = _of_workers(plan, len(workers))
    for rank, worker in enumerate(workers):
        (on[of_workers[rank]] if of_workers else host).append(worker)
    of_engines = _of_engines(plan, of_workers)
    for number, engine in enumerate(engines):
        on[of_engines[number % len(of_engines)]].append(engine)
    sleepers: list[Process] = []
    for number, processes in enumerate(on):
        name = f"GPU {number} ({devices.kind})" if devices.are_gpus else "this machine"
        by_turns = shared and number in of_workers
        asleep = [one for one in processes if one in engines] if by_turns else []
        sleepers += asleep
        yield Device(name, devices.size_bytes, tuple(processes), tuple(asleep))
    host += [
        Process(f"{one.name}, asleep", tuple(part for part in one.parts if part.what in _WAITING)) for one in sleepers
    ]
    if host:
        yield Device("main memory", None, tuple(host))


def _share_by_turns(plan: Counter) -> bool:
    return plan.recipe.placement.colocated and plan.on_gpu


def _of_workers(plan: Counter, count: int) -> list[int]:
    """Return the devices of the workers; none if the workers are in main memory."""
    if not plan.devices.are_gpus:
        return [0] * count
    if not plan.on_gpu:
        return []
    section, there = plan.recipe.placement, plan.devices.count
    taken = () if section.colocated else section.engines or ()
    free = [gpu for gpu in range(there) if gpu not in taken]
    given: Sequence[int] = section.trainer or free or range(there)
    return [given[rank % len(given)] % there for rank in range(count)]


def _of_engines(plan: Counter, of_workers: list[int]) -> Sequence[int]:
    """Return the devices on which engines are, in turn."""
    there, section = plan.devices.count, plan.recipe.placement
    if plan.devices.are_gpus and section.engines:
        return [gpu % there for gpu in section.engines]
    if _share_by_turns(plan) and of_workers:
        return of_workers
    return [device for device in range(there) if device not in of_workers] or range(there)


def _faults(plan: Counter, placed: Sequence[Device]) -> Iterator[str]:
    workers = plan.recipe.trainer.workers
    if plan.on_gpu and workers > plan.devices.count:
        yield f"trainer.workers = {workers}: each takes a GPU, and there are {plan.devices.count}: lower it"
    named = {*(plan.recipe.placement.trainer or ()), *(plan.recipe.placement.engines or ())}
    if plan.devices.are_gpus and (missing := sorted(gpu for gpu in named if gpu >= plan.devices.count)):
        yield (
            f"placement names GPU {', '.join(map(str, missing))}, and there are 0 to {plan.devices.count - 1}: give "
            "others, or more to --gpus"
        )
    yield from _without_a_gpu(plan)
    for device in placed:
        if device.size_bytes is None:
            continue
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
        needed = math.ceil(longest * plan.token_bytes() / GIB * 1000) / 1000  # up, so that what is advised is enough
        yield (
            f"the KV cache of {plan.recipe.inference.kv_cache_gib:g} GiB holds {tokens:,} tokens, and one sequence may "
            f"have {longest:,}: give inference.kv_cache_gib at least {needed:g}, or a shorter max_model_len"
        )


def _without_a_gpu(plan: Counter) -> Iterator[str]:
    """Yield what `gymfleet train` refuses: engines that it starts and that no GPU is left for."""
    recipe, count = plan.recipe, plan.devices.count
    started_here = plan.devices.are_gpus and recipe.inference.backend != "server"
    if not started_here or recipe.placement.engines or _share_by_turns(plan):
        return
    engines, left = recipe.scale.rollouts, count - (recipe.trainer.workers if plan.on_gpu else 0)
    if engines > left >= 0:
        yield (
            f"scale.rollouts = {engines}: each engine takes a GPU, and the trainer leaves "
            f"{left} of {count}: give [placement] colocated = true to share, or more to --gpus"
        )


def _notes(
    plan: Counter, stage: Stage[Any] | None, num_workers: int, num_engines: int, placed: Sequence[Device]
) -> Iterator[str]:
    inference = plan.recipe.inference
    tokens = int(inference.kv_cache_gib * GIB) // plan.token_bytes()
    yield (
        f"the KV cache of an engine holds {tokens:,} tokens: {tokens / inference.max_model_len:.1f} sequences of "
        f"{inference.max_model_len:,}"
    )
    if stage is not None:
        microbatch = plan.microbatch(stage.options)
        masters = masters_of(stage.options.optimizer)
        both = [
            plan.activations(stage.options, recompute=recompute, masters=masters) / GIB for recompute in (True, False)
        ]
        yield (
            f"activations of a micro-batch of {microbatch.tokens:,} tokens in rows of {microbatch.length:,}: "
            f"{both[0]:.2f} GiB with recomputation, as on GPUs, and {both[1]:.2f} GiB without"
        )
    for device in placed:
        if device.sleepers:
            asleep, awake = (size / GIB for size in device.turns)
            yield f"{device.name}: {asleep:.2f} GiB while engines sleep, {awake:.2f} GiB while they are awake"
    apart = inference.backend == "server" and not _share_by_turns(plan)
    if plan.on_gpu and apart and num_workers + num_engines > plan.devices.count:
        yield f"{num_workers} workers and {num_engines} servers share {plan.devices.count} GPUs"
    if plan.devices.are_gpus and not plan.on_gpu:
        yield 'the trainer takes no GPU: trainer_device = "cpu"'
