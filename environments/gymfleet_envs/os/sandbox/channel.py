"""Exchanges with the bash programs inside: words go in; output and one answer line come back within a time limit."""

import contextlib
import fcntl
import os
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gymfleet_envs.os.sandbox.base import Head

_CHUNK: Final = 1 << 16
_MAX_DRAINED: Final = 1 << 20
_MAX_ANSWER: Final = 4096
_PAUSE_S: Final = 0.001  # after each chunk that nobody will see: endless output does not keep this process busy
_LOWEST_FD: Final = 64  # out of the way of the numbers that the agent's shell uses itself


@dataclass(slots=True)
class Pipe:
    """Our end and the sandbox's; -1 when closed."""

    ours: int
    theirs: int

    @classmethod
    def inwards(cls) -> "Pipe":
        """Open a pipe that we write to."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        return cls(write, _raised(read))

    @classmethod
    def outwards(cls) -> "Pipe":
        """Open a pipe that we read from."""
        read, write = os.pipe()
        os.set_blocking(read, False)
        return cls(read, _raised(write))

    def close_theirs(self) -> None:
        """Close the sandbox's end here; the sandbox has its own copy."""
        if self.theirs >= 0:
            os.close(self.theirs)
            self.theirs = -1

    def close(self) -> None:
        """Close both ends; a second call does nothing."""
        self.close_theirs()
        if self.ours >= 0:
            os.close(self.ours)
            self.ours = -1


class Channel:
    """One bash program's three pipes. One exchange at a time.

    Args:
        commands: takes words, each ended by NUL.
        answers: yields lines `SEQUENCE:NUMBER`.
        output: yields the output printed meanwhile.
    """

    def __init__(self, commands: int, answers: int, output: int) -> None:
        self._commands = commands
        self._answers = answers
        self._output = output
        self._sequence = 0
        self._partial = b""
        self._number: int | None = None

    def send(self, words: Sequence[bytes]) -> memoryview:
        """Number a request and return its bytes, which `receive` writes."""
        self._sequence += 1
        self._number = None
        return memoryview(b"".join(word + b"\0" for word in (str(self._sequence).encode(), *words)))

    def receive(self, pending: memoryview, head: Head, until: float, ends: Sequence[int]) -> int | None:
        """Write `pending` and read until the answer is there.

        Returns None if the time ran out, or if one of the processes in `ends`
        (process descriptors) ended before an answer came.
        """
        poll = select.poll()
        for fd in (self._answers, self._output, *ends):
            poll.register(fd, select.POLLIN)
        if pending:
            poll.register(self._commands, select.POLLOUT)
        while (left := until - time.monotonic()) > 0:
            ready = dict(poll.poll(1000 * left))
            if self._commands in ready:
                with contextlib.suppress(BlockingIOError):
                    pending = pending[os.write(self._commands, pending) :]
                if not pending:
                    poll.unregister(self._commands)
            if self._output in ready:
                self._read_output(head)
            number = self._read_answer() if self._answers in ready or any(fd in ready for fd in ends) else None
            if number is not None or any(fd in ready for fd in ends):
                self.drain(head)
                return number
        return None

    @property
    def answered(self) -> bool:
        """Whether the last request was answered."""
        return self._number is not None

    def drain(self, head: Head) -> None:
        """Read what the output pipe holds now, and no more: a background process may never stop printing."""
        drained = 0
        while drained < _MAX_DRAINED and (size := self._read_output(head)):
            drained += size

    def _read_output(self, head: Head) -> int:
        try:
            chunk = os.read(self._output, _CHUNK)
        except BlockingIOError:
            return 0
        head.add(chunk)
        if head.cut:
            time.sleep(_PAUSE_S)
        return len(chunk)

    def _read_answer(self) -> int | None:
        """Read the number that answers the request; ignore other lines, which a process inside could also write."""
        with contextlib.suppress(BlockingIOError):
            *lines, self._partial = (self._partial[-_MAX_ANSWER:] + os.read(self._answers, _MAX_ANSWER)).split(b"\n")
            for line in lines:
                sequence, _, number = line.partition(b":")
                if sequence == str(self._sequence).encode() and number.isdigit() and len(number) < 10:
                    self._number = int(number)
        return self._number


def _raised(fd: int) -> int:
    """Move a descriptor to a high number."""
    raised = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD)
    os.close(fd)
    return raised
