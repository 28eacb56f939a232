"""Opens the sandbox that the options ask for."""

from gymfleet_envs.os.options import OsOptions
from gymfleet_envs.os.sandbox.base import Sandbox
from gymfleet_envs.os.sandbox.bubblewrap import Bubblewrap, missing_programs
from gymfleet_envs.os.sandbox.seccomp import supported_machine


def check_backend(options: OsOptions) -> None:
    """Raises FileNotFoundError, in one line, for what the sandbox lacks here."""
    if options.backend == "docker":
        return  # the daemon may come up later; without one each session says so
    if not supported_machine():
        raise FileNotFoundError("no system call filter for this machine; use backend docker")
    if missing := missing_programs(options.rootfs):
        raise FileNotFoundError(f"{missing[0]} is not in {options.rootfs}usr/bin")


def open_sandbox(options: OsOptions) -> Sandbox:
    """A sandbox for one session. Raises `SandboxError`."""
    if options.backend == "docker":
        from gymfleet_envs.os.sandbox.docker_container import DockerContainer  # noqa: PLC0415 - its package is heavy

        return DockerContainer(options)
    return Bubblewrap(options)
