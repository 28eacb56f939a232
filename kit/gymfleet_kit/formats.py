"""The reply format of a recipe or a request, with its options, and with all its answers checked."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeGuard

import structlog
from gymfleet_contracts.reply_format import FormatSection, ModelReply, ParsedReply, ReplyFormat
from gymfleet_contracts.session import Tool

from gymfleet_kit.plugins import PluginError, PluginKind, checked_options, options_of

log = structlog.get_logger()

FORMATS: Final = PluginKind[ReplyFormat[Any]]("format", (ReplyFormat,), "gymfleet_contracts.formats")


class FormatFailed(PluginError):
    """A reply format raised, or answered nonsense: the model is not to blame."""


class CheckedFormat:
    """A reply format whose answers can be relied on. Raises FormatFailed."""

    def __init__(self, name: str, plugin: ReplyFormat[Any]) -> None:
        self._name = name
        self.plugin = plugin
        self.version: int = self._asked("version", int)
        self.instructions: str = self._asked("instructions", str)
        self.complaint: str = self._asked("complaint", str)

    def with_tools(self, tools: tuple[Tool, ...]) -> "CheckedFormat":
        """Return the format for an environment that declares these tools."""
        try:
            plugin = self.plugin.with_tools(tools)
        except (Exception, SystemExit) as error:
            raise self._failed("with_tools", error) from error
        return self if plugin is self.plugin else CheckedFormat(self._name, plugin)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Return the functions for the model's chat template to declare."""
        return self.plugin.tools

    def parse(self, text: str) -> ParsedReply:
        """Parse a text."""
        return self._read("parse", self.plugin.parse, text)

    def read(self, reply: ModelReply) -> ParsedReply:
        """Parse a reply."""
        if type(self.plugin).read is ReplyFormat.read:
            return self.parse(reply.content).within(reply)
        return self._read("read", self.plugin.read, reply)

    def compose(self, thought: str, action: str, *, thinks: bool) -> ModelReply:
        """Write a reply, with its thoughts in the place that the chat template has for them, if any."""
        is_own = type(self.plugin).compose is not ReplyFormat.compose
        try:
            reply = self.plugin.compose(thought, action, thinks=thinks)
        except (Exception, SystemExit) as error:
            raise self._failed("compose" if is_own else "render", error) from error
        if type(reply) is not ModelReply or not (_is_text(reply.content) and _is_text(reply.reasoning)):
            what = type(reply.content).__name__ if type(reply) is ModelReply else type(reply).__name__
            raise FormatFailed(f"the format {self._name} renders {what} instead of text")
        return reply

    def _read(self, name: str, read: Callable[[Any], ParsedReply], given: Any) -> ParsedReply:
        try:
            parsed = read(given)
        except (Exception, SystemExit) as error:
            raise self._failed(name, error) from error
        if fault := _reply_fault(parsed):
            raise FormatFailed(f"the format {self._name} parses a reply to nonsense: {fault}")
        return parsed

    def render(self, thought: str, action: str, notes: Mapping[str, str] | None = None) -> str:
        """Write a reply, with those notes for which the format has a place."""
        try:
            text = self.plugin.render_notes(thought, action, notes) if notes else self.plugin.render(thought, action)
        except (Exception, SystemExit) as error:
            raise self._failed("render", error) from error
        if not _is_text(text):
            raise FormatFailed(f"the format {self._name} renders {type(text).__name__} instead of text")
        return text

    def _asked(self, name: str, kind: type) -> Any:
        """Return an attribute, which must have type `kind` and not be empty."""
        try:
            value = getattr(self.plugin, name)
        except (Exception, SystemExit) as error:
            raise self._failed(name, error) from error
        if not isinstance(value, kind) or not (_is_text(value) and value.strip() if kind is str else True):
            raise FormatFailed(f"the format {self._name} has no {name}: {str(value)[:80]!r}")
        return value

    def _failed(self, what: str, error: BaseException) -> FormatFailed:
        log.error("format.failed", format=self._name, what=what, exc_info=error)
        reason = " ".join(str(error).split())
        return FormatFailed(f"the format {self._name} failed in {what}: {type(error).__name__}: {reason}")


def _reply_fault(parsed: object) -> str:
    """Return why this is not a parsed reply, or an empty string if it is one."""
    if type(parsed) is not ParsedReply:
        return f"{type(parsed).__name__} instead of a ParsedReply"
    if not _is_text(parsed.thought):
        return f"the thought is {parsed.thought!r:.80}"
    if not (isinstance(parsed.notes, Mapping) and all(map(_is_text, (*parsed.notes, *parsed.notes.values())))):
        return f"the notes are {parsed.notes!r:.80}"
    return _action_fault(parsed)


def _action_fault(parsed: ParsedReply) -> str:
    if parsed.action is not None and not (_is_text(parsed.action) and parsed.action.strip()):
        return f"the action is {parsed.action!r:.80}; without an action it is None"
    if type(parsed.well_formed) is not bool or type(parsed.complete) is not bool:
        return f"well_formed is {parsed.well_formed!r:.80}, complete is {parsed.complete!r:.80}"
    if parsed.action is None and parsed.well_formed:
        return "it is well formed, and has no action"
    return ""


def _is_text(value: object) -> TypeGuard[str]:
    """Return whether this is text that can be sent; half a surrogate pair cannot."""
    if not isinstance(value, str):
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def format_of(section: FormatSection, *, offered: Collection[str] | None = None) -> CheckedFormat:
    """Return the format. `offered` is given if the section came over the wire: see `PluginKind.offered`.

    Raises `PluginError` if it does not exist, does not take the options, or cannot be made.
    """
    kind = FORMATS.find(section.use) if offered is None else FORMATS.offered(section.use, offered)
    options = checked_options(options_of(kind), section.options, table="rollout.format", owner=section.use)
    try:
        plugin = kind(options)
    except (Exception, SystemExit) as error:
        reason = " ".join(str(error).split())
        raise PluginError(f"the format {section.name} cannot be made: {type(error).__name__}: {reason}") from error
    return CheckedFormat(section.name, plugin)
