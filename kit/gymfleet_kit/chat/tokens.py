"""Conversations as tokens: encode only what is new in each turn, and never tokenise sampled tokens again.

Unless other roles are asked for, the prompt is one user message (instructions,
reply format, first observation), because not every chat template has a system
role. Each later turn adds only what the template puts between the end of the
assistant's reply and the start of the next reply.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from gymfleet_contracts.conversation import Message
from gymfleet_contracts.rollout import MessageRoles

from gymfleet_kit.chat.tokenizer import ModelTokenizer

_USERS: Final = MessageRoles()
_INSTRUCTIONS: Final = "instructions-sentinel-90be"
_ASSISTANT: Final = "assistant-sentinel-7f3a"
_USER: Final = "user-sentinel-c41d"
_PROBES: Final = ("x", "  x \n", "two\n\nlines", "{{ x }} <b>", "")


class UnusableTemplate(Exception):
    """The model's chat template cannot carry a conversation turn by turn; the message says why."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A reply in a conversation, with what is new before it."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    """With the token that ends it."""
    learned: bool


class ChatTokens:
    """Turn conversations into segments of token ids with a model's chat template and tokenizer.

    Args:
        tokenizer: must have a chat template whose assistant turns end with a special token.
        roles: under which the template's messages are put.
    """

    def __init__(self, tokenizer: ModelTokenizer, roles: MessageRoles = _USERS) -> None:
        if not tokenizer.chat_template:
            raise UnusableTemplate("the model has no chat template")
        self._tokenizer = tokenizer
        self._roles = roles
        self._under: dict[MessageRoles, ChatTokens] = {roles: self}
        self._markers: frozenset[str] = frozenset()
        self._require_roles()
        self._ids = tokenizer.encode
        specials = sorted(tokenizer.added_tokens, key=len, reverse=True)
        self._specials = re.compile("|".join(map(re.escape, specials))) if specials else None
        self.turn_end_id, self._reply_lead = self._read_template()
        self._markers = tokenizer.markers - {tokenizer.token(self.turn_end_id)}
        eos = tokenizer.eos_token_id
        self.stop_token_ids: tuple[int, ...] = tuple(
            dict.fromkeys(token for token in (self.turn_end_id, eos) if token is not None)
        )
        self._affixes = self._find_affixes()
        self.first = lru_cache(maxsize=4096)(self._first)

    @classmethod
    def load(cls, path: Path) -> "ChatTokens":
        """Load from a model's directory. Raises UnusableTokenizer, UnusableTemplate."""
        return cls(ModelTokenizer.load(path))

    def under(self, roles: MessageRoles) -> "ChatTokens":
        """Return the same for other roles. Raises UnusableTemplate where the template refuses one of them."""
        if roles not in self._under:
            self._under[roles] = ChatTokens(self._tokenizer, roles)
        return self._under[roles]

    def _first(self, content: str, instructions: str = "") -> tuple[int, ...]:
        """Return the prompt of the first turn, up to the start of the reply."""
        messages = self._opening(self.defuse(content), self.defuse(instructions))
        return tuple(self._ids(self._render(messages, prompt=True)))

    def following(self, content: str, *, reply_ended: bool) -> tuple[int, ...]:
        """Return the tokens between two replies, led by the missing end token if the reply was cut short."""
        content = self.defuse(content)
        ids = self._ids(self._delta(content) if self._affixes is None else content.join(self._affixes))
        return tuple(ids) if reply_ended else (self.turn_end_id, *ids)

    def ended(self, response_token_ids: Sequence[int]) -> bool:
        """Return whether the reply ended its turn."""
        return bool(response_token_ids) and response_token_ids[-1] == self.turn_end_id

    def text(self, response_token_ids: Sequence[int]) -> str:
        """Return the reply as text, without the token that ended it."""
        ids = response_token_ids
        if ids and ids[-1] in self.stop_token_ids:
            ids = ids[:-1]
        return self._tokenizer.decode(ids)

    def reply(self, text: str) -> tuple[int, ...]:
        """Encode a written reply (an expert's) as the model would have sampled it, including its end token."""
        return (*self._ids(self._reply_lead + self.defuse(text)), self.turn_end_id)

    def pieces(self, messages: Sequence[Message]) -> Iterator[Piece]:
        """Yield a conversation's replies, up to the last one that is learned from, each with what comes before it.

        They are the tokens of an episode in which the same was said: replies are written as `reply` writes them, and
        the template never sees their text. Raises UnusableTemplate if the template cannot carry this conversation.
        """
        replies = [place for place, message in enumerate(messages) if message.role == "assistant"]
        last = max((place for place in replies if messages[place].teaches), default=-1)
        shown = [
            {"role": one.role, "content": _ASSISTANT if one.role == "assistant" else self.defuse(one.content)}
            for one in messages
        ]
        before, begin = "", 0
        for place in (place for place in replies if place <= last):
            whole = self._render(shown[:place], prompt=True)
            new = self._continued(before, whole, place)
            _require_all(shown[begin:place], new, begin)
            prompt = tuple(self._ids(new))
            yield Piece(prompt, self.reply(messages[place].content), messages[place].teaches)
            before, begin = whole + self._reply_lead + _ASSISTANT, place + 1

    def _continued(self, before: str, whole: str, place: int) -> str:
        """Return what a rendering adds to the one before it and the token that ended its reply."""
        if not before:
            return whole
        end = self._tokenizer.token(self.turn_end_id)
        ended, mark, rest = whole[len(before) :].partition(end)
        if not whole.startswith(before) or not mark or ended.strip():
            raise UnusableTemplate(
                f"the chat template writes what comes before message {place + 1} in another way than before the reply "
                "ahead of it, so that the model would be taught on a context that it never sees: give a template that "
                "only adds to what is there"
            )
        return rest

    def defuse(self, text: str) -> str:
        """Break up special tokens in a text from outside, which must not end a turn or begin another.

        Markers such as `<think>` and `<tool_call>`, which a tokenizer holds as tokens and not as special ones, do
        neither: reply formats write them, and the model is to see what it is asked to write.
        """
        if self._specials is None:
            return text
        return self._specials.sub(self._defused, text)

    def _defused(self, match: re.Match[str]) -> str:
        token = match[0]
        return token if token in self._markers else f"{token[0]} {token[1:]}"

    def _render(self, messages: list[dict[str, str]], *, prompt: bool) -> str:
        try:
            return self._tokenizer.render(messages, add_generation_prompt=prompt)
        except Exception as error:  # a template is a program from outside
            raise UnusableTemplate(f"the chat template refuses a conversation: {error}") from error

    def _opening(self, content: str, instructions: str) -> list[dict[str, str]]:
        if instructions and self._roles.instructions == "system":
            return [{"role": "system", "content": instructions}, {"role": "user", "content": content}]
        return [{"role": "user", "content": "\n\n".join(part for part in (instructions, content) if part)}]

    def _messages(self, content: str) -> list[dict[str, str]]:
        """Return a conversation in which a content answers a reply."""
        answer = {"role": self._roles.observations, "content": content}
        return [*self._opening("a", _INSTRUCTIONS), {"role": "assistant", "content": _ASSISTANT}, answer]

    def _conversation(self, content: str) -> str:
        return self._render(self._messages(content), prompt=True)

    def _require_roles(self) -> None:
        """Raise UnusableTemplate where the template refuses or drops messages of a role that is not the user's."""
        for option, role, content in (
            ("instructions", self._roles.instructions, _INSTRUCTIONS),
            ("observations", self._roles.observations, _USER),
        ):
            if role == "user":
                continue
            messages = self._opening("a", _INSTRUCTIONS) if role == "system" else self._messages(_USER)
            try:
                told = (
                    "" if content in self._tokenizer.render(messages, add_generation_prompt=True) else "it drops them"
                )
            except Exception as error:  # noqa: BLE001 - a template is a program from outside
                told = " ".join(str(error).split()) or type(error).__name__
            if told:
                raise UnusableTemplate(
                    f"the chat template takes no messages of the role {role!r} ({told}): "
                    f'give rollout.roles.{option} = "user"'
                )

    def _read_template(self) -> tuple[int, str]:
        """Return the token that ends an assistant's turn, and what the template puts before the turn's text."""
        opening = self._render(self._opening("a", _INSTRUCTIONS), prompt=True)
        whole = self._conversation(_USER)
        start = whole.find(_ASSISTANT)
        if start < 0 or whole.find(_USER, start) < 0:
            raise UnusableTemplate("the chat template drops messages")
        behind = start + len(_ASSISTANT)
        match = None if self._specials is None else self._specials.search(whole, behind)
        if match is None or match.start() > whole.find(_USER, behind) or whole[behind : match.start()].strip():
            raise UnusableTemplate("the chat template does not end the assistant's turn with a special token")
        lead = whole[len(opening) : start] if whole.startswith(opening) else ""
        return self._tokenizer.token_id(match[0]), lead

    def _delta(self, content: str) -> str:
        """Render a fixed conversation with the new message, and return what follows the assistant's end token."""
        whole = self._conversation(content)
        end = self._tokenizer.token(self.turn_end_id)
        behind = whole.index(_ASSISTANT) + len(_ASSISTANT)
        return whole[whole.index(end, behind) + len(end) :]

    def _find_affixes(self) -> tuple[str, str] | None:
        """Return the constant text around a message if the template leaves messages as they are, or None.

        With it, a turn does not have to be rendered.
        """
        before, _, after = self._delta(_USER).partition(_USER)
        if all(self._delta(probe) == before + probe + after for probe in _PROBES):
            return before, after
        return None


def _require_all(messages: Sequence[dict[str, str]], text: str, first: int) -> None:
    """Raise UnusableTemplate for a message whose content is not in the text, in the messages' order."""
    behind = 0
    for number, message in enumerate(messages, first + 1):
        content = message["content"].strip()
        found = next((at for one in _spellings(content) if (at := text.find(one, behind)) >= 0), None)
        if found is None:
            raise UnusableTemplate(f"the chat template leaves out message {number}, of role {message['role']!r}")
        behind = found + len(content)


def _spellings(content: str) -> Iterator[str]:
    """Yield how templates write a text: as it is, or as JSON."""
    yield content
    yield json.dumps(content, ensure_ascii=False)[1:-1]
