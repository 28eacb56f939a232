"""What an operator may set."""

from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from gymfleet_envs.runtime.environment import Options

_MIB = Field(ge=16, le=1 << 16)


class OsOptions(Options):
    """Sandbox and limits. All limits are per session."""

    backend: Literal["bubblewrap", "docker"] = "bubblewrap"
    rootfs: Path = Path("/")
    """Bubblewrap: the tree whose programs (`/usr/bin`, `/usr/lib` ...) the sandbox shows, read-only."""
    cgroups: tuple[Path, ...] = ()
    """Bubblewrap: writable cgroup directories (one of version 2, or version 1's `memory`, `pids`, `cpu`) in which each
    session gets one of its own. Without them rlimits and a watch over memory and processes bound a session."""
    image: str = f"gymfleet/os-sandbox:{version('gymfleet')}"
    """Docker: the image; it needs bash and python3."""
    command_timeout_s: Annotated[float, Field(gt=0, le=600)] = 10.0
    """For one command of the agent."""
    program_timeout_s: Annotated[float, Field(gt=0, le=600)] = 30.0
    """For one script of the task: its preparation, its check, its example solution."""
    memory_mib: Annotated[int, _MIB] = 512
    disk_mib: Annotated[int, _MIB] = 64
    processes: Annotated[int, Field(ge=16, le=4096)] = 64
    cpus: Annotated[float, Field(gt=0, le=64)] = 1.0
    """Of a control group or a container."""
