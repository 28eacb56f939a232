"""Episodes in the form that a reward model reads: with its own chat template and tokens.

The reward service writes the transcripts that a model scores with this module, and the trainer those it learns from, so
that the two are the same.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gymfleet_contracts.conversation import MAX_MESSAGE_CHARS, Message
from gymfleet_contracts.trajectory import Trajectory

from gymfleet_kit.chat.template import UnusableTemplate
from gymfleet_kit.chat.tokenizer import ModelTokenizer, UnusableTokenizer
from gymfleet_kit.chat.tokens import ChatTokens

NOTE: Final = "transcripts.json"
"""The file next to a trained reward model that names the template and tokenizer of its transcripts."""
_DIGITS: Final = 12


class UnusableTranscripts(Exception):
    """A directory has no tokenizer or template for writing transcripts; the message says why."""


class BadTranscript(Exception):
    """There is no transcript of this episode; the message says why."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """The tokens of an episode."""

    ids: Sequence[int]
    ends: tuple[int, ...] = ()
    """The places where each turn's number is read."""


class Transcripts:
    """Writes episodes for one model: observations are the user's messages, replies the assistant's.

    A transcript ends with the last reply, without the observation after it, which often shows how the episode ended.
    Special tokens in an observation or a reply are broken up, so that neither can pretend to be another turn.

    Args:
        directory: the model's tokenizer and chat template.
        step_tag: a special token that is put after each reply, at which its number is read; without it, the number is
            read at the token that ends the reply.

    Raises:
        UnusableTranscripts: there is no usable tokenizer or template, or the model was trained with another.
    """

    def __init__(self, directory: Path, step_tag: str | None = None) -> None:
        try:
            self._tokenizer = ModelTokenizer.load(directory)
            self._chat = ChatTokens(self._tokenizer)
        except (UnusableTokenizer, UnusableTemplate) as error:
            raise UnusableTranscripts(str(error)) from None
        self._tag = step_tag or ""
        self._tag_id: int | None = None
        if step_tag is not None:
            if step_tag not in self._tokenizer.added_tokens:
                raise UnusableTranscripts(f"step_tag {step_tag!r} is no special token of the tokenizer in {directory}")
            self._tag_id = self._tokenizer.token_id(step_tag)
        self._require_those_of_the_training(directory)

    @property
    def vocab_size(self) -> int:
        """The largest id plus one."""
        return max(self._tokenizer.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def whole(self, episode: Trajectory) -> Transcript:
        """Return a transcript as written by the template. Raises `BadTranscript`."""
        return Transcript(self._encoded(_messages(episode)))

    def by_turns(self, episode: Trajectory) -> Transcript:
        """Return a transcript with the place of each turn's end. Raises `BadTranscript`."""
        messages = _messages(episode)
        if self._tag_id is not None:
            ids = self._encoded(messages)
            ends = tuple(place for place, token in enumerate(ids) if token == self._tag_id)
            if len(ends) != len(episode.turns):
                raise BadTranscript(
                    f"the reward model's template keeps {len(ends)} step tags of {len(episode.turns)} turns"
                )
            return Transcript(ids, ends)
        try:
            pieces = list(self._chat.pieces(messages))
        except UnusableTemplate as error:
            raise BadTranscript(f"the reward model's {error}") from None
        ids, ends_at = [], []
        for piece in pieces:
            ids += [*piece.prompt, *piece.reply]
            ends_at.append(len(ids) - 1)
        return Transcript(ids, tuple(ends_at))

    def note(self, directory: Path) -> None:
        """Record in a model's directory the template and tokenizer of its transcripts."""
        (directory / NOTE).write_text(json.dumps(self._fingerprints(), indent=2) + "\n", encoding="utf-8")

    def _require_those_of_the_training(self, directory: Path) -> None:
        """Raise UnusableTranscripts if a note shows that the model was trained with another template or tokenizer."""
        file = directory / NOTE
        if not file.is_file():  # it was trained elsewhere
            return
        try:
            noted = json.loads(file.read_text(encoding="utf-8"))
            trained = {name: str(noted[name]) for name in self._fingerprints()}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UnusableTranscripts(f"{file} cannot be read: {type(error).__name__}: {error}") from None
        for name, found in self._fingerprints().items():
            if trained[name] != found:
                raise UnusableTranscripts(
                    f"the model in {directory} was trained with another {name.replace('_', ' ')} ({trained[name]}) "
                    f"than is there now ({found}): put back what the training left"
                )

    def _fingerprints(self) -> dict[str, str]:
        vocabulary = sorted(self._tokenizer.backend.get_vocab(with_added_tokens=True).items())
        return {
            "chat_template": _fingerprint(self._tokenizer.chat_template),
            "tokenizer": _fingerprint(json.dumps(vocabulary)),
        }

    def _encoded(self, messages: Sequence[Message]) -> list[int]:
        shown = [
            {
                "role": message.role,
                "content": self._harmless(message.content) + (self._tag if message.role == "assistant" else ""),
            }
            for message in messages
        ]
        try:
            text = self._tokenizer.render(shown, add_generation_prompt=False)
        except Exception as error:  # a template is a program from outside
            raise BadTranscript(f"the reward model's chat template refuses the transcript: {error}") from error
        return self._tokenizer.encode(text)

    def _harmless(self, text: str) -> str:
        """Break up special tokens and step tags, of which each reply has exactly one."""
        defused, tag = self._chat.defuse(text), self._tag
        return defused.replace(tag, f"{tag[0]} {tag[1:]}") if tag else defused


def _fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _messages(episode: Trajectory) -> list[Message]:
    if not episode.turns:
        raise BadTranscript("the trajectory has no turns")
    longest = max(max(len(turn.observation), len(turn.text)) for turn in episode.turns)
    if longest > MAX_MESSAGE_CHARS:
        raise BadTranscript(f"a turn has {longest} characters, a reward model is shown {MAX_MESSAGE_CHARS} at most")
    return [
        message
        for turn in episode.turns
        for message in (
            Message(role="user", content=turn.observation),
            Message(role="assistant", content=turn.text),
        )
    ]
