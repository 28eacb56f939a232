"""The GPUs of this machine as listed by `nvidia-smi`, and the processes that use them."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import Final

from gymfleet_cli.supervisor.errors import FleetError

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
ORDER: Final = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""CUDA's own order is the fastest first; `nvidia-smi` numbers by place in the machine."""
_COMMAND: Final = "nvidia-smi"
_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `pids` are the processes that compute on it, if the driver reports them."""

    index: int
    used_mib: int
    total_mib: int
    pids: tuple[int, ...] = ()


def visible_gpus() -> dict[int, Gpu]:
    """Return the GPUs that processes started from here may use, by number; none without a driver.

    Raises `FleetError` if the driver's command fails, or answers in an unknown form.
    """
    if shutil.which(_COMMAND) is None:
        return {}
    rows = _asked("--query-gpu=index,uuid,memory.used,memory.total")
    apps = _asked("--query-compute-apps=gpu_uuid,pid")
    try:
        users = [(uuid, int(pid)) for uuid, pid in apps if pid.isdecimal()]
        found = {
            uuid: Gpu(int(index), int(used), int(total), tuple(pid for owner, pid in users if owner == uuid))
            for index, uuid, used, total in rows
        }
    except ValueError:
        raise FleetError(f"{_COMMAND} lists GPUs in a form that is not known: {rows}") from None
    return {gpu.index: gpu for uuid, gpu in found.items() if _allowed(gpu.index, uuid)}


def _allowed(index: int, uuid: str) -> bool:
    """Return whether the user's own `CUDA_VISIBLE_DEVICES`, by number or prefix of a UUID, allows a GPU."""
    if (given := os.environ.get(VISIBLE)) is None:
        return True
    names = [name.strip() for name in given.split(",") if name.strip()]
    return any(name == str(index) or (not name.isdecimal() and uuid.startswith(name)) for name in names)


def _asked(query: str) -> list[list[str]]:
    """Return the rows of a query. Raises `FleetError`."""
    argv = [_COMMAND, query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FleetError(f"{' '.join(argv)} gave no answer: {type(error).__name__}") from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise FleetError(f"{' '.join(argv)} ended with code {done.returncode}: {said[:300]}")
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
