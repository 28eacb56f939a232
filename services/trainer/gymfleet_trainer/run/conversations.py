"""Conversations as training sequences: with the model's own chat template, and only replies are learned."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gymfleet_contracts.conversation import Conversation
from gymfleet_kit.chat.tokenizer import UnusableTokenizer
from gymfleet_kit.chat.tokens import ChatTokens, UnusableTemplate

from gymfleet_trainer.errors import TrainerError
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
    try:
        chat = ChatTokens.load(model)
    except (UnusableTokenizer, UnusableTemplate) as error:
        raise TrainerError(f"conversations cannot be learned by this model: {error}") from None
    found = [_sequence(chat, conversation, number, max_tokens) for number, conversation in enumerate(conversations)]
    fitting = [sequence for sequence in found if sequence is not None]
    return Rendered(fitting, len(found) - len(fitting))


def _sequence(chat: ChatTokens, conversation: Conversation, number: int, max_tokens: int) -> TrainSequence | None:
    token_ids: list[int] = []
    mask: list[bool] = []
    try:
        for piece in chat.pieces(conversation.messages):
            token_ids += (*piece.prompt, *piece.reply)
            mask += [False] * len(piece.prompt) + [piece.learned] * len(piece.reply)
            if len(token_ids) > max_tokens:  # the time to render all of it grows with the square of its length
                return None
    except UnusableTemplate as error:
        raise TrainerError(f"{conversation.source or f'conversation {number + 1}'}: {error}") from None
    nothing = [0.0] * len(token_ids)
    return TrainSequence(token_ids, mask, nothing, nothing, 0, f"conversation/{number}")
