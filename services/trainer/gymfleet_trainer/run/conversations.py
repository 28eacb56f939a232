"""Conversations and preferences as training sequences: with the model's own chat template; only replies are learned."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gymfleet_contracts.conversation import Conversation, Message
from gymfleet_contracts.data_records import Preference
from gymfleet_kit.chat.template import UnusableTemplate
from gymfleet_kit.chat.tokenizer import UnusableTokenizer
from gymfleet_kit.chat.tokens import ChatTokens

from gymfleet_trainer.errors import TrainerError
from gymfleet_trainer.learning.pairs import Found, LeftOut, Side, pair_of
from gymfleet_trainer.model.batching import TrainSequence


@dataclass(frozen=True, slots=True)
class Rendered:
    """Conversations that fit into the model's context, and the number of those that do not."""

    sequences: list[TrainSequence]
    num_too_long: int


def render(conversations: Sequence[Conversation], model: Path, max_tokens: int) -> Rendered:
    """Return conversations as the tokens of the model in a directory; those of more than `max_tokens` are left out.

    Raises TrainerError for a model without a usable chat template, and for a conversation that it cannot carry.
    """
    if not conversations:
        return Rendered([], 0)
    chat = _chat(model)
    found = [
        _sequence(
            chat,
            one.messages,
            f"conversation/{number}",
            one.source or f"conversation {number + 1}",
            max_tokens,
            one.reward or 0.0,
        )
        for number, one in enumerate(conversations)
    ]
    fitting = [sequence for sequence in found if sequence is not None]
    return Rendered(fitting, len(found) - len(fitting))


def render_pairs(preferences: Sequence[Preference], model: Path, max_tokens: int) -> Found:
    """Return preferences as pairs in the tokens of the model in a directory, without those that are too long.

    Replies that the prompt holds have no loss. Raises TrainerError as `render`.
    """
    found, chat = Found(), _chat(model)
    for number, one in enumerate(preferences):
        prompt = [message.model_copy(update={"learned": False}) for message in one.prompt]
        where, task = one.source or f"preference {number + 1}", one.task
        rows = [
            _sequence(chat, [*prompt, *said], f"preference/{number}/{place}", f"{where}, {side}", max_tokens)
            for place, (side, said) in enumerate((("chosen", one.chosen), ("rejected", one.rejected)))
        ]
        named = "" if task is None else f"{task.env}/{task.split}/{task.task_id}"
        sides = [Side(named, row.trajectory_id, 0.0, (row,)) for row in rows if row is not None]
        if len(sides) < 2:
            found.left_out[LeftOut.TOO_LONG] += 1
        elif (pair := pair_of(*sides)) is None:
            found.left_out[LeftOut.SAME_REPLIES] += 1
        else:
            found.pairs.append(pair)
    return found


def _chat(model: Path) -> ChatTokens:
    try:
        return ChatTokens.load(model)
    except (UnusableTokenizer, UnusableTemplate) as error:
        raise TrainerError(f"conversations cannot be learned by this model: {error}") from None


def _sequence(
    chat: ChatTokens, messages: Sequence[Message], name: str, where: str, max_tokens: int, reward: float = 0.0
) -> TrainSequence | None:
    token_ids: list[int] = []
    mask: list[bool] = []
    try:
        for piece in chat.pieces(messages):
            token_ids += (*piece.prompt, *piece.reply)
            mask += [False] * len(piece.prompt) + [piece.learned] * len(piece.reply)
            if len(token_ids) > max_tokens:  # the time to render all of it grows with the square of its length
                return None
    except UnusableTemplate as error:
        raise TrainerError(f"{where}: {error}") from None
    if not token_ids:
        raise TrainerError(f"{where}: none of its messages is learned from")
    nothing = [0.0] * len(token_ids)
    rewards = [*nothing[1:], reward]
    return TrainSequence(token_ids, mask, nothing, rewards, 0, name)
