"""Ending a fleet that another command started, or whatever is left of it."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from gymfleet_cli.supervisor.process_groups import stop_groups
from gymfleet_cli.supervisor.state import ProcessId, forget_state, read_state

STOP_GRACE_S: Final = 8.0
_OWNER_GRACE_S: Final = 3 * STOP_GRACE_S
_POLL_S: Final = 0.1


def sweep(directory: Path) -> int:
    """Stop the running services of the fleet of `directory`, Redis last, and return how many were stopped."""
    state = read_state(directory)
    if state is None:
        return 0
    left = [service for service in state.services if service.process.left_behind]
    if state.owner is not None and state.owner.alive:
        # The owner would restart services stopped here; when asked to end, it stops them itself.
        _end(state.owner)
    for stores in (False, True):
        wave = [
            service.process.pid
            for service in left
            if (service.probe == "redis") is stores and service.process.left_behind
        ]
        stop_groups(wave, grace_s=STOP_GRACE_S)
    forget_state(directory)
    return len(left)


def _end(owner: ProcessId) -> None:
    with suppress(ProcessLookupError):
        os.kill(owner.pid, signal.SIGTERM)
    deadline = time.monotonic() + _OWNER_GRACE_S
    while owner.alive and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if owner.alive:
        with suppress(ProcessLookupError):
            os.kill(owner.pid, signal.SIGKILL)
