"""Episodes as a reward model reads them: its own chat template, its own tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gymfleet_contracts.conversation import MAX_MESSAGE_CHARS, Message
from gymfleet_contracts.trajectory import Trajectory
from gymfleet_kit.chat.tokenizer import ModelTokenizer, UnusableTokenizer
from gymfleet_kit.chat.tokens import ChatTokens, UnusableTemplate

from gymfleet_reward.component import ComponentError, turns_of
from gymfleet_reward.models.tables import UnusableModel


@dataclass(frozen=True, slots=True)
class Transcript:
    """The tokens of an episode."""

    ids: Sequence[int]
    ends: tuple[int, ...] = ()
    """Where each turn's number is read."""


class Transcripts:
    """Write episodes for one model: observations are the user's messages, replies the assistant's.

    Tokens with a meaning of their own are broken up wherever they stand in an observation or a reply, so that neither
    can pretend to be another turn.

    Args:
        directory: the model's tokenizer and chat template.
        step_tag: see `ModelTable`.

    Raises:
        UnusableModel: there is no tokenizer or template that can be used.
    """

    def __init__(self, directory: Path, step_tag: str | None) -> None:
        try:
            self._tokenizer = ModelTokenizer.load(directory)
            self._chat = ChatTokens(self._tokenizer)
        except (UnusableTokenizer, UnusableTemplate) as error:
            raise UnusableModel(str(error)) from None
        self._tag = step_tag or ""
        self._tag_id: int | None = None
        if step_tag is not None:
            if step_tag not in self._tokenizer.added_tokens:
                raise UnusableModel(f"step_tag {step_tag!r} is no special token of the tokenizer in {directory}")
            self._tag_id = self._tokenizer.token_id(step_tag)

    @property
    def vocab_size(self) -> int:
        """The largest id and one."""
        return max(self._tokenizer.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def whole(self, episode: Trajectory) -> Transcript:
        """Return a transcript as the template writes it. Raises `ComponentError`."""
        return Transcript(self._encoded(_messages(episode)))

    def by_turns(self, episode: Trajectory) -> Transcript:
        """Return a transcript with the place of each turn's end. Raises `ComponentError`."""
        messages = _messages(episode)
        if self._tag_id is not None:
            ids = self._encoded(messages)
            ends = tuple(place for place, token in enumerate(ids) if token == self._tag_id)
            if len(ends) != len(episode.turns):
                raise ComponentError(
                    f"the reward model's template keeps {len(ends)} step tags of {len(episode.turns)} turns"
                )
            return Transcript(ids, ends)
        try:
            pieces = list(self._chat.pieces(messages))
        except UnusableTemplate as error:
            raise ComponentError(f"the reward model's {error}") from None
        ids, ends_at = [], []
        for piece in pieces:
            ids += [*piece.prompt, *piece.reply]
            ends_at.append(len(ids) - 1)
        return Transcript(ids, tuple(ends_at))

    def _encoded(self, messages: Sequence[Message]) -> list[int]:
        shown = [
            {
                "role": message.role,
                "content": self._chat.defuse(message.content) + (self._tag if message.role == "assistant" else ""),
            }
            for message in messages
        ]
        try:
            text = self._tokenizer.render(shown, add_generation_prompt=False)
        except Exception as error:  # a template is a program from outside
            raise ComponentError(f"the reward model's chat template refuses the transcript: {error}") from error
        return self._tokenizer.encode(text)


def _messages(episode: Trajectory) -> list[Message]:
    longest = max(max(len(turn.observation), len(turn.text)) for turn in turns_of(episode))
    if longest > MAX_MESSAGE_CHARS:
        raise ComponentError(f"a turn has {longest} characters, a reward model is shown {MAX_MESSAGE_CHARS} at most")
    return [
        message
        for turn in episode.turns
        for message in (
            Message(role="user", content=turn.observation),
            Message(role="assistant", content=turn.text),
        )
    ]
