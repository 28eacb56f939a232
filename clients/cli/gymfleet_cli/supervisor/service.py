"""One service: its command, settings, address and readiness."""

import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote, unquote, urlsplit

import httpx

from gymfleet_cli.supervisor.errors import FleetError
from gymfleet_cli.supervisor.ports import LOOPBACK

_PROBE_TIMEOUT_S: Final = 2.0
_MAX_REASON_CHARS: Final = 1000
_TAIL_BYTES: Final = 64 * 1024
_POINTERS: Final = "For further information visit"
"""The end of pydantic's message about a fault."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service to run. `probe` is `none` for a command that works and ends; Redis has a socket instead of a port."""

    name: str
    argv: tuple[str, ...]
    port: int = 0
    socket: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    probe: Literal["http", "redis", "none"] = "http"
    start_timeout_s: float = 120.0

    @property
    def url(self) -> str:
        """The address of the service."""
        return f"http://{LOOPBACK}:{self.port}" if self.socket is None else f"unix://{quote(str(self.socket))}"


def console_script(name: str) -> str:
    """Return the command installed next to this interpreter; it is not looked up on PATH, so the installation fits."""
    script = Path(sys.executable).with_name(name)
    if not script.exists():
        raise FleetError(f"{name} is not installed next to {sys.executable}; install gymfleet[all]")
    return str(script)


def reason_of(program: str, done: "subprocess.CompletedProcess[str]") -> str:
    """Return the reason that one of our commands gave for its failure: the last line of its standard error."""
    lines = done.stderr.strip().splitlines() or [f"{program} ended with code {done.returncode}"]
    return lines[-1].removeprefix("error: ")


def unready_reason(probe: str, url: str) -> str | None:
    """Ask once whether the service is ready; return None if it is, else its answer."""
    if probe == "redis":
        return _redis_reason(unquote(urlsplit(url).path))
    try:
        answer = httpx.get(f"{url}/readyz", timeout=_PROBE_TIMEOUT_S, trust_env=False)
    except httpx.HTTPError:
        return "no answer yet"
    if answer.status_code == httpx.codes.OK:
        return None
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP status {answer.status_code}"


def _redis_reason(path: str) -> str | None:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_PROBE_TIMEOUT_S)
            connection.connect(path)
            connection.sendall(b"PING\r\n")
            answer = connection.recv(64)
    except OSError:
        return "no answer yet"
    return None if answer.startswith(b"+PONG") else answer.decode(errors="replace").strip()


def last_log_line(log: Path, offset: int = 0) -> str:
    """Return the last error written after `offset` in readable form, else the last line; for a traceback, its error.

    Lines that libraries print while a process ends do not say why it ended.
    """
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(offset, size - _TAIL_BYTES))
            tail = file.read().decode(errors="replace")
    except OSError:
        return "it wrote no log"
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    told = next((line for line in reversed(lines) if _tells_an_error(line)), lines[-1] if lines else None)
    if told is None:
        return "it wrote nothing"
    reason = _readable(told)
    return reason if len(reason) <= _MAX_REASON_CHARS else f"{reason[:_MAX_REASON_CHARS]} ... (more in the log)"


def _tells_an_error(line: str) -> bool:
    return line.startswith("error: ") or (_record(line) or {}).get("level") in ("error", "critical")


def _readable(line: str) -> str:
    if (record := _record(line)) is None:
        return line.removeprefix("error: ")
    details = [str(record[key]) for key in ("error", "detail") if record.get(key)]
    exception = [part.strip() for part in str(record.get("exception", "")).splitlines() if part.strip()]
    if told := [part for part in exception if not part.startswith(_POINTERS)]:
        details.append(told[-1])
    return ": ".join([str(record["event"]), *details])


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "event" in record else None
