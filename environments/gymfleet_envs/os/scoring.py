"""AgentBench's verdicts: a comparison with the answer, or a list of check programs."""

import re
from collections.abc import Sequence
from typing import Final

from gymfleet_envs.os.sandbox.base import Sandbox
from gymfleet_envs.os.task import Comparison, Match, OsTask

_UNITS: Final[dict[str, int]] = {
    unit: 1024**power for power, names in enumerate(("B Byte", "K KB", "M MB", "G GB", "T TB", "P PB"))
    for unit in names.split()
}  # fmt: skip
_MAX_NUMBER_CHARS: Final = 1000


def solved(task: OsTask, answer: str | None, sandbox: Sandbox, timeout_s: float) -> bool:
    """Whether the answer (None: the agent said that it is done) is right in this sandbox. Raises `SandboxError`."""
    if task.match is not None:
        return _matches(task.match, answer)
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
        ran = sandbox.program(script.argv(*outputs), timeout_s)
        if ran.code != 0:
            return False
        outputs.append(ran.output.decode(errors="replace"))
    return True


def compare(kind: Comparison, outputs: Sequence[str]) -> bool:
    """AgentBench's check programs of these names: the answer against the output of the program before."""
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


def _matches(match: Match, answer: str | None) -> bool:
    if match.strip and answer is not None:
        answer = answer.strip()
    if match.answer is not None:
        return answer == match.answer
    return answer is not None and match.regex is not None and re.search(match.regex, answer) is not None


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
