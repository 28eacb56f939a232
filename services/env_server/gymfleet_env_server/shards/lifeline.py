"""A shard dies with its front, and the processes that it started die with it, however the front ends."""

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
import threading
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_F_SETSIG: Final = 10


def die_with_front(lifeline: int) -> None:
    """Arrange that this process group is killed when the pipe's other end is closed. Nothing is ever written to it."""
    if not _killed_by_kernel(lifeline) and sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    threading.Thread(target=_wait, args=(lifeline,), name="lifeline", daemon=True).start()


def _killed_by_kernel(lifeline: int) -> bool:
    """Have Linux send the group a chosen signal when the pipe is hung up, even while a step hangs in C code.

    The parent-death signal, the usual way, would reach only this process and leave its children running.
    """
    if sys.platform != "linux" or os.getpgrp() != os.getpid():
        return False
    with contextlib.suppress(OSError):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
        return True
    return False


def _wait(lifeline: int) -> None:
    os.read(lifeline, 1)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)
