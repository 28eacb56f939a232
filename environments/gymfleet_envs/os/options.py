"""The options that an operator may set."""

from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from gymfleet_envs.environment import Options

_MIB = Field(ge=16, le=1 << 16)


class OsOptions(Options):
    """Sandbox and limits. All limits are per session."""

    backend: Literal["bubblewrap", "docker"] = "bubblewrap"
    rootfs: Path | None = None
    """Bubblewrap: the tree of files that sessions start from, such as an unpacked image. Without it, a root is made
    from packages of the host."""
    root_cache: Path | None = None
    """Bubblewrap: the directory for prepared roots, shared by the servers of one user. Nobody else may write to it."""
    cgroups: tuple[Path, ...] | Literal["auto"] = ()
    """Bubblewrap: writable cgroup directories (one of version 2, or version 1's `memory`, `pids`, `cpu`) in which each
    session gets its own cgroup; `auto` searches for them above the server's cgroup. Without them, rlimits and a watch
    over memory and processes bound a session, and the memory that the kernel holds for it is estimated."""
    image: str = f"gymfleet/os-sandbox:{version('gymfleet')}"
    """Docker: the image; it needs bash and python3."""
    command_timeout_s: Annotated[float, Field(gt=0, le=600)] = 10.0
    """Time limit of one command of the agent."""
    program_timeout_s: Annotated[float, Field(gt=0, le=600)] = 12.0
    """Time limit of all scripts of a task's preparation together, and of all scripts of its check. Exceeding it is a
    technical failure, not a score. Keep it well below the server's `step_timeout_s`, at which the whole shard is
    killed."""
    memory_mib: Annotated[int, _MIB] = 512
    disk_mib: Annotated[int, _MIB] = 64
    processes: Annotated[int, Field(ge=16, le=4096)] = 64
    cpus: Annotated[float, Field(gt=0, le=64)] = 1.0
    """CPU limit of a control group or a container."""
