"""The supervisor starts services, waits until they are ready, restarts those that die, and stops them all."""

import json
import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Self

from gymfleet_cli.supervisor.errors import ServiceFailed
from gymfleet_cli.supervisor.interrupts import Interrupts
from gymfleet_cli.supervisor.process_groups import members, process_stat, stop_groups
from gymfleet_cli.supervisor.processes import Guard, spawn
from gymfleet_cli.supervisor.service import Service, last_log_line, unready_reason
from gymfleet_cli.supervisor.state import FleetState, ProcessId, ServiceRecord, forget_state, write_state

POLL_S: Final = 0.2
MAX_RESTARTS: Final = 5
RESTART_WINDOW_S: Final = 600.0
MAX_BACKOFF_S: Final = 10.0
BLAME_S: Final = 120.0
"""A task that fails within this time after a service died is taken to have failed because of it."""
CONFIG_ERROR: Final = 2
_FINAL_CODES: Final = frozenset({0, CONFIG_ERROR})

Watcher = Callable[[], None]


@dataclass(slots=True)
class _Running:
    service: Service
    log: Path
    process: "subprocess.Popen[bytes]"
    log_offset: int
    waits_for: str
    ready: bool = False
    restarts: deque[float] = field(default_factory=deque)
    restart_at: float | None = None


class Supervisor:
    """The services of one fleet. Not for use by several threads.

    Args:
        directory: where `fleet.json` and `logs/` live.
        interrupts: checked in every loop; `Interrupted` leaves the loop.
        tethered: the services die with this process; otherwise they outlive it unless `stop` is called.
    """

    def __init__(
        self,
        directory: Path,
        *,
        interrupts: Interrupts,
        tethered: bool,
        gateway_secret: str = "",
        keys: Mapping[str, str] = MappingProxyType({}),
        run_dir: Path | None = None,
        stop_grace_s: float = 6.0,
        max_restarts: int = MAX_RESTARTS,
    ) -> None:
        self._directory = directory
        self._interrupts = interrupts
        self._tethered = tethered
        self._secret = gateway_secret
        self._keys = dict(keys)
        self._run_dir = run_dir
        self._grace_s = stop_grace_s
        self._max_restarts = max_restarts
        self._running: dict[str, _Running] = {}
        self._guard: Guard | None = None
        (directory / "logs").mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        if self._tethered:
            self._guard = Guard()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tethered or error is not None:
            self.stop()
        if self._guard is not None:
            self._guard.dismiss()

    @property
    def waiting(self) -> dict[str, str | None]:
        """Return what each service is still waiting for, by name; None once it was ready."""
        return {name: None if one.ready else one.waits_for for name, one in self._running.items()}

    def start(self, service: Service) -> None:
        """Start one service without waiting for it."""
        log = self._directory / "logs" / f"{service.name}.log"
        self._running[service.name] = self._spawn(service, log)
        self._write()

    def wait_ready(self, names: Iterable[str], watch: Watcher = lambda: None) -> None:
        """Wait until every named service answers that it is ready. Raises `ServiceFailed` for the first that fails."""
        started = time.monotonic()
        names = list(names)
        while pending := [self._running[name] for name in names if not self._running[name].ready]:
            for one in pending:
                self._require_alive(one)
                one.waits_for = unready_reason(one.service.probe, one.service.url) or ""
                one.ready = not one.waits_for
                if not one.ready and time.monotonic() - started > one.service.start_timeout_s:
                    reason = f"not ready after {one.service.start_timeout_s:.0f} s: {one.waits_for}"
                    raise ServiceFailed(one.service.name, reason, one.log)
                self._interrupts.check()
            watch()
            if not all(one.ready for one in pending):
                self._pause()

    def run(self, task: Service, watch: Watcher = lambda: None) -> None:
        """Run a command that ends by itself, and watch over the services meanwhile.

        A command that was killed by a signal, or failed soon after a service had
        died, is started again, as often as a service. Raises `ServiceFailed` with
        the last log line if it fails for another reason.
        """
        self.start(task)
        while True:
            one = self._running[task.name]
            code = one.process.poll()
            if code is not None and code >= 0 and one.restart_at is None and not self._deserves_another(one, code):
                self._sweep(one)
                del self._running[task.name]
                self._write()
                if code != 0:
                    raise _failure(one, code)
                return
            self.check()
            watch()
            self._pause()

    def check(self) -> None:
        """Restart services that have died. Raises `ServiceFailed` for a service that dies again and again."""
        for one in list(self._running.values()):
            if one.restart_at is None and one.process.poll() is not None:
                self._schedule_restart(one)
            if one.restart_at is not None and time.monotonic() >= one.restart_at:
                fresh = self._spawn(one.service, one.log)
                fresh.restarts = one.restarts
                self._running[one.service.name] = fresh
                self._note("service.restarted", service=one.service.name, pid=fresh.process.pid)
                self._write()

    def _deserves_another(self, task: _Running, code: int) -> bool:
        """Return whether a service's death, rather than the task itself, explains the task's failure."""
        recent = time.monotonic() - BLAME_S
        deaths = (one.restarts[-1] for one in self._running.values() if one is not task and one.restarts)
        return code not in _FINAL_CODES and any(at > recent for at in deaths)

    def watch_forever(self) -> None:
        """Watch over the services until an interrupt."""
        while True:
            self.check()
            self._pause()

    def stop(self) -> None:
        """Stop all services in reverse order of their start, the store of all data last. It is safe to repeat."""
        stores = [one for one in self._running.values() if one.service.probe == "redis"]
        others = [one for one in self._running.values() if one.service.probe != "redis"]
        for wave in (others, stores):
            self._stop_all(wave)
        self._running.clear()
        forget_state(self._directory)

    def _stop_all(self, wave: Sequence[_Running]) -> None:
        # A reaped process's number may now belong to another process, unless children still hold its session.
        leaders = [one.process.pid for one in reversed(wave) if one.process.poll() is None or members(one.process.pid)]
        stop_groups(leaders, grace_s=self._grace_s, hurry=self._interrupts.insisted)
        for one in wave:
            one.process.wait()
            if self._guard is not None:
                self._guard.forget(one.process.pid)

    def _spawn(self, service: Service, log: Path) -> _Running:
        offset = log.stat().st_size if log.exists() else 0
        process = spawn(service, log, tethered=self._tethered)
        if self._guard is not None:
            self._guard.watch(process.pid)
        doing = "working" if service.probe == "none" else "starting"
        return _Running(service=service, log=log, process=process, log_offset=offset, waits_for=doing)

    def _require_alive(self, one: _Running) -> None:
        code = one.process.poll()
        if code is not None:
            raise _failure(one, code)

    def _schedule_restart(self, one: _Running) -> None:
        code = one.process.wait()
        reason = _failure(one, code).reason
        self._sweep(one)
        now = time.monotonic()
        while one.restarts and now - one.restarts[0] > RESTART_WINDOW_S:
            one.restarts.popleft()
        self._note("service.died", service=one.service.name, reason=reason, restarts=len(one.restarts))
        # A restart with settings that were refused would be refused again.
        if code == CONFIG_ERROR or len(one.restarts) >= self._max_restarts:
            raise _failure(one, code)
        # The first restart is immediate, because episodes wait for the service.
        one.restart_at = now + (min(2.0 ** len(one.restarts), MAX_BACKOFF_S) if one.restarts else 0.0)
        one.restarts.append(now)

    def _sweep(self, one: _Running) -> None:
        """End the processes that a dead service left behind: its workers have no parent to talk to."""
        leader = one.process.pid
        if members(leader):
            stop_groups([leader], grace_s=0)
        if self._guard is not None:
            self._guard.forget(leader)

    def _pause(self) -> None:
        self._interrupts.check()
        time.sleep(POLL_S)
        self._interrupts.check()

    def _note(self, event: str, **details: object) -> None:
        record = {"event": event, "timestamp": datetime.now(UTC).isoformat(), **details}
        with (self._directory / "logs" / "supervisor.log").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _write(self) -> None:
        records = tuple(
            ServiceRecord(
                name=one.service.name,
                process=identity(one.process.pid),
                port=one.service.port,
                url=one.service.url,
                probe=one.service.probe,
                log=str(one.log),
            )
            for one in self._running.values()
        )
        owner = identity(os.getpid()) if self._tethered else None
        run_dir = None if self._run_dir is None else str(self._run_dir)
        state = FleetState(owner=owner, run_dir=run_dir, gateway_secret=self._secret, keys=self._keys, services=records)
        write_state(self._directory, state)


def identity(pid: int) -> ProcessId:
    """Return the pid and start time; for a process that is already gone, start time 0, which matches nothing."""
    stat = process_stat(pid)
    return ProcessId(pid=pid, started_ticks=0 if stat is None else stat.started_ticks)


def _failure(one: _Running, code: int) -> ServiceFailed:
    said = last_log_line(one.log, one.log_offset)
    reason = f"killed by signal {-code}: {said}" if code < 0 else said
    return ServiceFailed(one.service.name, reason, one.log, refused=code == CONFIG_ERROR)
