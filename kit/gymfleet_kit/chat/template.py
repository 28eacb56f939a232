"""A model's chat template: an external Jinja program that writes a conversation as text."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MAX_RENDERED_CHARS: Final = 1 << 26


class UnusableTemplate(Exception):
    """The model's chat template cannot carry a conversation turn by turn; the message says why."""


class ChatTemplate:
    """Renders conversations as transformers does, with the same sandbox, filters and extensions.

    The time that some templates write is fixed: the rendering of two turns must begin with that of the first.

    Args:
        source: the Jinja program; it sees `messages`, `tools`, `add_generation_prompt`, the tokens and the switches.
        named_tokens: `bos_token` and the like.
        switches: variables of the template itself, such as `enable_thinking`.
        now: the time that it writes; by default the current time.
    """

    def __init__(
        self,
        source: str,
        named_tokens: Mapping[str, str],
        switches: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> None:
        self.source: Final = source
        self.named_tokens: Final = dict(named_tokens)
        self.switches: Final = dict(switches or {})
        self._now: Final = now or datetime.now()  # noqa: DTZ005 - local, as transformers has it

    def with_switches(self, switches: Mapping[str, Any]) -> "ChatTemplate":
        """Return the template with more variables set."""
        return ChatTemplate(self.source, self.named_tokens, {**self.switches, **switches}, self._now)

    @property
    def variables(self) -> frozenset[str]:
        """The names that the template reads but does not always set itself. Raises UnusableTemplate."""
        try:
            return _variables(self.source)
        except TemplateError as error:
            raise UnusableTemplate(f"the chat template is no Jinja program: {error}") from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, prompt: bool, tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """Return the text of a conversation; with `prompt`, up to the start of the next reply.

        Raises UnusableTemplate for any error of the template.
        """
        try:
            text = _program(self.source).render(
                strftime_now=self._now.strftime,
                **self.named_tokens,
                messages=list(messages),
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=prompt,
                **self.switches,
            )
        except Exception as error:  # a template is a program from outside
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UnusableTemplate(f"the chat template refuses a conversation: {reason}") from error
        if len(text) > _MAX_RENDERED_CHARS:
            raise UnusableTemplate(f"the chat template makes {len(text)} characters of a conversation")
        return text


class _GenerationBlocks(Extension):
    """Replace `{% generation %}`, which marks an assistant's text for masking, by its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's interface

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


# Compiling some templates takes half a second, and every way of playing with a model needs it.
@lru_cache(maxsize=64)
def _program(source: str) -> Template:
    return _environment().from_string(source)


@lru_cache(maxsize=64)
def _variables(source: str) -> frozenset[str]:
    return frozenset(meta.find_undeclared_variables(_environment().parse(source)))


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Encode a value as JSON; jinja2's own filter would escape characters for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
