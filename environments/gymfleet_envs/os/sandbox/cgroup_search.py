"""The parent directories of sessions' control groups: named by the operator, or found."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, Literal

import structlog

_CONTROLLERS: Final = ("memory", "pids", "cpu")
log = structlog.get_logger()


def parents(given: Sequence[Path] | Literal["auto"]) -> tuple[Path, ...]:
    """Return the directories in which sessions get control groups: those given, or with `auto` those found."""
    return _found() if given == "auto" else tuple(given)


@cache
def warn_unbounded() -> None:
    """Log, once per process, what is not bounded without control groups."""
    log.warning(
        "sandbox.memory_unbounded",
        reason="memory is not bounded: without control groups a watch looks at what sessions hold and estimates "
        "what the kernel holds for them; give the option cgroups, and bound the service",
    )


@cache
def _found() -> tuple[Path, ...]:
    """Search once for usable directories; none if this process may not make groups that bound memory."""
    places: dict[str, Path] = {}
    with contextlib.suppress(OSError):
        mounts, own = Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
        for controller, place in candidates(mounts, own):
            if controller not in places and _works(place, controller):
                places[controller] = place
    return tuple(dict.fromkeys(places.values())) if "memory" in places else ()


def candidates(mounts: str, own: str) -> Iterator[tuple[str, Path]]:
    """Yield directories that may let us make groups in them, as (controller, directory), the likeliest first.

    Args:
        mounts: content of /proc/self/mountinfo.
        own: content of /proc/self/cgroup.
    """
    ours = dict(line.split(":", 2)[1:] for line in own.splitlines())
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind == "cgroup2" and "" in ours:
            home = _below(Path(point), root, ours[""])
            for place in (home, *home.parents):
                if place.is_relative_to(point):  # a group that has processes cannot have groups: one above it may
                    yield from ((controller, place) for controller in _CONTROLLERS)
        elif kind == "cgroup":
            for names, path in ours.items():
                held = set(names.split(",")) & set(options.split(",")) & set(_CONTROLLERS)
                yield from ((controller, _below(Path(point), root, path)) for controller in sorted(held))


def _below(point: Path, root: str, path: str) -> Path:
    """The directory of a group below a mount that shows the hierarchy from `root` on."""
    inner = path.removeprefix(root.rstrip("/")) if path.startswith(root) else "/"
    return point / inner.lstrip("/")


def _works(place: Path, controller: str) -> bool:
    """Whether a group made in `place` has the controller's limit."""
    if not os.access(place, os.W_OK):
        return False
    probe = place / f"gymfleet-os-probe-{os.getpid()}"
    limits = {"memory": ("memory.max", "memory.limit_in_bytes"), "pids": ("pids.max",),
              "cpu": ("cpu.max", "cpu.cfs_quota_us")}  # fmt: skip
    try:
        probe.mkdir()
    except OSError:
        return False
    try:
        return any(os.access(probe / name, os.W_OK) for name in limits[controller])
    finally:
        with contextlib.suppress(OSError):
            probe.rmdir()
