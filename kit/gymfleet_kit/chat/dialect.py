"""The form of replies under a chat template: how they end, how they contain thoughts, and how calls look.

All of it is learned from the template's renderings of a few known messages, so that an unknown template is handled like
those of published models; a template from which it cannot be learned is refused, with the reason.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from gymfleet_contracts.reply_format import ModelReply
from gymfleet_contracts.session import Tool, ToolCall
from gymfleet_contracts.strict_json import read_object

from gymfleet_kit.chat.calls import CALL_ID, KEYS, NAME, VALUES, CallSyntax, common_start, learned
from gymfleet_kit.chat.template import ChatTemplate, UnusableTemplate

REPLY: Final = "assistant-sentinel-7f3a"
ANSWER: Final = "user-sentinel-c41d"
_REASONING: Final = "reasoning-sentinel-5b20"
_UNUSUAL: Final = "_e81d"
_HALF_TAG: Final = re.compile(r"[<\[][^<>\[\]]{0,60}$")
_TAG: Final = r"(?:<[^<>\s]{1,40}>|\[[A-Z_]{2,40}\])"
_OPENING: Final = re.compile(rf"({_TAG}(?:\w{{1,16}}(?={_TAG}|\s*$)(?:{_TAG})?)?)(\s*)$")
_CLOSING: Final = re.compile(rf"\s*({_TAG}(?:\w{{1,16}}{_TAG})?)\s*")
_KNOWN_THINKING: Final = (
    ("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<thinking>", "</thinking>"), ("<seed:think>", "</seed:think>"), ("<mm:think>", "</mm:think>"),
    ("<|channel>thought", "<channel|>"),
)  # fmt: skip
"""Marks for templates that open a block in the prompt and write it nowhere else."""
_REASONING_KEYS: Final = ("reasoning_content", "reasoning", "thinking")
_BETWEEN_CALLS: Final = ";, \t\r\n"
"""What models write between several calls on one line: Llama 3 a semicolon."""
_PYTHON_TAG: Final = "<|python_tag|>"
"""Llama 3's mark of calls of built-in functions, which its models also write in front of others."""
_CHANNELS: Final = ("<|channel|>", "<|message|>", "analysis")
_CHANNEL_ENDS: Final = re.compile(r"<\|(?:end|call|return)\|>")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT: Final = re.compile(r"to=(?:functions\.)?([\w.-]+)")


@dataclass(frozen=True, slots=True)
class Thinking:
    """The texts before and after the thoughts of a model before its reply."""

    begin: str
    end: str
    """The end; both include the whitespace that the template puts around them."""
    opened: bool
    """Whether the prompt of a reply has already begun the thoughts."""

    @property
    def marks(self) -> tuple[str, str]:
        """Return both marks without whitespace, for reading replies."""
        return self.begin.strip(), self.end.strip()


@dataclass(frozen=True, slots=True)
class CallForm:
    """The form in which the template takes a message with a call."""

    content: str | None
    as_text: bool
    """Whether the arguments are given as JSON text."""

    def message(self, call: ToolCall, content: str = "", reasoning: str = "") -> dict[str, Any]:
        """Return an assistant's message with one call."""
        arguments: Any = json.dumps(call.arguments, ensure_ascii=False) if self.as_text else call.arguments
        function = {"name": call.name, "arguments": arguments}
        return {
            "role": "assistant",
            "content": content or self.content,
            "tool_calls": [{"id": CALL_ID, "type": "function", "function": function}],
            **_reasoning(reasoning),
        }


@dataclass(frozen=True, slots=True)
class Ending:
    """The token that ends a kind of reply."""

    token: str
    """The token that the model samples."""
    history: str
    """The text in its place before another message."""
    next_begins: bool = False
    """Whether it is the beginning of the next message."""


class Dialect:
    """Reads and writes replies in the form of one template.

    Args:
        template: the template, with its switches set.
        opening: the messages before the first reply.
        tools: the functions for the template to declare; empty if replies call none.
        specials: matches the tokens that may end a reply.
        stops: tokens at which the model stops, as far as known.

    Raises:
        UnusableTemplate: the template cannot carry such a conversation.
    """

    def __init__(
        self,
        template: ChatTemplate,
        opening: Sequence[Mapping[str, Any]],
        tools: Sequence[Tool],
        specials: re.Pattern[str] | None,
        stops: Collection[str] = (),
    ) -> None:
        self._template = template
        self._opening = list(opening)
        self._tools = {tool.name: tool for tool in tools}
        self.declared: Final = declared(tools)
        self._specials = specials
        self._stops = stops
        self._has_channels = all(mark in template.source for mark in _CHANNELS)
        self._has_python_tag = _PYTHON_TAG in template.source
        self.prompt: Final = self._render([], prompt=True)
        self.text_end: Final = self._ending(plain(REPLY), user(ANSWER))
        self.thinking: Final = self._find_thinking(bool(tools))
        self.thinks = self.thinking is not None and not self._has_thought(self.thinking)
        """Whether a reply may think first."""
        self.form: CallForm | None = None
        self._syntax: CallSyntax | None = None
        self.call_end = self.text_end
        if tools:
            self.form, self._syntax, self.call_end = self._find_calls()
            self._require_declarations()
        self._unthought, self._head, self._tail = self._find_surroundings()
        self._require_round_trips()

    def message(self, reply: ModelReply) -> dict[str, Any]:
        """Return a reply as a message for the template."""
        if self.form is None or len(reply.calls) != 1:
            return plain(reply.content, reply.reasoning)
        return self.form.message(reply.calls[0], reply.content, reply.reasoning)

    def end_of(self, reply: ModelReply) -> Ending:
        """Return the token that ends this reply."""
        return self.call_end if reply.calls else self.text_end

    def read(self, text: str) -> ModelReply:
        """Parse a reply, given without the token that ended it. Any text is a reply."""
        if self._has_channels:
            return self._read_channels(text)
        reasoning, rest = "", text
        if self.thinking is not None:
            begin, end = self.thinking.marks
            body = text.lstrip()
            if body.startswith(end):  # it thought nothing
                rest = body.removeprefix(end).lstrip()
            elif body.startswith(begin) or self.thinking.opened:
                reasoning, mark, rest = body.removeprefix(begin).partition(end)
                if not mark:
                    return ModelReply("", reasoning.strip(), clean=False)
                rest = rest.lstrip()
        return self._read_rest(reasoning.strip(), rest)

    def write(self, reply: ModelReply) -> str:
        """Write a reply as the model should sample it, without the token that ends it.

        Raises UnusableTemplate for a reply that cannot be read back, such as thoughts where there can be none.
        """
        for text in self._spellings(reply):
            if self.read(text) == reply:
                return text
        what = "a call" if reply.calls else "a reply"
        with_thoughts = " with thoughts" if reply.reasoning else ""
        raise UnusableTemplate(f"the chat template writes {what}{with_thoughts} in a way that cannot be read back")

    def write_text(self, text: str) -> str:
        """Write a text without thoughts before it as the model should sample it."""
        return f"{self._unthought}{self._head}{text}{self._tail}"

    def _spellings(self, reply: ModelReply) -> Iterator[str]:
        with suppress(UnusableTemplate):
            text = self._by_template(self.message(reply), self.end_of(reply))
            yield text if self.thinks else self._without_thoughts(text)
        thought = self._unthought
        if reply.reasoning:
            if self.thinking is None:
                return
            thought = f"{'' if self.thinking.opened else self.thinking.begin}{reply.reasoning}{self.thinking.end}"
        if not reply.calls:
            yield f"{thought}{self._head}{reply.content}{self._tail}"
        elif self.form is not None:
            call = self._without_thoughts(self._by_template(self.form.message(reply.calls[0]), self.call_end))
            before = f"{self._head}{reply.content}{self._tail}" if reply.content else ""
            gap = "\n" if before and not call[:1].isspace() else ""
            yield f"{thought}{before}{gap}{call}"

    def _read_rest(self, reasoning: str, rest: str) -> ModelReply:
        content = rest.strip() if reasoning or self._syntax is not None else rest
        if self._syntax is not None:
            if self._has_python_tag:
                rest = rest.replace(_PYTHON_TAG, "").lstrip()
            found = self._syntax.read(rest, self._tools)
            if found is not None:
                ahead, after = rest[: found.start], rest[found.end :].strip()
                before, another = self._bare(ahead).strip(), self._syntax.read(ahead, self._tools)
                following = after.lstrip(_BETWEEN_CALLS)
                if another or self._syntax.begins(before) or self._syntax.begins(following):  # several are no action
                    return ModelReply(content, reasoning, clean=False)
                return ModelReply(before, reasoning, (found.call,), clean=not after)
            if self._syntax.begins(self._bare(content)):
                return ModelReply(content, reasoning, clean=False)
        return ModelReply(self._bare(content), reasoning)

    def _bare(self, content: str) -> str:
        """Return a content without the texts that the template puts around it."""
        head, tail = self._head.strip(), self._tail.strip()
        if not head and not tail:
            return content.removeprefix(self._head).removesuffix(self._tail)
        return content.strip().removeprefix(head).removesuffix(tail).strip()

    def _read_channels(self, text: str) -> ModelReply:
        """Read a reply as messages addressed to channels: analysis, commentary, final."""
        thoughts: list[str] = []
        contents: list[str] = []
        calls: list[ToolCall] = []
        clean = True
        for part in _CHANNEL_ENDS.split(text):
            header, mark, body = part.partition("<|message|>")
            if not mark:
                clean &= not header.strip()
                continue
            channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
            if recipient is not None:
                arguments = read_object(body)
                if arguments is None or self._syntax is None:
                    clean = False
                else:
                    calls.append(ToolCall(name=recipient[1][:64], arguments=arguments))
            elif channel is not None and channel[1] == "analysis":
                thoughts.append(body.strip())
            else:
                contents.append(body.strip())
        return ModelReply("\n".join(contents), "\n".join(thoughts), tuple(calls), clean=clean)

    # --- learning

    def _require_declarations(self) -> None:
        """Raise UnusableTemplate if the template writes calls but never tells the model which functions exist."""
        renamed = [
            {**one, "function": {**one["function"], "name": f"{one['function']['name']}{_UNUSUAL}"}}
            for one in self.declared
        ]  # a usual name, such as `act`, may stand in any text
        prompt = self._template.render(self._opening, prompt=True, tools=renamed)
        if untold := [name for name in self._tools if f"{name}{_UNUSUAL}" not in prompt]:
            raise UnusableTemplate(
                f"the chat template declares no functions: it leaves out {untold[0]!r} (in rollouts, "
                'rollout.format.style = "hermes" tells of them in the instructions)'
            )

    def _render(self, more: Sequence[Mapping[str, Any]], *, prompt: bool) -> str:
        return self._template.render([*self._opening, *more], prompt=prompt, tools=self.declared)

    def _by_template(self, message: Mapping[str, Any], end: Ending) -> str:
        """Return the text that the template writes for a last reply, from the end of its prompt to the token `end`."""
        text = _behind(self.prompt, self._render([message], prompt=False))
        place = text.rfind(end.token)
        return text if place < 0 else text[:place]

    def _ending(self, message: Mapping[str, Any], answer: Mapping[str, Any], *, is_call: bool = False) -> Ending:
        """Return the token that ends a message, which contains the sentinel."""
        between = self._between(message, answer)
        alone = self._render([message], prompt=False).rpartition(REPLY)
        last = alone[2] if alone[1] else ""
        common = self._whole_tokens(common_start(between, self._without_prompt(last)), between)
        tokens, own = self._tokens_in(between), self._tokens_in(common)
        found = next((Ending(token, token) for token in own if token in self._stops), None)
        if found is None and is_call:
            found = self._ending_like_a_text(tokens[len(own) :], own, between[len(common) :])
        if found is None and own:
            found = Ending(own[-1], own[-1])
        elif found is None and tokens and (of_the_last := self._tokens_in(last)):
            found = Ending(of_the_last[-1], tokens[0])
        elif found is None and tokens and not between[: between.index(tokens[0])].strip():
            found = Ending(tokens[0], tokens[0], next_begins=True)
        if found is None:
            raise UnusableTemplate("the chat template does not end the assistant's turn with a special token")
        return found

    def _ending_like_a_text(self, following: Sequence[str], own: Sequence[str], behind: str) -> Ending | None:
        """Return the token that ends a call if calls end in the same way as texts; else None."""
        if self.text_end.token in own or behind.lstrip().startswith(self.text_end.history):
            return self.text_end
        if not self.text_end.next_begins:
            return None
        token = next((token for token in following if token in self._stops), "") or next(iter(following), "")
        return Ending(token, token, next_begins=True) if token else None

    def _without_prompt(self, behind: str) -> str:
        """Return the text after a last reply without the next prompt, which some templates always write."""
        if self._render([], prompt=False) != self.prompt:
            return behind
        place = len(behind) - len(common_start(behind[::-1], self.prompt[::-1]))
        tokens = [] if self._specials is None else list(self._specials.finditer(behind))
        # Messages of all roles may end with the same token, or with one whose last letters are those of another.
        place = next((token.end() for token in tokens if token.start() < place < token.end()), place)
        if tokens and place < tokens[0].end():
            place = tokens[0].end()
        return behind[:place]

    def _between(self, message: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
        """Return the text between the sentinel of a reply and that of the answer to it."""
        whole = self._render([message, answer], prompt=True)
        _, found, behind = whole.rpartition(REPLY)
        between, answered, _ = behind.partition(ANSWER)
        if not found or not answered:
            raise UnusableTemplate("the chat template drops messages")
        return between

    def _whole_tokens(self, start: str, text: str) -> str:
        """Return the start of a text without a part of a token at its end."""
        tokens = [] if self._specials is None else list(self._specials.finditer(text))
        cut = next((token.start() for token in tokens if token.start() < len(start) < token.end()), len(start))
        return start[:cut]

    def _tokens_in(self, text: str) -> list[str]:
        return [] if self._specials is None else [match[0] for match in self._specials.finditer(text)]

    def _find_thinking(self, with_calls: bool) -> Thinking | None:
        """Return how the template writes thoughts: those in messages, or those that its prompt begins."""
        plainly = self._render([plain(REPLY)], prompt=False).partition(REPLY)[0].rstrip()
        messages = [plain(REPLY, _REASONING)]
        if with_calls:
            messages += [form.message(_PROBE, reasoning=_REASONING) for form in _FORMS]
        for message in messages:
            try:
                before, found, behind = self._render([message], prompt=False).partition(_REASONING)
            except UnusableTemplate:
                continue
            begin, end = _OPENING.search(before), _CLOSING.match(behind)
            if found and begin and end and not plainly.endswith(begin[1]):
                return Thinking(begin[0], end[0], opened=self.prompt.rstrip().endswith(begin[1]))
        if (own := self._thoughts_of_their_own()) is not None:
            return own
        for begin_mark, end_mark in _KNOWN_THINKING:
            opened = self.prompt.rstrip().endswith(begin_mark)
            if opened or (begin_mark in self._template.source and end_mark in self._template.source):
                return Thinking(f"{begin_mark}\n", f"\n{end_mark}\n\n", opened=opened)
        return None

    def _thoughts_of_their_own(self) -> Thinking | None:
        """Return the marks around thoughts that form a separate message, addressed to the model itself."""
        try:
            before, found, behind = self._render([plain(REPLY, _REASONING)], prompt=False).partition(_REASONING)
            lead = self._render([plain(REPLY)], prompt=False).partition(REPLY)[0]
        except UnusableTemplate:
            return None
        if not (found and before.startswith(self.prompt) and lead.startswith(self.prompt)):
            return None
        begin = before.removeprefix(self.prompt)
        end = behind.partition(REPLY)[0].removesuffix(lead.removeprefix(self.prompt))
        if not (self._tokens_in(begin) and self._tokens_in(end)):
            return None
        return Thinking(begin, end, opened=False)

    def _has_thought(self, thinking: Thinking) -> bool:
        """Return whether the prompt contains finished thoughts, so that the reply has none."""
        begin, end = thinking.marks
        behind = self.prompt.rpartition(str(self._opening[-1]["content"]))[2] if self._opening else self.prompt
        return behind.rstrip().endswith(end) or begin + end in "".join(behind.split())

    def _find_calls(self) -> tuple[CallForm, CallSyntax, Ending]:
        """Return the form of messages with calls, the syntax to read them, and their ending."""
        found: list[tuple[bool, int, CallForm, CallSyntax, Ending]] = []
        refusal, is_written = "", False
        for form in _FORMS:
            try:
                message = form.message(ToolCall(name=NAME, arguments={KEYS[0]: REPLY}))
                ending = self._ending(message, answer_to(NAME, ANSWER), is_call=True)
                syntax = learned(partial(self._written, form, ending))
                length = len(self._render([message, answer_to(NAME, ANSWER)], prompt=True))
            except UnusableTemplate as error:
                refusal = refusal or str(error)
                continue
            is_written = True
            if syntax is not None:
                found.append((form.as_text, length, form, syntax, ending))
        if not found:
            unread = "the chat template writes calls of functions in no way that can be read back"
            reason = unread if is_written else refusal
            raise UnusableTemplate(f"no functions can be called: {reason}")
        *_, form, syntax, ending = min(found, key=lambda one: one[:2])  # a longer one has an empty text beside the call
        return form, syntax, ending

    def _written(self, form: CallForm, ending: Ending, call: ToolCall) -> str:
        return self._without_thoughts(self._by_template(form.message(call), ending))

    def _without_thoughts(self, text: str) -> str:
        """Return a template's text for a call, without empty thoughts in front of it."""
        if self.thinking is None:
            return text
        head, mark, rest = text.partition(self.thinking.marks[1])
        return rest.lstrip() if mark and not head.strip().removeprefix(self.thinking.marks[0]).strip() else text

    def _find_surroundings(self) -> tuple[str, str, str]:
        """Return the text before a reply without thoughts, and the texts before and after the content of every reply.

        They are taken from a reply before a later message, unless the prompt begins thoughts, which must be ended.
        """
        lead, found, tail = self._by_template(plain(REPLY), self.text_end).partition(REPLY)
        if not found:
            raise UnusableTemplate("the chat template drops messages")
        if self.thinking is None or not self.thinking.opened:
            earlier = self._render([plain(REPLY), user(ANSWER)], prompt=True).partition(REPLY)[0]
            lead = _behind(self.prompt, earlier)
        if self.thinking is None:
            return "", lead, tail
        _, mark, rest = lead.rpartition(self.thinking.marks[1])
        if mark:
            own = rest.lstrip()
            return lead[: len(lead) - len(own)] if self.thinks else "", own, tail
        return (self.thinking.end if self.thinking.opened else ""), lead, tail

    def _require_round_trips(self) -> None:
        """Raise UnusableTemplate if some replies could not be read back as written."""
        replies = [ModelReply(REPLY)]
        if self.form is not None:
            replies.append(ModelReply("", calls=(_PROBE,)))
        if self.thinks:
            replies += [replace(reply, reasoning=_REASONING) for reply in replies]
        for reply in replies:
            self._require_unbroken(reply, self.write(reply))

    def _require_unbroken(self, reply: ModelReply, text: str) -> None:
        """Raise UnusableTemplate if a model that writes a reply as the template does would stop within it."""
        if any(str(message["content"]) in text for message in self._opening):
            return  # it writes what is before a reply anew, and is refused where that is seen
        ends = {self.text_end.token, self.call_end.token}
        if (within := next((token for token in self._tokens_in(text) if token in ends), None)) is None:
            return
        what = "thoughts" if reply.reasoning else "what is before a call" if reply.calls else "the beginning of a reply"
        remedy = ' (rollout.template.thinking = "off", if it has a switch)' if reply.reasoning else ""
        raise UnusableTemplate(
            f"the chat template ends {what} with {within}, which ends replies too: a model would stop there{remedy}"
        )


def plain(content: str, reasoning: str = "") -> dict[str, Any]:
    """Return an assistant's message without calls."""
    return {"role": "assistant", "content": content, **_reasoning(reasoning)}


def user(content: str) -> dict[str, Any]:
    """Return a user's message."""
    return {"role": "user", "content": content}


def answer_to(name: str, content: str) -> dict[str, Any]:
    """Return the message that answers a call."""
    return {"role": "tool", "name": name, "tool_call_id": CALL_ID, "content": content}


def declared(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return tools in the form in which templates declare them."""
    return [{"type": "function", "function": tool.model_dump()} for tool in tools]


def _reasoning(reasoning: str) -> dict[str, str]:
    """Return thoughts under the keys that templates use for them; an empty dictionary without thoughts."""
    return dict.fromkeys(_REASONING_KEYS, reasoning) if reasoning else {}


def _behind(prompt: str, whole: str) -> str:
    """Return the part of a rendering after the prompt of its last reply, which it may write in another way."""
    if whole.startswith(prompt):
        return whole[len(prompt) :]
    common = common_start(prompt, whole)
    rest = whole[len(_HALF_TAG.sub("", common)) :]
    for length in range(min(len(prompt), len(rest)), 0, -1):
        if prompt.endswith(rest[:length]):
            return rest[length:]
    return rest


_PROBE: Final = ToolCall(name=NAME, arguments={KEYS[0]: VALUES[0]})
_FORMS: Final = tuple(CallForm(content, as_text) for as_text in (False, True) for content in ("", None))
