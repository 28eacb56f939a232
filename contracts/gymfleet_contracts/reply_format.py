"""The interface of reply formats: how an action is asked for, written and read.

The prompt, the expert's demonstrations and the parser of replies all come from one class, so that they agree. The
formats that come with gymfleet are the modules of `gymfleet_contracts.formats`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from gymfleet_contracts._model import WireModel
from gymfleet_contracts.session import Tool, ToolCall


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A model's reply as its chat template understands it, before a format reads it."""

    content: str
    """The reply's text, without the contents of the other fields."""
    reasoning: str = ""
    """The model's thoughts before the reply, if the template has a place for them."""
    calls: tuple[ToolCall, ...] = ()
    """Calls of the functions that the template declared."""
    clean: bool = True
    """Whether all of it could be read: its thoughts are ended, its calls are whole, and nothing follows them."""


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A model's reply, split into its parts."""

    thought: str
    action: str | None
    """Never blank; None if the reply holds none."""
    well_formed: bool
    """The reply follows the format to the letter; a sloppy one can still carry an action."""
    complete: bool
    """The format itself shows where the action ends (a closing fence, the end of a line), so that the action is whole
    even if the reply was cut off."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """The other parts of the reply, by the names that the format's `notes` lists: a plan, a prediction."""
    call: ToolCall | None = None
    """The call of one of the environment's tools, if the reply is one: the environment determines the action that it
    spells, and `action` is the call as text."""

    def within(self, reply: ModelReply) -> "ParsedReply":
        """Return these parts, read from the text of `reply`, with the thoughts that preceded that text."""
        if not reply.reasoning and reply.clean:
            return self
        thought = "\n".join(part for part in (reply.reasoning, self.thought) if part)
        return replace(self, thought=thought, well_formed=self.well_formed and reply.clean)

    def if_cut(self) -> "ParsedReply":
        """Return the parts that are valid if the reply was cut off: no action that may be incomplete."""
        return self if self.complete else replace(self, action=None, well_formed=False)


def no_action(thought: str) -> ParsedReply:
    """Return the parts of a reply without an action."""
    return ParsedReply(thought=thought, action=None, well_formed=False, complete=False)


class FormatOptions(BaseModel):
    """The options of a format, from the table of a recipe that names it. A misspelt key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


OptionsT = TypeVar("OptionsT", bound=FormatOptions)


class ReplyFormat(ABC, Generic[OptionsT]):
    """How an action is asked for, written and read. One object serves all episodes: it keeps nothing of a reply.

    A plug-in's `instructions` and `complaint` may be attributes of the class, or properties that depend on its options.
    """

    Options: ClassVar[type[Any]] = FormatOptions
    """The model of its options, a subclass of `FormatOptions`."""
    version: ClassVar[int] = 1
    """Recorded in each trajectory. Raise it with every change to what `parse` makes of a reply."""
    examples: ClassVar[tuple[str, ...]] = ("look", "go to shelf 1", "put apple 2 in/on fridge 1", "click[Buy Now]", "0")
    """Actions of each kind that the format carries; the conformance suite writes and reads them."""
    notes: ClassVar[tuple[str, ...]] = ()
    """The parts that a reply may have besides thought and action; a format with notes overrides `render_notes`."""

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    @property
    @abstractmethod
    def instructions(self) -> str:
        """Return the text that the model is shown once, at the end of the environment's instructions."""

    @property
    @abstractmethod
    def complaint(self) -> str:
        """Return the observation that answers a reply without an action."""

    @abstractmethod
    def parse(self, text: str) -> ParsedReply:
        """Split a reply into its parts. Any text is a reply, even 100,000 characters made to be slow to read."""

    @abstractmethod
    def render(self, thought: str, action: str) -> str:
        """Write a well-formed reply, from which `parse` reads this action."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Return the functions that the model's chat template is to declare; then replies come with calls of them."""
        return ()

    def read(self, reply: ModelReply) -> ParsedReply:
        """Split a reply that the chat template has understood: parse its text, and keep its thoughts as thoughts."""
        return self.parse(reply.content).within(reply)

    def compose(self, thought: str, action: str, *, thinks: bool) -> ModelReply:  # noqa: ARG002 - most write thoughts
        """Write a well-formed reply, from which `read` reads this action. With `thinks` it has a place for thoughts."""
        return ModelReply(self.render(thought, action))

    def with_tools(self, tools: tuple[Tool, ...]) -> "ReplyFormat[OptionsT]":  # noqa: ARG002 - most have no use
        """Return the format for an environment that declares these tools. Raises ValueError if there is none."""
        return self

    def render_notes(self, thought: str, action: str, notes: Mapping[str, str]) -> str:  # noqa: ARG002 - no place
        """Write a well-formed reply with those of the notes that the format has a place for."""
        return self.render(thought, action)


class FormatSection(WireModel):
    """The reply format. Keys that are not named here are options of the format, which checks them."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)

    use: Annotated[str, Field(min_length=1, max_length=1024)] = "react"
    """The name of a format that comes with gymfleet, as `gymfleet-rollout describe format` lists them, or one of your
    own: a name that an installed package declares, `package.module:Class`, or the path of a .py file."""

    @property
    def name(self) -> str:
        """Return the name that trajectories record: the stem of a file, or else `use` itself."""
        return PurePath(self.use).stem if self.use.endswith(".py") or "/" in self.use else self.use

    @property
    def options(self) -> dict[str, JsonValue]:
        """Return the format's options, unchecked."""
        return dict(self.model_extra or {})
