"""The machines that a plan is made for: `8xH200`, `4x80GiB`, `1xcpu`."""

import os
import re
from dataclasses import dataclass
from typing import Final

from gymfleet_contracts.recipe import RecipeError

GIB: Final = 1 << 30
_GIVEN: Final = re.compile(r"(?:(?P<count>[1-9][0-9]{0,3})x)?(?P<kind>[A-Za-z0-9.-]+)")
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)gib")
KNOWN_GIB: Final = {
    "a100": 79.3, "a100-40": 39.5, "a10g": 22.0, "b200": 178.4, "h100": 79.2, "h200": 139.8, "l4": 22.0, "l40s": 44.4,
    "mi300x": 191.6, "rtx4090": 23.5, "rtx5090": 31.4, "t4": 14.6, "v100": 31.7,
}  # fmt: skip
"""Memory that PyTorch finds on a GPU, which is less than the GPU's name promises."""


@dataclass(frozen=True, slots=True)
class Devices:
    """Equal GPUs, or the memory of one machine without any."""

    count: int
    kind: str
    size_bytes: int

    @property
    def are_gpus(self) -> bool:
        """Return whether they are GPUs."""
        return self.kind != "cpu"

    @classmethod
    def parse(cls, given: str) -> "Devices":
        """Parse the value of `--gpus`. Raises `RecipeError`."""
        found = _GIVEN.fullmatch(given)
        kind = found["kind"].lower() if found is not None else ""
        count = int((found and found["count"]) or 1)
        if kind == "cpu":
            if count > 1:
                raise RecipeError(f"--gpus {given}: 1xcpu is the memory of this machine, which there is once")
            return cls(1, kind, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        if size := _SIZE.fullmatch(kind):
            return cls(count, f"{size[1]} GiB", int(float(size[1]) * GIB))
        if kind in KNOWN_GIB:
            return cls(count, kind.upper(), int(KNOWN_GIB[kind] * GIB))
        raise RecipeError(f"--gpus {given}: give 8xH200, 4x80GiB or 1xcpu; known GPUs: {', '.join(KNOWN_GIB)}")
