"""Agent-FLAN's negatives: questions for which no tool may be called, with and without tools on offer."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from gymfleet_contracts.conversation import NEGATIVE, Conversation, Message
from gymfleet_contracts.data_records import DataRecord
from pydantic import Field, JsonValue, NonNegativeInt

from gymfleet_kit.data.converter import Converter
from gymfleet_kit.data.converters.messages import Messages, MessagesOptions
from gymfleet_kit.data.tools import called_tools

_Text = Annotated[str, Field(min_length=1, max_length=10_000)]


class NegativesOptions(MessagesOptions):
    """The keys of a record, and the tools to offer."""

    offer: Literal["both", "tools", "none"] = "both"
    """`tools` offers tools that are not needed, `none` states that there are none; `both` makes one of each."""
    tools: Annotated[tuple[_Text, ...], Field(min_length=1)] = (
        "search(query)", "weather(city)", "calculator(expression)", "calendar(date)", "translate(text, language)",
    )  # fmt: skip
    """The signatures to draw from."""
    num_tools: Annotated[int, Field(ge=1, le=64)] = 3
    """The most tools to offer."""
    offered: Annotated[_Text, Field(pattern=r"\{tools\}")] = "You may call: {tools}. Call one only if it is needed."
    """The system message that offers tools."""
    nothing: _Text = "There are no tools. Answer in your own words."
    """The system message that states that there are none."""
    seed: NonNegativeInt = 0
    """Determines, together with the messages' texts, which tools are offered."""


class Negatives(Messages):
    """Plain conversations that call no tool, with a system message that offers some, or none (arXiv:2403.12881).

    A conversation that has its own system message or declares functions, or calls a tool, is left out.
    """

    Options = NegativesOptions
    options: NegativesOptions
    examples: ClassVar[tuple[Mapping[str, JsonValue], ...]] = (
        {"messages": [{"role": "user", "content": "Thanks!"}, {"role": "assistant", "content": "You are welcome."}]},
    )

    def convert(self, record: Mapping[str, JsonValue]) -> Iterator[DataRecord]:
        """Yield the conversation with tools that are not needed, and without any tools."""
        for one in super().convert(record):
            if not isinstance(one, Conversation) or one.tools:
                continue
            if any(message.role == "system" for message in one.messages):
                continue
            if any(called_tools(message.text) for message in one.messages if message.role == "assistant"):
                continue
            if self.options.offer != "none":
                yield _under(self.options.offered.replace("{tools}", ", ".join(self._drawn(one))), one)
            if self.options.offer != "tools":
                yield _under(self.options.nothing, one)

    write = Converter.write  # there is no way back

    def _drawn(self, one: Conversation) -> list[str]:
        said = "\0".join(message.content for message in one.messages)
        order = [
            hashlib.sha256(f"{self.options.seed}/{tool}/{said}".encode(errors="replace")) for tool in self.options.tools
        ]
        ranked = sorted(zip((drawn.digest() for drawn in order), self.options.tools, strict=True))
        return [tool for _, tool in ranked[: self.options.num_tools]]


def _under(system: str, one: Conversation) -> Conversation:
    messages = (Message(role="system", content=system), *one.messages)
    return one.model_copy(update={"messages": messages, "labels": (*one.labels, NEGATIVE)})
