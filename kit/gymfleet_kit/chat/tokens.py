"""Conversations as tokens: encode only what is new in each turn, and never tokenise sampled tokens again.

Unless other roles are asked for, the prompt is one user message (instructions, reply format, first observation),
because not every chat template has a system role. Each later turn adds only the text that the template puts between the
end of the assistant's reply and the start of the next reply; or, if a recipe wants contexts to be replaced, the prompt
is the template's rendering of the whole conversation.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from gymfleet_contracts.conversation import MadeCall, Message
from gymfleet_contracts.observation import ImageFile
from gymfleet_contracts.reply_format import ModelReply
from gymfleet_contracts.rollout import MessageRoles, TemplateOptions
from gymfleet_contracts.session import Tool, ToolCall

from gymfleet_kit.chat.calls import CALL_ID, KEYS
from gymfleet_kit.chat.dialect import ANSWER, REPLY, Dialect, Ending, answer_to, declared, plain
from gymfleet_kit.chat.images import MarkedImage, Seeing, around, marked, shown_in
from gymfleet_kit.chat.template import ChatTemplate, UnusableTemplate
from gymfleet_kit.chat.thinking import KEEPING, dialect_that
from gymfleet_kit.chat.tokenizer import ModelTokenizer

_USERS: Final = MessageRoles()
AS_IT_IS: Final = TemplateOptions()
_INSTRUCTIONS: Final = "instructions-sentinel-90be"
_MAX_KNOWN: Final = 64
"""Requests choose roles, options and tools: without a bound, each choice would be kept for ever."""
_PROBES: Final = ("x", "  x \n", "two\n\nlines", "{{ x }} <b>", "")


_UNSEEN: Final = ModelReply(REPLY)
"""A placeholder for a reply that the template must not see."""
_ANY_TOOL: Final = Tool(
    name="act",
    description="Act.",
    parameters={"type": "object", "properties": {"action": {"type": "string", "description": "What."}}},
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A reply in a conversation, with what is new before it."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    """The reply, with the token that ends it."""
    learned: bool
    replaces: bool = False
    """Whether the prompt replaces all tokens before it."""
    images: tuple[ImageFile, ...] = ()
    """The images that the prompt shows, in order."""


@dataclass(frozen=True, slots=True)
class Said:
    """A sampled reply and its parts."""

    text: str
    """The whole text, without the token that ended it."""
    reply: ModelReply
    num_reasoning_tokens: int
    """The number of sampled tokens that are thoughts, with the marks around them."""


class ChatTokens:
    """Turns conversations into segments of token ids with a model's chat template and tokenizer.

    Args:
        tokenizer: must have a chat template whose assistant turns end with a special token.
        roles: the roles of the messages given to the template.
        options: how the template is used: whether the model thinks, and how the context is handled.
        tools: the functions for the template to declare; empty if replies are plain text.
    """

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        roles: MessageRoles = _USERS,
        options: TemplateOptions = AS_IT_IS,
        tools: tuple[Tool, ...] = (),
    ) -> None:
        if not tokenizer.chat_template:
            raise UnusableTemplate("the model has no chat template")
        self._tokenizer = tokenizer
        self._roles = roles
        self._options = options
        self._under: dict[str, ChatTokens] = {_key(roles, options, tools): self}
        self._markers: frozenset[str] = frozenset()
        self._ids = tokenizer.encode
        specials = sorted(tokenizer.controls, key=len, reverse=True)
        self._specials = re.compile("|".join(map(re.escape, specials))) if specials else None
        self._template, self.dialect = self._learn(tuple(map(self._harmless_tool, tools)))
        self._end_ids: dict[bool, int] = {
            is_call: tokenizer.token_id(end.token)
            for is_call, end in ((False, self.dialect.text_end), (True, self.dialect.call_end))
        }
        self.turn_end_id: Final = self._end_ids[False]
        self.thoughts_end_id: Final = self._find_thoughts_end()
        """The token that ends thoughts; None if there are none."""
        self._markers = tokenizer.markers - self._structure(tools)
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys((*self._end_ids.values(), *tokenizer.stop_ids)))
        self._affixes = {name: self._find_affixes(name) for name in ("", *(tool.name for tool in tools))}
        self.first = lru_cache(maxsize=4096)(self._first)

    @classmethod
    def load(cls, path: Path, options: TemplateOptions = AS_IT_IS) -> "ChatTokens":
        """Load from a model's directory. Raises UnusableTokenizer, UnusableTemplate."""
        return cls(ModelTokenizer.load(path), options=options)

    def under(
        self, roles: MessageRoles, options: TemplateOptions = AS_IT_IS, tools: tuple[Tool, ...] = ()
    ) -> "ChatTokens":
        """Return the same for other roles, options and tools. Raises UnusableTemplate if the template does not support
        them.
        """
        key = _key(roles, options, tools)
        if key not in self._under:
            if len(self._under) >= _MAX_KNOWN:
                self._under.pop(next(iter(self._under)))
            self._under[key] = ChatTokens(self._tokenizer, roles, options, tools)
        return self._under[key]

    @property
    def replaces(self) -> bool:
        """Return whether each prompt is the template's rendering of the whole conversation."""
        return self._options.context == "replaced"

    def require_images(self, token: str) -> None:
        """Raise UnusableTemplate if the template does not show an image as one image token."""
        around(self._template, token)

    def _first(self, content: str, instructions: str = "", images: tuple[MarkedImage, ...] = ()) -> tuple[int, ...]:
        """Return the prompt of the first turn, up to the start of the reply; the content contains marks of images."""
        text = self._rendered(self._opening(self.defuse(content), self.defuse(instructions)))
        return tuple(self._ids(shown_in(self._template, text, images)))

    def following(
        self, content: str, *, reply_ended: bool, called: str = "", images: Sequence[MarkedImage] = ()
    ) -> tuple[int, ...]:
        """Return the tokens between two replies, preceded by the missing end token if the reply was cut short.

        Args:
            content: the answer to the reply.
            reply_ended: whether the reply ended with the token that ends replies of its kind.
            called: the function that the reply called, if the content is its result; empty for a text.
            images: the images whose marks are in the content, in order.
        """
        content = self.defuse(content)
        affixes = self._affixes.get(called)
        text = self._delta(content, called) if affixes is None else content.join(affixes)
        ids = self._ids(shown_in(self._template, text, images))
        return tuple(ids) if reply_ended else (self._end_ids[bool(called)], *ids)

    def rendered(
        self,
        opening: str,
        instructions: str,
        said: Sequence[tuple[Sequence[int], str]],
        images: Sequence[MarkedImage] = (),
    ) -> tuple[tuple[int, ...], bool, list[MarkedImage]]:
        """Return the prompt that the template itself writes after some replies, each given with its answer.

        Returns:
            If the template goes on with the tokens before it, only the new tokens, and False; else the whole prompt,
            which replaces them, and True. And the images whose marks the template left in the returned part.
        """

        def prompt(text: str, *, replaces: bool) -> tuple[tuple[int, ...], bool, list[MarkedImage]]:
            shown = [one for one in images if one.mark in text]
            return tuple(self._ids(shown_in(self._template, text, shown))), replaces, shown

        messages = self._opening(self.defuse(opening), self.defuse(instructions))
        before = self._rendered(messages)
        for ids, answer in said:
            reply = self._shown(self.read(ids).reply)
            messages = [*messages, self.dialect.message(reply), self._answer(answer, reply)]
        if not said:
            return prompt(before, replaces=True)
        if len(said) > 1:
            before = self._rendered(messages[:-2])
        whole = self._rendered(messages)
        sequence = before + self._tokenizer.decode(said[-1][0])
        if whole.startswith(sequence):
            return prompt(whole[len(sequence) :], replaces=False)
        return prompt(whole, replaces=True)

    def ended(self, response_token_ids: Sequence[int], *, called: bool = False) -> bool:
        """Return whether the reply ended its turn."""
        return bool(response_token_ids) and response_token_ids[-1] == self._end_ids[called]

    def text(self, response_token_ids: Sequence[int]) -> str:
        """Return the reply as text, without the token that ended it."""
        ids = response_token_ids
        if ids and ids[-1] in self.stop_token_ids:
            ids = ids[:-1]
        return self._tokenizer.decode(ids)

    def read(self, response_token_ids: Sequence[int]) -> Said:
        """Return the parts of a reply: its thoughts, its calls and the rest."""
        text = self.text(response_token_ids)
        reply = self.dialect.read(text)
        return Said(text, reply, self._num_reasoning(response_token_ids, reply))

    def reply(self, text: str) -> tuple[int, ...]:
        """Encode a written text (an expert's) as the model would have sampled it, including its end token."""
        return (*self._ids(self.dialect.write_text(self.defuse(text))), self.turn_end_id)

    def write(self, reply: ModelReply) -> tuple[int, ...]:
        """Encode a written reply, with thoughts or calls, as the model would have sampled it, including its end token.

        Raises UnusableTemplate for a reply for which the template has no place.
        """
        if not (reply.reasoning or reply.calls):
            return self.reply(reply.content)
        return (*self._ids(self.dialect.write(self._harmless(reply))), self._end_ids[bool(reply.calls)])

    def pieces(self, messages: Sequence[Message], seeing: Seeing | None = None) -> Iterator[Piece]:
        """Yield a conversation's replies, up to the last one that is learned from, each with the prompt before it.

        They are the tokens of an episode with the same conversation: replies are written as by `reply` and `write`. If
        contexts are continued, the template never sees their text. Raises UnusableTemplate if the template cannot carry
        this conversation.

        Args:
            messages: the conversation.
            seeing: gives the number of tokens of an image; without it, a conversation with images is refused.
        """
        last = max((place for place, one in enumerate(messages) if one.teaches), default=-1)
        replies = {
            place: self._said(one, place) for place, one in enumerate(messages[: last + 1]) if one.role == "assistant"
        }
        told = {place: self._shown(reply) if self.replaces else _unseen(reply) for place, reply in replies.items()}
        called = _called(messages[: last + 1])
        shown = [
            self.dialect.message(told[place]) if place in told else self._heard(one, called.get(place))
            for place, one in enumerate(messages[: last + 1])
        ]
        before, text, begin, end = "", "", 0, self.dialect.text_end
        for place, reply in replies.items():
            whole = self._rendered(shown[:place])
            goes_on = not before or whole.startswith(before + text) or not self.replaces
            new = self._continued(before, text, whole, place, end) if goes_on else whole
            _require_all(messages[begin:place], [one["content"] for one in shown[begin:place]], new, begin)
            images = tuple(image for one in messages[begin if goes_on else 0 : place] for image in one.images)
            new = shown_in(self._template, new, marked(images, seeing))
            replaces = bool(before) and not goes_on
            yield Piece(tuple(self._ids(new)), self.write(reply), messages[place].teaches, replaces, images)
            past = told[place]
            text = self.dialect.write(past) if past.reasoning or past.calls else self.dialect.write_text(past.content)
            before, begin, end = whole, place + 1, self.dialect.end_of(reply)

    def _said(self, message: Message, place: int) -> ModelReply:
        """Return a reply of a conversation; its thoughts, if any, may be in its text between marks.

        Raises UnusableTemplate for function calls and thoughts for which this template has no place.
        """
        content, reasoning, thinking = message.content, message.reasoning, self.dialect.thinking
        if thinking is not None and self.dialect.thinks and not reasoning:
            begin, end = thinking.marks
            thought, mark, rest = content.lstrip().partition(end)
            if mark and thought.startswith(begin):
                content, reasoning = rest.strip(), thought.removeprefix(begin).strip()
        if reasoning and not self.dialect.thinks:
            raise UnusableTemplate(
                f"message {place + 1} has thoughts, for which the chat template has no place: leave them out, or give "
                'rollout.template.thinking = "on" where it has a switch for them'
            )
        if message.tool_calls and self.dialect.form is None:
            raise UnusableTemplate(
                f"message {place + 1} calls a function, and the conversation declares none in `tools`"
            )
        if len(message.tool_calls) > 1:
            raise UnusableTemplate(
                f"message {place + 1} calls {len(message.tool_calls)} functions at once, and a reply here is one call: "
                "make a message of each, with the answer behind it"
            )
        calls = tuple(ToolCall(name=call.name, arguments=call.arguments) for call in message.tool_calls)
        return ModelReply(content, reasoning, calls)

    def _heard(self, message: Message, called: str | None) -> dict[str, Any]:
        """Return a message that is not a reply in the form for the template."""
        content = self.defuse(message.content)
        return {"role": message.role, "content": content} if called is None else answer_to(called, content)

    def _continued(self, before: str, text: str, whole: str, place: int, end: Ending) -> str:
        """Return the part of a rendering after the previous prompt, the reply to that, and the reply's end token.

        How the template begins a past reply does not matter: the reply is in the context as it was sampled.
        """
        if not before:
            return whole
        ended, mark, rest = whole[len(before) :].partition(end.history)
        _, sentinel, tail = ended.partition(REPLY)
        as_written = ended.strip() == text.strip() or (sentinel and tail.strip() == text.partition(REPLY)[2].strip())
        if not whole.startswith(before) or not mark or not as_written:
            raise UnusableTemplate(
                f"the chat template writes what comes before message {place + 1} in another way than before the reply "
                "ahead of it, so that the model would be taught on a context that it never sees: give "
                'rollout.template.context = "replaced", or a template that only adds to what is there'
            )
        return rest

    def defuse(self, text: str) -> str:
        """Break up special tokens in an external text, which must not end a turn or begin another.

        Markers such as `<think>` and `<tool_call>`, which a tokenizer has as tokens that are not special, do neither:
        reply formats write them, and the model should see what it is asked to write. Those that the template puts
        around messages, such as `<user>`, are no markers.
        """
        if self._specials is None:
            return text
        return self._specials.sub(self._defused, text)

    def _defused(self, match: re.Match[str]) -> str:
        token = match[0]
        return token if token in self._markers else f"{token[0]} {token[1:]}"

    def _harmless(self, reply: ModelReply) -> ModelReply:
        """Return a reply whose texts neither end a turn nor begin another."""
        calls = tuple(ToolCall(name=call.name, arguments=self._defused_json(call.arguments)) for call in reply.calls)
        return replace(
            reply,
            content=self.defuse(reply.content).strip(),
            reasoning=self.defuse(reply.reasoning).strip(),
            calls=calls,
        )

    def _harmless_tool(self, tool: Tool) -> Tool:
        """Return a function whose declaration, which may be an environment's, has no control tokens."""
        texts = {"description": self.defuse(tool.description), "parameters": self._defused_json(tool.parameters)}
        return tool.model_copy(update=texts)

    def _shown(self, reply: ModelReply) -> ModelReply:
        """Return a past reply in the form for the template."""
        harmless = self._harmless(reply)
        return replace(harmless, reasoning="") if self._options.reasoning == "dropped" else harmless

    def _defused_json(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.defuse(value)
        if isinstance(value, list):
            return [self._defused_json(one) for one in value]
        if isinstance(value, dict):
            return {self.defuse(key): self._defused_json(one) for key, one in value.items()}
        return value

    def _num_reasoning(self, ids: Sequence[int], reply: ModelReply) -> int:
        """Return the number of tokens up to the mark that ends the thoughts."""
        thinking = self.dialect.thinking
        if not reply.reasoning or thinking is None:
            return 0
        mark = thinking.marks[1]
        low, high = 0, len(ids)
        if mark not in self._tokenizer.decode(ids):
            return high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if mark in self._tokenizer.decode(ids[:middle]) else (middle, high)
        return high

    def _learn(self, tools: tuple[Tool, ...]) -> tuple[ChatTemplate, Dialect]:
        """Return the template with its switches set, and its dialect of replies."""
        options = self._options
        template = ChatTemplate(self._tokenizer.chat_template, self._tokenizer.named_tokens)
        if unknown := sorted(set(options.switches) - template.variables):
            known = ", ".join(sorted(template.variables - {"messages", "tools", "add_generation_prompt"}))
            raise UnusableTemplate(f"the chat template has no switch {', '.join(unknown)}; it reads {known or 'none'}")
        if options.context == "continued":
            template = template.with_switches({name: on for name, on in KEEPING.items() if name in template.variables})
        self._require_roles(template, declared(tools))
        if not tools:
            self._require_no_functions(template)
        stops = [self._tokenizer.token(stop) for stop in self._tokenizer.stop_ids]

        def learn(switches: Mapping[str, Any]) -> tuple[ChatTemplate, Dialect]:
            switched = template.with_switches({**switches, **options.switches})
            opening = self._opening("a", _INSTRUCTIONS)
            return switched, Dialect(switched, opening, tools, self._specials, stops)

        return dialect_that(options.thinking, template.variables, learn)

    def _find_thoughts_end(self) -> int | None:
        """Return the token that ends thoughts. Raises UnusableTemplate if thoughts have a limit but no end token."""
        if not self.dialect.thinks or self.dialect.thinking is None:
            return None
        mark = self.dialect.thinking.marks[1]
        if mark in self._tokenizer.added_tokens:
            return self._tokenizer.token_id(mark)
        if self._options.max_reasoning_tokens is not None:
            raise UnusableTemplate(
                f"thoughts end with {mark!r}, which is no token of this tokenizer: leave out "
                "rollout.template.max_reasoning_tokens"
            )
        return None

    def _rendered(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return self._template.render(messages, prompt=True, tools=self.dialect.declared)

    def _opening(self, content: str, instructions: str) -> list[dict[str, Any]]:
        if instructions and self._roles.instructions == "system":
            return [{"role": "system", "content": instructions}, {"role": "user", "content": content}]
        return [{"role": "user", "content": "\n\n".join(part for part in (instructions, content) if part)}]

    def _answer(self, content: str, reply: ModelReply) -> dict[str, Any]:
        if len(reply.calls) == 1:
            return answer_to(reply.calls[0].name, self.defuse(content))
        return self._observation(self.defuse(content))

    def _observation(self, content: str) -> dict[str, Any]:
        named = {"tool_call_id": CALL_ID} if self._roles.observations == "tool" else {}
        return {"role": self._roles.observations, "content": content, **named}

    def _require_roles(self, template: ChatTemplate, tools: Sequence[Mapping[str, Any]]) -> None:
        """Raise UnusableTemplate if the template refuses or drops messages of a role other than the user's."""
        opening = self._opening("a", _INSTRUCTIONS)
        for option, role, content, messages in (
            ("instructions", self._roles.instructions, _INSTRUCTIONS, opening),
            ("observations", self._roles.observations, ANSWER, [*opening, plain(REPLY), self._observation(ANSWER)]),
        ):
            if role == "user":
                continue
            try:
                told = "" if content in template.render(messages, prompt=True, tools=tools) else "it drops them"
            except UnusableTemplate as error:
                told = str(error.__cause__ or error)
                told = " ".join(told.split())
            if told:
                raise UnusableTemplate(
                    f"the chat template takes no messages of the role {role!r} ({told}): "
                    f'give rollout.roles.{option} = "user"'
                )

    def _require_no_functions(self, template: ChatTemplate) -> None:
        """Raise UnusableTemplate if the template renders nothing unless functions are declared."""
        opening = self._opening("a", _INSTRUCTIONS)
        try:
            template.render(opening, prompt=True)
        except UnusableTemplate as error:
            try:
                template.render(opening, prompt=True, tools=declared((_ANY_TOOL,)))
            except UnusableTemplate:
                raise error from None
            raise UnusableTemplate(
                "the chat template wants functions to be declared, as rollout.format = "
                f'{{ use = "tool_call", style = "template" }} does ({error})'
            ) from None

    def _delta(self, content: str, called: str) -> str:
        """Render a fixed conversation with the new message, and return what follows the assistant's end token."""
        opening = self._opening("a", _INSTRUCTIONS)
        if called and self.dialect.form is not None:
            call = ToolCall(name=called, arguments={KEYS[0]: REPLY})
            messages = [*opening, self.dialect.form.message(call), answer_to(called, content)]
            end = self.dialect.call_end
        else:
            messages = [*opening, plain(REPLY), self._observation(content)]
            end = self.dialect.text_end
        whole = self._rendered(messages)
        behind = whole.index(REPLY) + len(REPLY)
        return whole[whole.index(end.history, behind) + len(end.history) :]

    def _structure(self, tools: Sequence[Tool]) -> set[str]:
        """Return the tokens with which the template ends and begins messages, without the marks of thoughts."""
        texts = [self._delta(ANSWER, called) for called in ("", *(tool.name for tool in tools[:1]))]
        for messages in (self._opening("a", ""), [{"role": "system", "content": "b"}, *self._opening("a", "")]):
            with suppress(UnusableTemplate):
                texts.append(self._template.render(messages, prompt=True))
        thinking = self.dialect.thinking
        thoughts = set() if thinking is None else set(self._tokens_in(thinking.begin + thinking.end))
        ends = {self.dialect.text_end.token, self.dialect.call_end.token}
        return {token for text in texts for token in self._tokens_in(text)} - thoughts | ends

    def _tokens_in(self, text: str) -> list[str]:
        return [] if self._specials is None else self._specials.findall(text)

    def _find_affixes(self, called: str) -> tuple[str, str] | None:
        """Return the constant text around a message if the template leaves messages as they are, or None.

        With it, a turn need not be rendered.
        """
        before, _, after = self._delta(ANSWER, called).partition(ANSWER)
        if all(self._delta(probe, called) == before + probe + after for probe in _PROBES):
            return before, after
        return None


def _unseen(reply: ModelReply) -> ModelReply:
    """Return a placeholder for a reply that the template must not see; it calls the same functions."""
    calls = tuple(ToolCall(name=call.name, arguments={KEYS[0]: REPLY}) for call in reply.calls)
    return ModelReply("", calls=calls) if calls else _UNSEEN


def _called(messages: Sequence[Message]) -> dict[int, str]:
    """Return the functions whose results messages give, by the messages' places. Raises UnusableTemplate."""
    found: dict[int, str] = {}
    call: MadeCall | None = None
    for place, message in enumerate(messages):
        if message.role == "assistant":
            call = message.tool_calls[0] if message.tool_calls else None
        elif message.role == "tool" and call is not None:
            if message.tool_call_id and call.id and message.tool_call_id != call.id:
                raise UnusableTemplate(
                    f"message {place + 1} answers the call {message.tool_call_id[:40]!r}, and the one ahead of it is "
                    f"{call.id[:40]!r}"
                )
            found[place] = call.name
    return found


def _key(roles: MessageRoles, options: TemplateOptions, tools: tuple[Tool, ...]) -> str:
    return json.dumps([one.model_dump(mode="json") for one in (roles, options, *tools)], sort_keys=True)


def _require_all(messages: Sequence[Message], contents: Sequence[str], text: str, first: int) -> None:
    """Raise UnusableTemplate unless the text has every message's content, in order."""
    behind = 0
    for number, (message, given) in enumerate(zip(messages, contents, strict=True), first + 1):
        content = given.strip()
        found = next((at for one in _spellings(content) if (at := text.find(one, behind)) >= 0), None)
        if found is None:
            raise UnusableTemplate(f"the chat template leaves out message {number}, of role {message.role!r}")
        behind = found + len(content)


def _spellings(content: str) -> Iterator[str]:
    """Yield the ways in which templates write a text: as it is, or as JSON."""
    yield content
    yield json.dumps(content, ensure_ascii=False)[1:-1]
