"""Actions as calls of functions: which function spells which action."""

import re
from collections.abc import Mapping
from typing import Annotated, Final, Self

from pydantic import Field, JsonValue, model_validator

from gymfleet_contracts.reply_format import FormatOptions
from gymfleet_contracts.session import TOOL_NAME, Tool

_ARGUMENT: Final = re.compile(r"\{([a-z][a-z0-9_]{0,31})\}")


class Function(FormatOptions):
    """A kind of action as a function that the model calls."""

    name: Annotated[str, Field(pattern=TOOL_NAME)]
    """The function's name."""
    action: Annotated[str, Field(min_length=1, max_length=256, pattern=r"\S")]
    """The action that a call spells, with the arguments in braces: `put {object} in/on {place}`."""
    description: Annotated[str, Field(max_length=1024)] = ""
    """The description for the model; by default the action with its braces."""

    @model_validator(mode="after")
    def parameters_are_told_apart(self) -> Self:
        """Require different arguments with text between them, so that an action can be read as a call."""
        names, texts = self.names, self.texts
        if len(set(names)) != len(names):
            raise ValueError(f"the action {self.action!r} names an argument twice")
        if not all(texts[1:-1]):
            raise ValueError(f"the action {self.action!r} has two arguments with nothing between them")
        if any("{" in text or "}" in text for text in texts):
            raise ValueError(f"the action {self.action!r} has a brace that belongs to no argument such as {{place}}")
        return self

    @property
    def names(self) -> list[str]:
        """Return the names of the arguments, all of which are texts."""
        return _ARGUMENT.split(self.action)[1::2]

    @property
    def texts(self) -> list[str]:
        """Return the texts around the arguments: one more than there are arguments."""
        return _ARGUMENT.split(self.action)[::2]

    @property
    def tool(self) -> Tool:
        """Return the function as OpenAI and MCP declare a tool, with a JSON Schema of its arguments."""
        return Tool(
            name=self.name,
            description=self.description or f"Do: {self.action}",
            parameters={
                "type": "object",
                "properties": {name: {"type": "string", "minLength": 1} for name in self.names},
                "required": list(self.names),
                "additionalProperties": False,
            },
        )

    def spelled(self, arguments: Mapping[str, JsonValue]) -> str | None:
        """Return the action that a call with these arguments spells; None if the schema does not allow them."""
        values = [arguments.get(name) for name in self.names]
        if len(arguments) != len(values) or not all(isinstance(value, str) and value.strip() for value in values):
            return None
        texts = self.texts
        return texts[0] + "".join(f"{value}{text}" for value, text in zip(values, texts[1:], strict=True))

    def read(self, action: str) -> dict[str, str] | None:
        """Return the arguments of the call that spells this action; None if no call does."""
        first, *others = self.texts
        if not others:
            return {} if action == first else None
        last = others.pop()
        if not (action.startswith(first) and action.endswith(last) and len(action) > len(first) + len(last)):
            return None
        rest = action[len(first) : len(action) - len(last)]
        values = []
        for text in others:
            value, found, rest = rest.partition(text)
            if not found:
                return None
            values.append(value)
        values.append(rest)
        return dict(zip(self.names, values, strict=True)) if all(value.strip() for value in values) else None
