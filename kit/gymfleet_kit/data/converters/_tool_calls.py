"""Tool calls as text, in the tags of Hermes and Qwen, and back."""

import json
import re
from collections.abc import Sequence
from typing import Final

from gymfleet_contracts.conversation import MadeCall
from pydantic import ValidationError

from gymfleet_kit.data.converter import UnusableRecord
from gymfleet_kit.data.converters._functions import made_call

_CALLS: Final = re.compile(r"(?:\n<tool_call>\n[^\n]*\n</tool_call>)+\Z")
_CALL: Final = re.compile(r"\n<tool_call>\n([^\n]*)\n</tool_call>")


def text_of(calls: Sequence[MadeCall]) -> str:
    """Return the text after a message for its calls."""
    return "".join(map(_text, calls))


def calls_in(text: str) -> tuple[str, tuple[MadeCall, ...]]:
    """Return a message without the calls after it, and the calls, if `text_of` would write them in exactly this way."""
    behind = _CALLS.search(text)
    if behind is None:
        return text, ()
    try:
        calls = tuple(made_call(json.loads(found), "tool_calls") for found in _CALL.findall(behind[0]))
    except (ValueError, UnusableRecord, ValidationError, RecursionError):
        return text, ()
    return (text[: behind.start()], calls) if text_of(calls) == behind[0] else (text, ())


def _text(call: MadeCall) -> str:
    said = {"name": call.name, "arguments": call.arguments}
    return f"\n<tool_call>\n{json.dumps(said, ensure_ascii=False)}\n</tool_call>"
