"""One Java virtual machine with ScienceWorld in it, and the episodes that it plays.

The engine keeps three things per machine instead of per episode: its random generator,
its counter of object ids and its list of simplifications. They are set before each call,
under a lock, so that an episode runs as it would in its own machine. Java's identity
hashes are all made equal: they decide the order in which the engine's sets list things,
and would make texts differ from run to run.
"""

import contextlib
import os
import selectors
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
from py4j.java_gateway import GatewayParameters, JavaGateway, find_jar_path
from py4j.protocol import Py4JError, Py4JJavaError

from gymfleet_envs.environment import EngineLost
from gymfleet_envs.sciworld.options import SciWorldOptions
from gymfleet_envs.sciworld.tasks import SciTask

_LOOPBACK: Final = "127.0.0.1"
_LOOK: Final = "look around"
_CLOSING_S: Final = 10.0
_REFERENCE: Final = SciTask("boil", 0)
_PLACES: Final = (
    "art studio", "bathroom", "bedroom", "foundry", "greenhouse", "hallway", "kitchen", "living room", "outside",
    "workshop",
)  # fmt: skip


class EngineFault(Exception):
    """The engine failed at one call; the virtual machine still works."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of an action."""

    text: str
    score: int
    """-100 to 100."""
    completed: bool
    moves: int
    """The engine's count: waiting counts tenfold, looking not at all."""


@dataclass(slots=True)
class Play:
    """An episode inside of a virtual machine. `interface` and `random` are handles of Java objects."""

    interface: Any
    random: Any
    simplifications: str
    next_object: int
    description: str
    last: Answer


class Jvm:
    """A running virtual machine. Calls from several threads take turns. Raises `EngineLost` once it is dead."""

    def __init__(self, jar: Path, options: SciWorldOptions) -> None:
        self._lock = threading.Lock()
        self._dead = ""
        self._simplifications = ""
        self._searched: set[str] = set()
        self._process, port, token = _launch(jar, options)
        self.pid = self._process.pid
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(
                address=_LOOPBACK,
                port=port,
                auth_token=token,
                read_timeout=options.call_timeout_s,
                # Objects are released one by one, not when Python's collector happens to find them.
                enable_memory_management=False,
            )
        )
        try:
            with self._calling():
                self._prepare()
        except BaseException:
            self.stop()
            raise

    @property
    def dead(self) -> bool:
        """Whether the machine is dead: no call can succeed any more."""
        if not self._dead and self._process.poll() is not None:
            self._dead = f"the Java virtual machine ended with exit code {self._process.returncode}"
        return bool(self._dead)

    def rss_bytes(self) -> int:
        """Return the machine's resident memory; 0 if it is dead."""
        try:
            return psutil.Process(self.pid).memory_info().rss
        except psutil.NoSuchProcess:
            return 0

    def begin(self, task: SciTask) -> Play:
        """Load a variation and look around, as AgentGym's server does. Raises `EngineFault`."""
        with self._calling():
            random = self._load(task, gold=False)
            interface = self._loaded()
            play = Play(
                interface, random, task.simplifications, self._ids.count(), interface.getTaskDescription(), _NOTHING
            )
            self._act(play, _LOOK)
            return play

    def act(self, play: Play, action: str) -> Answer:
        """Apply an action. Raises `EngineFault`, and `EngineLost` also if the episode's world broke before."""
        with self._calling():
            self._generator.set(self._random_module, play.random)
            self._set_ids(play.next_object)
            if self._simplifications != play.simplifications:
                self._gateway.detach(self._simplifier.parseSimplificationStr(play.interface.simplificationStr()))
                self._simplifications = play.simplifications
            return self._act(play, action)

    def gold(self, task: SciTask) -> tuple[str, ...]:
        """Return the engine's own solution. This takes a second, or ten for the longest. Raises `EngineFault`.

        The engine keeps its searches through the house for all later tasks, in the house of
        the first task that needed them. They are replaced with those of one fixed task, so
        that a solution does not depend on the tasks solved before.
        """
        with self._calling():
            searches = self._finder.precomputedExhaustivePaths()
            while True:
                self._gateway.detach(self._load(task, gold=True))
                new = [place for place in _PLACES if place not in self._searched and searches.contains(place)]
                if not new:
                    break
                self._search_from(new, searches)
            self._gateway.detach(searches)
            actions = self._maker.getGoldActionSequence()
            text: str = self._gateway.jvm.java.lang.String.join("\n", actions)
            self._gateway.detach(actions)
            return tuple(text.splitlines())

    def end(self, play: Play) -> None:
        """Release an episode."""
        with contextlib.suppress(EngineLost), self._calling():
            self._gateway.detach(play.interface)
            self._gateway.detach(play.random)

    def stop(self) -> None:
        """End the process, whatever it is doing. May be called more than once, and from any thread."""
        self._dead = self._dead or "the Java virtual machine was ended"
        self._process.kill()
        self._process.wait(_CLOSING_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._gateway.close()

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        with self._lock:
            if self.dead:
                raise EngineLost(self._dead)
            try:
                yield
            except Py4JJavaError as error:
                raise EngineFault(f"ScienceWorld failed: {str(error.java_exception)[:500]}") from None
            except (Py4JError, OSError) as error:
                # Dead, out of memory, or silent for too long: the call in progress must not go on.
                self._process.kill()
                self._dead = f"the Java virtual machine did not answer: {error}"
                raise EngineLost(self._dead) from None

    def _prepare(self) -> None:
        """Find the engine's parts that belong to the machine as a whole."""
        java = self._gateway.jvm.java
        nowhere = java.io.PrintStream(java.io.OutputStream.nullOutputStream())
        java.lang.System.setOut(nowhere)  # the engine prints each answer
        java.lang.System.setErr(nowhere)
        self._maker = self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()
        self._ids = self._module("util.UniqueIdentifier$")
        self._set_ids = getattr(self._ids, "count_$eq")
        self._simplifier = self._module("main.scala.scienceworld.runtime.SimplifierProcessor$")
        self._finder = self._module("scienceworld.goldagent.PathFinder$")
        self._random_module = self._module("scala.util.Random$")
        self._generator = java.lang.Class.forName("scala.util.Random").getDeclaredField("self")
        self._generator.setAccessible(True)

    def _module(self, name: str) -> Any:
        """Return the one instance of a Scala `object`."""
        return self._gateway.jvm.java.lang.Class.forName(name).getField("MODULE$").get(None)

    def _load(self, task: SciTask, *, gold: bool) -> Any:
        """Load a variation into the maker, with a new random generator; return the generator."""
        random = self._gateway.jvm.java.util.Random()
        self._generator.set(self._random_module, random)
        # `load` also resets the ids and seeds the generator by the variation.
        if fault := self._maker.load(task.task, task.variation, task.simplifications, gold):
            raise EngineFault(f"ScienceWorld refuses {task.task_id}: {str(fault)[:500]}")
        self._simplifications = task.simplifications
        return random

    def _loaded(self) -> Any:
        """Return the interface that plays the variation loaded last."""
        option = self._maker.agentInterface()
        interface = option.get()
        self._gateway.detach(option)
        return interface

    def _search_from(self, places: list[str], searches: Any) -> None:
        self._gateway.detach(self._load(_REFERENCE, gold=False))
        interface = self._loaded()
        universe, agent = interface.universe(), interface.agent()
        for place in places:
            found = self._finder.createActionSequenceSearchPattern(universe, agent, place)
            searches.update(place, found)
            self._gateway.detach(found)
            self._searched.add(place)
        for part in (universe, agent, interface):
            self._gateway.detach(part)

    def _act(self, play: Play, action: str) -> Answer:
        interface = play.interface
        if (told := self._told(play, action.lower())) is not None:
            play.last = Answer(told, play.last.score, completed=play.last.completed, moves=play.last.moves)
            return play.last
        result = interface.step(action)
        text, score, completed = (getattr(result, f"_{place}")() for place in (1, 2, 3))
        self._gateway.detach(result)
        play.next_object = self._ids.count()
        answer = Answer(text, round(100 * score), completed, interface.getCurIterations())
        if answer.score < 0 and interface.isInErrorState():
            # The world broke in the middle of an earlier action; from then on, each action only gets -100.
            raise EngineLost(f"ScienceWorld failed: {str(interface.getErrorStateMessage())[:500]}")
        play.last = answer
        return answer

    def _told(self, play: Play, word: str) -> str | None:
        """Return the answer to a word, if it is one of upstream's three that are no actions."""
        if word == "task":
            return f"Task description:\n{play.description}"
        if word == "help":
            return "Possible actions: \n\t" + self._listed(play.interface.getPossibleActions())
        if word == "objects":
            return "Possible object references: \n\t" + self._listed(play.interface.getPossibleObjects())
        return None

    def _listed(self, array: Any) -> str:
        text = "\n\t".join(array)
        self._gateway.detach(array)
        return text


_NOTHING: Final = Answer("", 0, completed=False, moves=0)


def _launch(jar: Path, options: SciWorldOptions) -> tuple["subprocess.Popen[bytes]", int, str]:
    """Start Java on a free loopback port; return the process, the port and the token that calls must carry.

    The gateway ends when its standard input does: together with this process, however this process ends.
    """
    java = shutil.which("java")
    if java is None:
        raise FileNotFoundError("the program 'java' is not on PATH")
    command = [
        java,
        "-XX:+UseSerialGC",
        f"-Xmx{options.heap_mb}m",
        "-Xms32m",
        "-XX:MinHeapFreeRatio=20",
        "-XX:MaxHeapFreeRatio=40",
        "-XX:ReservedCodeCacheSize=96m",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",
        "-XX:+DisplayVMOutputToStderr",
        "-XX:+UnlockExperimentalVMOptions",
        "-XX:hashCode=2",
        "-Djava.awt.headless=true",
        "-Dfile.encoding=UTF-8",
        "-classpath",
        os.pathsep.join((find_jar_path(), str(jar.resolve()))),
        "py4j.GatewayServer",
        "--die-on-broken-pipe",
        "--enable-auth",
        "0",
    ]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=jar.resolve().parent,  # the engine reads its table of types there, and writes one where there is none
            env={"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8", "MALLOC_ARENA_MAX": "2"},
        )
        try:
            port, token = _first_lines(process, options.start_timeout_s)
            return process, int(port), token
        except (ValueError, OSError):
            process.kill()
            process.wait(_CLOSING_S)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            errors.seek(0)
            said = errors.read(2000).decode(errors="replace").strip().splitlines()
            raise EngineLost(f"Java did not start: {said[-1] if said else 'it said nothing'}") from None


def _first_lines(process: "subprocess.Popen[bytes]", timeout_s: float) -> tuple[str, str]:
    """Return the port and the token that the gateway prints. Raises `ValueError` if they do not come."""
    if process.stdout is None:
        raise ValueError("no standard output")
    descriptor = process.stdout.fileno()
    deadline = time.monotonic() + timeout_s
    received = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while received.count(b"\n") < 2:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise ValueError("too late")
            chunk = os.read(descriptor, 4096)
            if not chunk:
                raise ValueError("it ended")
            received += chunk
    port, token, *_ = received.decode("ascii").splitlines()
    return port, token
