"""Imported responses of the live services that weather, movie and academia ask upstream.

A file `responses/ENV.jsonl` has one response per line: `{"tool": ..., "arguments": {...}, "result": ...}`, with the
result as the tool returned it. Published tasks are played from this file, and refused without it.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from gymfleet_envs.agentgym_tools.base import Refused
from gymfleet_envs.task_files import read_text
from gymfleet_envs.tasks import TaskDataError

MISSING: Final = "No response to this call was imported."
_MAX_BYTES: Final = 256 * 2**20


class Response(NamedTuple):
    """A call and its result."""

    tool: str
    arguments: Mapping[str, Any]
    result: Any


def read_responses(env: str, data: Path) -> Iterator[Response]:
    """Yield the imported responses. Raises `TaskDataError` if there are none, and for a damaged line."""
    path = data / "responses" / f"{env}.jsonl"
    if not path.is_file():
        raise TaskDataError(
            f"{env}: {data} has no responses/{path.name}: AgentGym's tasks ask live services, so they can be played "
            'from imported responses alone, one a line: {"tool": ..., "arguments": {...}, "result": ...}'
        )
    for number, line in enumerate(read_text(env, path, max_bytes=_MAX_BYTES).split("\n"), 1):
        if line.strip():
            yield _response(env, f"{path}:{number}", line)


def _response(env: str, where: str, line: str) -> Response:
    try:
        row = json.loads(line)
        tool, arguments, result = row["tool"], row["arguments"], row["result"]
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise TaskDataError(
            f"{env}: {where}: it is no object with tool, arguments and result ({type(error).__name__})"
        ) from None
    if not isinstance(tool, str) or not isinstance(arguments, dict):
        raise TaskDataError(f"{env}: {where}: tool is no text, or arguments no object")
    return Response(tool, arguments, result)


class Responses:
    """Responses by their calls. Argument values are compared as text, because ids may be numbers or text."""

    def __init__(self, responses: Iterator[Response]) -> None:
        self._results = {_key(tool, arguments): result for tool, arguments, result in responses}

    def use(self, tool: str, arguments: Any) -> Any:
        """Return the imported result of a call. Raises `Refused` if there is none."""
        key = _key(tool, arguments) if isinstance(arguments, dict) else ()
        if key not in self._results:
            raise Refused(MISSING)
        return self._results[key]


def _key(tool: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    return (tool, *(f"{name}={arguments[name]}" for name in sorted(arguments)))
