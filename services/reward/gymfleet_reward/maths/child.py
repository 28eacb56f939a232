"""A process that compares answers: it reads a line of JSON, and writes lines with its progress and its verdict.

The kernel ends the process when a comparison takes more than its processor time: SymPy may then be anywhere, even in
one multiplication of large numbers that no signal handler of Python interrupts.
"""

import json
import resource
import signal
import sys
from typing import Final

from math_verify import parse, verify

from gymfleet_reward.maths.verdict import GOLD_READ, READY, Verdict

_MEMORY_BYTES: Final = 1 << 29


def main() -> None:
    """Answer until there is no more input."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _say(READY)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["cpu_s"])  # whose signal, SIGPROF, ends a process
        _say(_verdict(request["gold"], request["answer"]))
        signal.setitimer(signal.ITIMER_PROF, 0)


def _verdict(gold: str, answer: str) -> Verdict:
    right = parse(gold, parsing_timeout=None)
    if not right:
        return Verdict.UNREADABLE_GOLD
    _say(GOLD_READ)
    try:
        given = parse(answer, parsing_timeout=None, raise_on_error=True)
        return _compared(right, given, strictly=True)
    except MemoryError:
        return Verdict.COSTLY
    except Exception:  # noqa: BLE001 - the library's own way to say that two things are not the same
        return _compared(right, parse(answer, parsing_timeout=None), strictly=False)


def _compared(right: list[object], given: list[object], *, strictly: bool) -> Verdict:
    same = verify(right, given, timeout_seconds=None, raise_on_error=strictly)
    return Verdict.RIGHT if same else Verdict.WRONG


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
