"""Calls of tools as text, in the tags of Hermes and Qwen, and back."""

import json
import re
from typing import Final

from pydantic import JsonValue

from gymfleet_kit.data.converter import UnusableRecord, field

_CALLS: Final = re.compile(r"(?:\n<tool_call>\n[^\n]*\n</tool_call>)+\Z")
_CALL: Final = re.compile(r"\n<tool_call>\n([^\n]*)\n</tool_call>")


def text_of(calls: list[JsonValue]) -> str:
    """Return what stands behind a message for its calls. Raises `UnusableRecord`."""
    return "".join(map(_text, calls))


def calls_in(text: str) -> tuple[str, list[JsonValue] | None]:
    """Return a message without the calls behind it, and these: what `text_of` would write, to the letter."""
    behind = _CALLS.search(text)
    if behind is None:
        return text, None
    try:
        calls = [_call(json.loads(found)) for found in _CALL.findall(behind[0])]
        if text_of(calls) != behind[0]:
            return text, None
    except (ValueError, UnusableRecord, RecursionError):
        return text, None
    return text[: behind.start()], calls


def _text(call: JsonValue) -> str:
    if not isinstance(call, dict):
        raise UnusableRecord("tool_calls: a call is an object with `function`")
    function = field(call, "function", dict)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise UnusableRecord("tool_calls: arguments: no JSON") from None
    said = {"name": field(function, "name", str), "arguments": arguments}
    return f"\n<tool_call>\n{json.dumps(said, ensure_ascii=False)}\n</tool_call>"


def _call(said: JsonValue) -> JsonValue:
    if not isinstance(said, dict):
        raise UnusableRecord("no call")
    arguments = json.dumps(said.get("arguments"), ensure_ascii=False)
    return {"type": "function", "function": {"name": field(said, "name", str), "arguments": arguments}}
