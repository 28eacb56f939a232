"""`fleet.json`: the running processes, their addresses and secrets. Only its owner can read it."""

import os
import tempfile
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from gymfleet_cli.supervisor.errors import FleetError
from gymfleet_cli.supervisor.process_groups import members, process_stat

FLEET_FILE: Final = "fleet.json"


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProcessId(_Record):
    """A pid and a start time: the pid alone may have been reused since, but with the start time it is unique."""

    pid: int
    started_ticks: int

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        stat = process_stat(self.pid)
        return stat is not None and stat.started_ticks == self.started_ticks

    @property
    def left_behind(self) -> bool:
        """Whether this process, or a process of its session, still runs."""
        # While a session has members, the kernel does not give its number to another process.
        return self.alive or (process_stat(self.pid) is None and bool(members(self.pid)))


class ServiceRecord(_Record):
    """A service as it was started."""

    name: str
    process: ProcessId
    port: int
    url: str
    probe: Literal["http", "redis", "none"]
    log: str


class FleetState(_Record):
    """All services of one `up` or `train`."""

    format: Literal[1] = 1
    owner: ProcessId | None = None
    """The command that supervises the services; None when they run on their own."""
    run_dir: str | None = None
    gateway_secret: str = ""
    keys: dict[str, str] = {}
    """The keys to send to services, as `Authorization: Bearer <key>`, by service name."""
    services: tuple[ServiceRecord, ...] = ()

    @property
    def living(self) -> tuple[ServiceRecord, ...]:
        """The services that still run."""
        return tuple(service for service in self.services if service.process.alive)


def read_state(directory: Path) -> FleetState | None:
    """Read the state; None if nothing was started in `directory`."""
    path = directory / FLEET_FILE
    try:
        return FleetState.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise FleetError(f"{path} cannot be read: {reason}; stop the services by hand and remove the file") from None


def write_state(directory: Path, state: FleetState) -> None:
    """Replace the file atomically: a reader sees the old or the new file, never half of it."""
    descriptor, name = tempfile.mkstemp(dir=directory, prefix=".fleet-")  # created with mode 0600
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(state.model_dump_json(indent=2))
    Path(name).replace(directory / FLEET_FILE)


def forget_state(directory: Path) -> None:
    """Remove the file, because nothing runs any more."""
    (directory / FLEET_FILE).unlink(missing_ok=True)
