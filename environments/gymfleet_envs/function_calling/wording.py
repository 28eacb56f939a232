"""The texts that are shown, in the words of BFCL's prompting mode."""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

INSTRUCTIONS: Final = (
    "You are an expert in composing functions."
    "You are given a question and a set of possible functions. Based on the question, you will need to make one or "
    "more function/tool calls to achieve the purpose. If none of the functions can be used, point it out. If the given "
    "question lacks the parameters required by the function, also point it out.\n\n"
    "You should only return the function calls in your response.\n\n"
    "If you decide to invoke any of the function(s), you MUST put it in the format of [func_name1(params_name1="
    "params_value1, params_name2=params_value2...), func_name2(params)].  You SHOULD NOT include any other text in the "
    "response.\n\n"
    "At each turn, you should try your best to complete the tasks requested by the user within the current turn. "
    "Continue to output functions to call until you have fulfilled the user's request to the best of your ability. "
    "Once you have no more functions to call, the system will consider the current turn complete and proceed to the "
    "next turn or task."
)
"""BFCL's system prompt, without the functions, which differ from task to task."""
_NOTE: Final = " Note that the provided function is in Python 3 syntax."
_MORE: Final = "I have updated some more functions you can choose from. What about now?"


def listed(functions: Sequence[Mapping[str, Any]]) -> str:
    """Return the functions' descriptions with BFCL's note on their language, as JSON in one line."""
    return json.dumps([{**one, "description": f"{one['description']}{_NOTE}"} for one in functions])


def opening(functions: str, request: str) -> str:
    """Return the first observation."""
    return f"Here is a list of functions in json format that you can invoke.\n{_laid_out(functions)}\n\n\n{request}"


@functools.lru_cache(maxsize=256)
def _laid_out(functions: str) -> str:
    """Format JSON as BFCL does; it takes milliseconds, so a group's episodes share the result."""
    return json.dumps(json.loads(functions), indent=4)


def given_later(functions: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a turn that gives missing functions; BFCL shows them in the form of Python's `str`."""
    return f"{list(functions)}\n{_MORE}"


def spoken(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return messages as one text: system messages first and bare, the others with roles if there are several."""
    system = [message["content"] for message in messages if message["role"] == "system"]
    rest = [message for message in messages if message["role"] != "system"]
    said = [one["content"] if len(rest) == 1 else f"{one['role']}: {one['content']}" for one in rest]
    return "\n\n".join((*system, *said))
