"""Expected failures of the supervisor."""

from pathlib import Path


class FleetError(Exception):
    """The services cannot be run as requested; the message is one line for the user."""

    exit_code = 1


class PortInUse(FleetError):
    """Another process listens on the port meant for a service."""

    exit_code = 2

    def __init__(self, name: str, port: int) -> None:
        super().__init__(
            f"port {port}, meant for {name}, is in use by another process; choose others with --ports-from"
        )
        self.port = port


class ServiceFailed(FleetError):
    """A service died or did not become ready."""

    def __init__(self, name: str, reason: str, log: Path, *, refused: bool = False) -> None:
        super().__init__(f"{name} failed: {reason} (log: {log})")
        self.exit_code = 2 if refused else 1
        """The exit code of the command: 2 when the service refused its settings or arguments."""
        self.name = name
        self.reason = reason
        self.log = log


class Interrupted(Exception):
    """The user or the system asked to stop. `exit_code` follows the shell's convention, 128 + signal."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by signal {signum}")
        self.exit_code = 128 + signum
