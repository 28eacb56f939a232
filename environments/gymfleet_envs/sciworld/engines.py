"""Decides which virtual machine plays an episode, and when a machine has done its share."""

import atexit
import functools
import threading
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import structlog

from gymfleet_envs.sciworld.jvm import Answer, Jvm, Play
from gymfleet_envs.sciworld.options import SciWorldOptions
from gymfleet_envs.sciworld.tasks import SciTask
from gymfleet_envs.tasks import TaskDataError

VERSION: Final = "1.2.3"
_ENTRY: Final = "scienceworld/runtime/pythonapi/PythonInterface.class"
_MANIFEST: Final = "META-INF/MANIFEST.MF"
_MAX_GOLD: Final = 4096
_MIB: Final = 2**20
log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Machine:
    jvm: Jvm
    open: int = 0
    served: int = 0
    retired: bool = False


@dataclass(slots=True)
class EngineSlot:
    """An episode and the machine that plays it."""

    machine: _Machine
    play: Play

    def act(self, action: str) -> Answer:
        """Apply an action. Raises `EngineLost`, `EngineFault`."""
        return self.machine.jvm.act(self.play, action)


class Engines:
    """The virtual machines of this process. All methods may be called from several threads.

    One machine takes new episodes, and others play their last ones. A further machine solves tasks for the expert: this
    takes seconds, so it is kept away from the episodes.
    """

    def __init__(self, options: SciWorldOptions) -> None:
        self._options = options
        self._jar = jar_of(options)
        # `_opening` is held while a machine starts, which takes seconds; `_lock` is never held for long.
        self._opening = threading.Lock()
        self._solving = threading.Lock()
        self._lock = threading.Lock()
        self._machines: list[_Machine] = []
        self._solver: Jvm | None = None
        self._solved = 0
        self._gold: OrderedDict[SciTask, tuple[str, ...]] = OrderedDict()
        atexit.register(self.stop)

    def begin(self, task: SciTask) -> EngineSlot:
        """Start an episode. Raises `EngineLost` if its machine dies meanwhile."""
        machine = self._take_machine()
        try:
            return EngineSlot(machine, machine.jvm.begin(task))
        except BaseException:
            self._leave(machine)
            raise

    def end(self, slot: EngineSlot) -> None:
        """Release an episode, and its machine if the machine is retired and this was its last episode."""
        slot.machine.jvm.end(slot.play)
        self._leave(slot.machine)

    def gold(self, task: SciTask) -> tuple[str, ...]:
        """Return the engine's own solution, computed once. Raises `EngineLost`, `EngineFault`."""
        with self._solving:
            if task in self._gold:
                self._gold.move_to_end(task)
                return self._gold[task]
            found = self._solving_jvm().gold(task)
            self._solved += 1
            self._gold[task] = found
            if len(self._gold) > _MAX_GOLD:
                self._gold.popitem(last=False)
            return found

    def pids(self) -> list[int]:
        """Return the ids of the processes that play episodes; the last is the one that takes new episodes."""
        with self._lock:
            return [machine.jvm.pid for machine in self._machines]

    def stop(self) -> None:
        """End all processes; the episodes in them are lost."""
        with self._solving:
            if self._solver is not None:
                self._solver.stop()
                self._solver = None
        with self._opening, self._lock:
            for machine in self._machines:
                machine.jvm.stop()
            self._machines.clear()

    def _take_machine(self) -> _Machine:
        """Take a place in the machine for new episodes, or in a new machine if that one has done its share."""
        with self._opening:
            with self._lock:
                current = self._machines[-1] if self._machines else None
                if current is not None and not self._has_done_its_share(current):
                    current.open += 1
                    current.served += 1
                    return current
                if current is not None:
                    self._retire(current)
            machine = _Machine(Jvm(self._jar, self._options), open=1, served=1)
            log.info("jvm.started", pid=machine.jvm.pid)
            with self._lock:
                self._machines.append(machine)
            return machine

    def _leave(self, machine: _Machine) -> None:
        with self._lock:
            machine.open -= 1
            if (machine.retired and machine.open <= 0) or machine.jvm.dead:
                self._retire(machine)

    def _retire(self, machine: _Machine) -> None:
        """Give the machine no new episodes from now on, and end it if none is left. Call it with `_lock` held."""
        machine.retired = True
        if machine.jvm.dead or machine.open <= 0:
            log.info("jvm.ended", pid=machine.jvm.pid, episodes=machine.served, lost=machine.open)
            machine.jvm.stop()
            if machine in self._machines:
                self._machines.remove(machine)

    def _has_done_its_share(self, machine: _Machine) -> bool:
        options = self._options
        return (
            machine.retired
            or machine.jvm.dead
            or machine.served >= options.episodes_per_jvm
            or machine.open >= options.sessions_per_jvm
            or machine.jvm.rss_bytes() > options.recycle_rss_mb * _MIB
        )

    def _solving_jvm(self) -> Jvm:
        """Return the machine that solves tasks. Call it with `_solving` held."""
        options = self._options
        solver = self._solver
        if solver is not None and (
            solver.dead
            or self._solved >= options.episodes_per_jvm
            or solver.rss_bytes() > options.recycle_rss_mb * _MIB
        ):
            solver.stop()
            solver = None
        if solver is None:
            solver = self._solver = Jvm(self._jar, options)
            self._solved = 0
        return solver


@functools.lru_cache(maxsize=8)
def engines(options: SciWorldOptions) -> Engines:
    """Return this process's virtual machines for these options. None is started yet. Raises `TaskDataError`."""
    return Engines(options)


def jar_of(options: SciWorldOptions) -> Path:
    """Return the engine's jar, checked. Raises `TaskDataError`, or `ModuleNotFoundError` if the package is missing."""
    if options.jar is None:
        found = find_spec("scienceworld")
        if found is None or found.origin is None:
            raise ModuleNotFoundError("the package scienceworld is missing; install gymfleet[env-sciworld]")
        jar = Path(found.origin).with_name("scienceworld.jar")
    else:
        jar = options.jar
    try:
        with zipfile.ZipFile(jar) as archive:
            manifest = archive.read(_MANIFEST).decode("utf-8", "replace")
            archive.getinfo(_ENTRY)
            damaged = archive.testzip()
    except FileNotFoundError:
        raise TaskDataError(f"{jar} is missing; it should be ScienceWorld {VERSION}'s jar") from None
    except KeyError as error:
        raise TaskDataError(f"{jar} is not ScienceWorld's jar: {error.args[0]}") from None
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
        raise TaskDataError(f"{jar} is damaged: {error}; reinstall scienceworld=={VERSION}") from None
    if damaged is not None:
        raise TaskDataError(f"{jar} is damaged at {damaged}; reinstall scienceworld=={VERSION}")
    if f"Specification-Version: {VERSION}" not in manifest:
        raise TaskDataError(f"{jar} is another version than {VERSION}, whose tasks are numbered here")
    return jar
