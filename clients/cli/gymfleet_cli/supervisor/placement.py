"""The GPUs of a local run's trainer and engines, checked before anything is started."""

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.recipe_sections import PlacementSection

from gymfleet_cli.console import UsageProblem
from gymfleet_cli.supervisor.gpus import ORDER, VISIBLE, Gpu, visible_gpus

IN_USE_MIB: Final = 1024
"""A driver and a desktop use less memory than this on a GPU without computation."""
_RAY_CLUSTER: Final = "RAY_ADDRESS"


@dataclass(frozen=True, slots=True)
class Placement:
    """GPUs by number. None leaves unchanged which GPUs a process sees; an empty tuple hides all of them."""

    trainer: tuple[int, ...] | None = None
    engines: tuple[int, ...] | None = None
    """One for each rollout service, in their order."""

    def for_trainer(self) -> dict[str, str]:
        """Return the environment variables of the trainer."""
        return {} if self.trainer is None else _only(self.trainer)

    def for_engine(self, number: int) -> dict[str, str]:
        """Return the environment variables of a rollout service, counted from 0."""
        return {} if self.engines is None else _only((self.engines[number],))


def _only(gpus: tuple[int, ...]) -> dict[str, str]:
    return {VISIBLE: ",".join(map(str, gpus)), **ORDER}


def placement_of(recipe: Recipe) -> Placement:
    """Return the placement of a run. Raises `UsageProblem` if it is impossible or a GPU is in use, and `FleetError`."""
    return _placed(recipe.placement, _num_workers(recipe), _num_engines(recipe))


def placement_of_engine() -> Placement:
    """Return the placement of the engine of `gymfleet up`. Raises as `placement_of`."""
    return _placed(PlacementSection(), 0, 1)


def _num_workers(recipe: Recipe) -> int:
    """Return how many GPUs the trainer takes on this machine."""
    elsewhere = recipe.trainer.workers > 1 and _RAY_CLUSTER in os.environ
    return 0 if elsewhere or recipe.trainer_device == "cpu" else recipe.trainer.workers


def _num_engines(recipe: Recipe) -> int:
    return 0 if recipe.inference.backend == "server" else recipe.scale.rollouts


def _placed(section: PlacementSection, num_workers: int, num_engines: int) -> Placement:
    there = visible_gpus()
    named = sorted({*(section.trainer or ()), *(section.engines or ())})
    if not there:
        if named:
            raise UsageProblem(f"placement names GPU {_listed(named)}, and this machine shows no GPU: leave it out")
        return Placement()
    if missing := [gpu for gpu in named if gpu not in there]:
        raise UsageProblem(f"placement names GPU {_listed(missing)}, and there are {_listed(there)}")
    trainer = section.trainer or _trainers(section, there, num_workers)
    engines = section.engines or _engines(section, there, trainer, num_engines)
    _require_unused([there[gpu] for gpu in sorted({*trainer, *engines})])
    return Placement(trainer, engines or None)


def _trainers(section: PlacementSection, there: Mapping[int, Gpu], count: int) -> tuple[int, ...]:
    """Return the first GPUs that are not assigned to engines by name."""
    free = [gpu for gpu in sorted(there) if section.colocated or gpu not in (section.engines or ())]
    if len(free) < count:
        raise UsageProblem(
            f"trainer.workers = {count}: each worker takes a GPU, and {len(free)} of {len(there)} are left: give fewer "
            'workers, or trainer_device = "cpu"'
        )
    return tuple(free[:count])


def _engines(
    section: PlacementSection, there: Mapping[int, Gpu], trainer: tuple[int, ...], count: int
) -> tuple[int, ...]:
    """Return GPUs that the trainer does not have, or the trainer's own if they are shared."""
    if section.colocated and trainer:
        return tuple(itertools.islice(itertools.cycle(trainer), count))
    free = [gpu for gpu in sorted(there) if gpu not in trainer]
    if len(free) < count:
        raise UsageProblem(
            f"scale.rollouts = {count}: each engine takes a GPU, and the trainer leaves "
            f"{len(free)} of {len(there)}: give [placement] colocated = true to share, or fewer"
        )
    return tuple(free[:count])


def _require_unused(gpus: list[Gpu]) -> None:
    for gpu in gpus:
        if gpu.used_mib > IN_USE_MIB:
            by = f" by process {_listed(gpu.pids)}" if gpu.pids else ""
            raise UsageProblem(
                f"GPU {gpu.index} is in use: {gpu.used_mib} of {gpu.total_mib} MiB are taken{by}; end what uses it, or "
                "name others in [placement]"
            )


def _listed(numbers: "Mapping[int, Gpu] | list[int] | tuple[int, ...]") -> str:
    return ", ".join(map(str, sorted(numbers)))
