"""`tool_call`: function calling with JSON Schemas, as Hermes and Qwen write it, or as AgentGym does."""

import json
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from gymfleet_contracts.formats._calls import Function
from gymfleet_contracts.reply_format import FormatOptions, ModelReply, ParsedReply, ReplyFormat, no_action
from gymfleet_contracts.session import Tool
from gymfleet_contracts.session import ToolCall as Call
from gymfleet_contracts.strict_json import read_object

_BEGIN: Final = "<tool_call>"
_END: Final = "</tool_call>"


class ToolCallOptions(FormatOptions):
    """Which functions there are, and how a call is written."""

    functions: Annotated[tuple[Function, ...], Field(min_length=1, max_length=64)] | Literal["environment"] = (
        Function(name="act", action="{action}", description="Take one action, written as the instructions name it."),
    )
    """`"environment"`: the tools that the environment declares; it checks their arguments, and its expert cannot
    demonstrate with them. Or functions, each with `name`, `action` and `description`:
    `{ name = "go", action = "go to {place}" }` turns a call with the place `shelf 1` into `go to shelf 1`. If several
    functions spell an action of the expert, the first of them is called."""
    style: Literal["hermes", "agentgym", "template"] = "hermes"
    """`"hermes"`: free text, then JSON with `name` and `arguments` between `<tool_call>` tags, as Qwen's models are
    trained to write. `"agentgym"`: JSON alone, with `thought`, `function_name` and `arguments`. `"template"`: the
    model's own chat template declares the functions, and calls are written and read in its form."""

    @model_validator(mode="after")
    def functions_are_told_apart(self) -> Self:
        """Require that all functions have different names."""
        if self.functions == "environment":
            return self
        names = [function.name for function in self.functions]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two functions are called {', '.join(twice)}")
        return self


class ToolCall(ReplyFormat[ToolCallOptions]):
    """A call of one function, as JSON; the last call counts. Arguments that its JSON Schema refuses are no action."""

    Options = ToolCallOptions
    examples = (*ReplyFormat.examples, 'a "quoted" \\ text', "first line\n  second line", "</tool_call>")

    def __init__(self, options: ToolCallOptions, declared: tuple[Tool, ...] = ()) -> None:
        super().__init__(options)
        given = () if options.functions == "environment" else options.functions
        self._functions = {function.name: function for function in given}
        self._tools = {tool.name: tool for tool in (*declared, *(function.tool for function in given))}
        self._hermes = options.style != "agentgym"  # as texts of data, calls of templates are written so, too
        self._native = options.style == "template"

    @property
    def instructions(self) -> str:
        """Declare the functions, and show what a call looks like."""
        if self._native:
            return "Answer each message with a call of one function."
        if not self._tools:
            return f"You have functions, which the environment declares. {self._asked}"
        declared = "\n".join(_json(tool.model_dump()) for tool in self._tools.values())
        return f"You have these functions, given with JSON Schemas of their arguments:\n{declared}\n{self._asked}"

    @property
    def complaint(self) -> str:
        """Repeat what a call looks like."""
        names = ", ".join(self._tools) or "those of the environment"
        asked = "Answer with a call of one of them." if self._native else self._asked
        return f"Invalid call. Functions: {names}. {asked}"

    def with_tools(self, tools: tuple[Tool, ...]) -> "ToolCall":
        """Declare the environment's tools if the options ask for them. Raises ValueError if it has none."""
        if self.options.functions != "environment":
            return self
        if not tools:
            raise ValueError('the environment declares no tools: leave out functions = "environment"')
        return ToolCall(self.options, tools)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Return the functions if the chat template declares them."""
        return tuple(self._tools.values()) if self._native else ()

    def read(self, reply: ModelReply) -> ParsedReply:
        """Read the call that the template understood. A reply with several calls has no action: an action is one."""
        if not self._native:
            return super().read(reply)
        thought = "\n".join(part for part in (reply.reasoning, reply.content) if part)
        if len(reply.calls) != 1:
            return no_action(thought)
        action, call = self._spelled(reply.calls[0].name, reply.calls[0].arguments)
        return ParsedReply(thought, action, bool(action) and reply.clean, complete=bool(action), call=call)

    def compose(self, thought: str, action: str, *, thinks: bool) -> ModelReply:
        """Call the first function that spells the action. Raises ValueError if none does."""
        if not self._native:
            return super().compose(thought, action, thinks=thinks)
        name, arguments = self._call_of(action)
        calls = (Call(name=name, arguments=dict(arguments)),)
        return ModelReply("" if thinks else thought, thought if thinks else "", calls)

    @property
    def _asked(self) -> str:
        if self._hermes:
            call = '{"name": <function name>, "arguments": <object>}'
            return f"Think, then call one of them:\n{_BEGIN}\n{call}\n{_END}"
        call = '{"thought": <your reasoning>, "function_name": <function name>, "arguments": <object>}'
        return f"Answer with a call of one of them, and nothing else:\n{call}"

    def parse(self, text: str) -> ParsedReply:
        """Read the last call. It is complete if its tag, or its JSON, is closed."""
        return self._parse_hermes(text) if self._hermes else self._parse_agentgym(text)

    def render(self, thought: str, action: str) -> str:
        """Write a call of the first function that spells the action. Raises ValueError if none does."""
        return self._written(thought, *self._call_of(action))

    def _call_of(self, action: str) -> tuple[str, dict[str, str]]:
        for function in self._functions.values():
            arguments = function.read(action)
            if arguments is not None and function.spelled(arguments) == action:
                return function.name, arguments
        raise ValueError(
            f"none of the functions {', '.join(self._functions) or 'given'} spells the action {action[:80]!r}"
        )

    def _written(self, thought: str, name: str, arguments: dict[str, str]) -> str:
        if not self._hermes:
            return _json({"thought": thought, "function_name": name, "arguments": arguments})
        call = _json({"name": name, "arguments": arguments})
        for tag in (_BEGIN, _END):  # in a text of the call it would end or begin one
            call = call.replace(tag, "\\u003c" + tag[1:])
        return "\n".join(part for part in (thought, _BEGIN, call, _END) if part)

    def _parse_hermes(self, text: str) -> ParsedReply:
        head, marker, tail = text.rpartition(_BEGIN)
        if not marker:
            return no_action(text.strip())
        inside, closed, after = tail.partition(_END)
        action, call, _ = self._called(inside, "name", {"name", "arguments"})
        well_formed = bool(action and closed) and not after.strip() and _BEGIN not in head and _END not in head + after
        return ParsedReply(head.strip(), action, well_formed, complete=bool(action and closed), call=call)

    def _parse_agentgym(self, text: str) -> ParsedReply:
        begin, end = text.find("{"), text.rfind("}") + 1
        if not -1 < begin < end:
            return no_action(text.strip())
        known = {"thought", "function_name", "arguments"}
        action, call, thought = self._called(text[begin:end], "function_name", known)
        well_formed = action is not None and not (text[:begin] + text[end:]).strip()
        return ParsedReply(thought, action, well_formed, complete=action is not None, call=call)

    def _called(self, text: str, key: str, known: set[str]) -> tuple[str | None, Call | None, str]:
        """Return the action that a call spells, the call if the environment spells it, and the thought in it."""
        given = read_object(text)
        if given is None or not given.keys() <= known:
            return None, None, ""
        name, arguments, thought = given.get(key), given.get("arguments", {}), given.get("thought", "")
        if not (isinstance(name, str) and isinstance(arguments, dict) and isinstance(thought, str)):
            return None, None, ""
        return (*self._spelled(name, arguments), thought.strip())

    def _spelled(self, name: str, arguments: dict[str, Any]) -> tuple[str | None, Call | None]:
        """Return the action that a call spells, and the call if the environment spells it."""
        if name not in self._tools:
            return None, None
        if name not in self._functions:
            call = Call(name=name, arguments=arguments)
            return _json(call.model_dump()), call
        action = self._functions[name].spelled(arguments)
        return (action.strip() or None if action else None), None


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
