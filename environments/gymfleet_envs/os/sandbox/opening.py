"""Opens the sandbox that the options ask for."""

from gymfleet_envs.os.options import OsOptions
from gymfleet_envs.os.sandbox.base import Sandbox, SandboxError
from gymfleet_envs.os.sandbox.bubblewrap import Bubblewrap
from gymfleet_envs.os.sandbox.cgroup_search import parents, warn_unbounded
from gymfleet_envs.os.sandbox.packages import DPKG_STATUS
from gymfleet_envs.os.sandbox.rootfs import missing_programs, prepared_root
from gymfleet_envs.os.sandbox.seccomp import supported_machine


def check_backend(options: OsOptions) -> None:
    """Raise FileNotFoundError, in one line, if this machine lacks something that the sandbox needs."""
    if options.backend == "docker":
        return  # the daemon may come up later; without one each session says so
    if not supported_machine():
        raise FileNotFoundError("no system call filter for this machine; use backend docker")
    if options.rootfs is None:
        if not DPKG_STATUS.is_file():
            raise FileNotFoundError("this host has no dpkg to make a root from; set rootfs to a tree of files")
    elif missing := missing_programs(options.rootfs):
        raise FileNotFoundError(f"{missing[0]} is not in {options.rootfs}/usr/bin")
    try:  # now, while nobody waits for a session
        prepared_root(options.rootfs, options.root_cache)
    except SandboxError as error:
        raise FileNotFoundError(str(error)) from None
    if not parents(options.cgroups):
        warn_unbounded()


def open_sandbox(options: OsOptions) -> Sandbox:
    """A sandbox for one session. Raises `SandboxError`."""
    if options.backend == "docker":
        from gymfleet_envs.os.sandbox.docker_container import DockerContainer  # noqa: PLC0415 - its package is heavy

        return DockerContainer(options)
    return Bubblewrap(options)
