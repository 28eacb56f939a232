"""The few processes that compare answers, shared by all rewards of this service."""

import atexit
import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import time
from typing import IO, Final, cast

from gymfleet_reward.maths.verdict import GOLD_READ, READY, Verdict

_MAX_PROCESSES: Final = 2
_START_TIMEOUT_S: Final = 30.0
_WALL_PER_CPU: Final = 6.0
"""Wall-clock seconds for each second of processor time; a machine too busy for that gives no verdict."""
_MAX_USES: Final = 500
"""Comparisons of a process: SymPy remembers expressions, and a later answer would pay for that memory."""
_MAX_CHARS: Final = 1_000_000
_HARMLESS: Final = "1"
_OWN_FAULT: Final = frozenset({-signal.SIGPROF, -signal.SIGSEGV, -signal.SIGABRT})


class VerifierFailed(Exception):
    """The process was ended from outside, or the machine was too busy for it: another attempt may succeed."""


class MathPool:
    """Compare answers, in at most `size` processes, each started when it is first needed."""

    def __init__(self, size: int) -> None:
        self._free: queue.LifoQueue[_Verifier | None] = queue.LifoQueue()
        for _ in range(size):
            self._free.put(None)
        self._size = size

    def verify(self, gold: str, answer: str, *, cpu_s: float) -> Verdict:
        """Return whether two answers are the same; blocks. Raises `VerifierFailed`.

        Args:
            gold: the right answer, as math-verify reads it: a number, or LaTeX with its delimiters.
            answer: a text that contains the other answer.
            cpu_s: processor time for this comparison.
        """
        if max(len(gold), len(answer)) > _MAX_CHARS:
            return Verdict.COSTLY_GOLD if len(gold) > _MAX_CHARS else Verdict.COSTLY
        verdict = self._verify(gold, answer, cpu_s)
        if verdict is Verdict.COSTLY and self._verify(gold, _HARMLESS, cpu_s) is Verdict.COSTLY:
            return Verdict.COSTLY_GOLD  # no answer could be compared with it
        return verdict

    def _verify(self, gold: str, answer: str, cpu_s: float) -> Verdict:
        verifier = self._free.get()
        try:
            verifier = verifier or _Verifier()
            verdict = verifier.verify(gold, answer, cpu_s)
            if verifier.spent:
                verifier.close()
                verifier = None
        except BaseException:
            if verifier is not None:
                verifier.close()
                verifier = None
            raise
        finally:
            self._free.put(verifier)
        return verdict

    def close(self) -> None:
        """End the processes that wait; the pool starts others when it is used again."""
        for verifier in [self._free.get() for _ in range(self._size)]:
            if verifier is not None:
                verifier.close()
            self._free.put(None)


class _Verifier:
    """One process."""

    def __init__(self) -> None:
        self._uses = 0
        self._unread = b""
        # Not the service's environment, which holds its keys.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gymfleet_reward.maths.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._input = cast("IO[bytes]", self._process.stdin)
        self._output = cast("IO[bytes]", self._process.stdout)
        self._readable = select.poll()
        self._readable.register(self._output, select.POLLIN)
        try:
            if self._line(time.monotonic() + _START_TIMEOUT_S) != READY:
                raise VerifierFailed("the process that compares answers did not start")
        except BaseException:
            self.close()
            raise

    @property
    def spent(self) -> bool:
        """Return whether the process should make way for a new one."""
        return self._uses >= _MAX_USES or self._process.poll() is not None

    def verify(self, gold: str, answer: str, cpu_s: float) -> Verdict:
        """See `MathPool`."""
        self._uses += 1
        deadline = time.monotonic() + _WALL_PER_CPU * cpu_s
        request = json.dumps({"gold": gold, "answer": answer, "cpu_s": cpu_s})
        try:
            self._input.write(f"{request}\n".encode())
            self._input.flush()
        except BrokenPipeError:
            raise VerifierFailed("the process that compares answers is gone") from None
        line = self._line(deadline)
        gold_read = line == GOLD_READ
        if gold_read:
            line = self._line(deadline)
        if line is not None:
            return Verdict(line)
        code = self._process.wait()
        if code not in _OWN_FAULT:
            raise VerifierFailed(f"the process that compares answers ended with {code}")
        return Verdict.COSTLY if gold_read else Verdict.COSTLY_GOLD

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._output.close()
        with contextlib.suppress(BrokenPipeError):  # there may be something left to write
            self._input.close()

    def _line(self, deadline: float) -> str | None:
        """Return the next line, None if the process ended. Raises `VerifierFailed` when time is up."""
        while b"\n" not in self._unread:
            if not self._readable.poll(max(deadline - time.monotonic(), 0.0) * 1000):
                raise VerifierFailed("no verdict in time: the machine is too busy to compare answers")
            read = os.read(self._output.fileno(), 4096)
            if not read:
                return None
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()


POOL: Final = MathPool(min(_MAX_PROCESSES, len(os.sched_getaffinity(0))))
atexit.register(POOL.close)
