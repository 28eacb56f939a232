"""AgentBench's verdicts: a comparison with the answer, or a list of check programs."""

import time
from collections.abc import Sequence
from typing import Final

from gymfleet_envs.os.sandbox.base import Ran, Sandbox, SandboxError
from gymfleet_envs.os.task import Comparison, Match, OsTask, Script

_UNITS: Final[dict[str, int]] = {
    unit: 1024**power for power, names in enumerate(("B Byte", "K KB", "M MB", "G GB", "T TB", "P PB"))
    for unit in names.split()
}  # fmt: skip
_MAX_NUMBER_CHARS: Final = 1000
_KILLED: Final = 128 + 9
_NO_MATCH: Final = 3  # an error of Python's own is 1
_SEARCH: Final = Script(
    f"import re, sys; sys.exit(0 if re.search(sys.argv[1], sys.argv[2]) else {_NO_MATCH})", language="python"
)
"""Searches in the sandbox, because a pattern may take for ever on an answer that was made for it."""


def solved(task: OsTask, answer: str | None, sandbox: Sandbox, timeout_s: float) -> bool:
    """Whether the answer (None: the agent finished) is right in this sandbox.

    `timeout_s` is for all programs of the check together. Raises `SandboxError`, also if a program gave no verdict: it
    was stopped at the time limit, printed more than is kept, or was killed.
    """
    until = time.monotonic() + timeout_s
    if task.match is not None:
        return _matches(task.match, answer, sandbox, timeout_s)
    outputs = [str(answer)]
    for entry in task.check:
        if isinstance(entry, str):
            if not compare(entry, outputs):
                return False
            outputs.append("")
            continue
        script = entry if entry is not None else task.example
        if script is None:
            return False
        ran = sandbox.check(script.argv(*outputs), max(until - time.monotonic(), 0.0))
        if (fault := unsaid(ran, timeout_s)) is not None:
            raise SandboxError(f"the check {fault}")
        if ran.code != 0:
            return False
        outputs.append(ran.output.decode(errors="replace"))
    return True


def unsaid(ran: Ran, timeout_s: float) -> str | None:
    """Return why the result of a task's program proves nothing; None if the program ended by itself."""
    if ran.timed_out or ran.code is None:
        return f"was stopped after {timeout_s:g} seconds"
    if ran.code == _KILLED:
        return "was killed"
    return "printed more than is kept" if ran.cut else None


def compare(kind: Comparison, outputs: Sequence[str]) -> bool:
    """Compare the answer with the output of the first program, like AgentBench's check programs of these names."""
    if len(outputs) < 2:
        return False
    given, expected = outputs[0], outputs[1]
    try:
        if kind == "integer-match":
            return _integer(given) == _integer(expected)
        if kind == "size-match":
            return _size(given) == _size(expected)
    except ValueError:
        return False
    return _plain_newlines(given) == _plain_newlines(expected)


def _matches(match: Match, answer: str | None, sandbox: Sandbox, timeout_s: float) -> bool:
    if match.strip and answer is not None:
        answer = answer.strip()
    if match.regex is None or answer is None:
        return match.answer is not None and answer == match.answer
    ran = sandbox.check(_SEARCH.argv(match.regex, answer), timeout_s)
    if (fault := unsaid(ran, timeout_s)) is not None:
        raise SandboxError(f"the search {fault}")
    if ran.code not in (0, _NO_MATCH):
        raise SandboxError(f"the search failed with exit code {ran.code}")
    return ran.code == 0


def _integer(text: str) -> int:
    if len(text) > _MAX_NUMBER_CHARS:
        raise ValueError("no number of this length is meant")
    return int(text)


def _size(text: str) -> int:
    text = text.strip()
    for unit, size in _UNITS.items():  # in this order: "KB" ends with "B", and so is no number to upstream either
        if text.endswith(unit):
            return _integer(text[: -len(unit)]) * size
    return _integer(text)


def _plain_newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()
