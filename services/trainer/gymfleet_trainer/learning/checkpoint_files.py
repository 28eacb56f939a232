"""The files from which a learner resumes: models and states, written by all ranks at once, each its own rows.

No rank gathers anything. A kept model is a directory that transformers loads, with one safetensors file.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from gymfleet_trainer.distributed.ranks import Ranks
from gymfleet_trainer.distributed.row_files import RowFile, can_hold, read_rows, together

_STATES: Final = "optimizer.pt"
_TENSORS: Final = "optimizer.safetensors"
_WHOLE: Final = frozenset({"torch", "cuda", "algorithm"})
"""States under these names are never sharded: torch's random states, and the algorithm's state."""


class Kept(Protocol):
    """A model to keep: a policy, its adapter, or a reference."""

    def describe(self, directory: Path) -> None:
        """Write everything but the weights, as transformers and peft read it."""

    def rows(self) -> tuple[str, dict[str, Tensor]]:
        """Return the name of the weights' file, and the weights themselves as this rank has them."""


def write_kept(models: Mapping[Path, Kept], ranks: Ranks | None) -> None:
    """Write models into new directories; all ranks call this.

    Raises:
        OSError: a write failed on any rank; raised on every rank.
    """
    files = begin_kept(models, ranks)

    def write() -> None:
        files.write()
        files.sync()

    together(ranks, write)


def begin_kept(
    models: Mapping[Path, Kept],
    ranks: Ranks | None,
    *,
    beside: Callable[[], None] = lambda: None,
    states: tuple[Path, Mapping[str, Any]] | None = None,
) -> "KeptFiles":
    """Create the files of models in new directories, and of `states` in an existing one; all ranks call this.

    Only the first rank calls `beside`, which writes the other files that belong to them.

    Raises:
        OSError: a write failed on any rank; raised on every rank.
    """
    files = []
    for directory, model in models.items():
        name, tensors = model.rows()
        files.append(RowFile(directory / name, tensors))
    rest: Any = {}
    if states is not None:
        found: dict[str, Tensor] = {}
        rest = _without_tensors(states[1], (), found)
        files.append(RowFile(states[0] / _TENSORS, found))

    def prepare() -> None:
        for directory, model in models.items():
            directory.mkdir(parents=True, exist_ok=True)
            model.describe(directory)
        beside()
        for file in files:
            file.create()
        if states is not None:
            # Pass a file object: given a path, torch reports a full disk as an unexpected position in a container.
            with (states[0] / _STATES).open("wb") as opened:
                torch.save(rest, opened)

    together(ranks, prepare, first_alone=True)
    return KeptFiles(files, replicated=ranks is None or ranks.first)


class KeptFiles:
    """Created files that wait for this rank's rows. No method waits for another rank, so any thread may call them."""

    def __init__(self, files: Sequence[RowFile], *, replicated: bool) -> None:
        self._files = files
        self._replicated = replicated

    def write(self) -> None:
        """Write the rows. Until it returns, the tensors of models and states must stand still."""
        for file in self._files:
            file.write(replicated=self._replicated)

    def sync(self) -> None:
        """Make what was written durable."""
        for file in self._files:
            file.sync()


def read_states(directory: Path, ranks: Ranks | None = None) -> dict[str, Any]:
    """Return the states that belong to kept models, on the CPU: tensors are whole, or with ranks sharded by rows.

    A different number of ranks may have written them. An algorithm's own tensors are always whole.
    """
    states: dict[str, Any] = torch.load(directory / _STATES, map_location="cpu", weights_only=True)
    for name, value in read_rows(
        directory / _TENSORS, ranks, lambda name: not _WHOLE.isdisjoint(json.loads(name))
    ).items():
        *path, last = json.loads(name)
        place = states
        for key in path:
            place = place[key]
        place[last] = value
    return states


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Return torch's random state, and that of the device, from which the dropout of adapters draws."""
    states = {"torch": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def restore_random_states(states: dict[str, Any], device: torch.device) -> None:
    """Take what `random_states` returned out of `states`, and go on from there. The device may be another kind."""
    torch.set_rng_state(states.pop("torch"))
    on_device = states.pop("cuda", None)
    if on_device is not None and device.type == "cuda":
        torch.cuda.set_rng_state(on_device, device)


def _without_tensors(value: Any, path: tuple[Any, ...], found: dict[str, Tensor]) -> Any:
    """Return nested dicts without their tensors, which are added to `found` under their paths."""
    rest: dict[Any, Any] = {}
    for key, part in value.items():
        place = (*path, key)
        if can_hold(part) and all(isinstance(one, str | int) for one in place):
            found[json.dumps(place)] = part
        else:
            rest[key] = _without_tensors(part, place, found) if isinstance(part, Mapping) else part
    return rest
