"""A control group for each session, if the operator gave directories for them."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gymfleet_envs.os.sandbox.base import SandboxError

_PERIOD_US: Final = 100_000
_MIB: Final = 1 << 20


class ControlGroup:
    """The session's directory in each hierarchy: version 2, or version 1's memory, pids and cpu."""

    def __init__(
        self, parents: Sequence[Path], name: str, *, memory_mib: int, processes: int, cpus: float, pid: int
    ) -> None:
        quota = int(cpus * _PERIOD_US)
        wanted = {
            "memory.max": str(memory_mib * _MIB),
            "memory.swap.max": "0",
            "memory.limit_in_bytes": str(memory_mib * _MIB),
            "pids.max": str(processes),
            "cpu.max": f"{quota} {_PERIOD_US}",
            "cpu.cfs_period_us": str(_PERIOD_US),
            "cpu.cfs_quota_us": str(quota),
        }
        self._directories = [parent / name for parent in parents]
        try:
            for directory in self._directories:
                directory.mkdir()
                for file, value in wanted.items():
                    if (path := directory / file).exists():
                        path.write_text(value)
                (directory / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            self.close()
            raise SandboxError(f"no control group in {error.filename}: {error.strerror}") from None

    def close(self) -> None:
        """Remove the directories; the kernel allows this once the last process is gone."""
        for directory in self._directories:
            for _ in range(50):
                with contextlib.suppress(FileNotFoundError):
                    try:
                        directory.rmdir()
                    except OSError as error:
                        if isinstance(error, FileNotFoundError):
                            raise
                        time.sleep(0.01)
                        continue
                break
