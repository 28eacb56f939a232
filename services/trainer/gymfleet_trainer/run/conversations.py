"""Conversations and preferences as training sequences in the model's own chat template; only replies are learned."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gymfleet_contracts.conversation import Conversation, Message
from gymfleet_contracts.data_records import Preference
from gymfleet_contracts.rollout import MessageRoles, TemplateOptions
from gymfleet_kit.chat.image_reader import BadImage
from gymfleet_kit.chat.template import UnusableTemplate
from gymfleet_kit.chat.tokenizer import UnusableTokenizer
from gymfleet_kit.chat.tokens import AS_IT_IS, ChatTokens

from gymfleet_trainer.errors import TrainerError
from gymfleet_trainer.learning.images import LazyReader
from gymfleet_trainer.learning.pairs import Found, LeftOut, Side, pair_of
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.model.vision import SeenImage


@dataclass(frozen=True, slots=True)
class Rendered:
    """Conversations that fit into the model's context, and the number of those that do not."""

    sequences: list[TrainSequence]
    num_too_long: int


def render(
    conversations: Sequence[Conversation], model: Path, max_tokens: int, options: TemplateOptions = AS_IT_IS
) -> Rendered:
    """Return conversations in the tokens of a directory's model; those of more than `max_tokens` are left out.

    Where the chat template replaces contexts, a conversation becomes several sequences.

    Raises TrainerError for a model without a usable chat template, and for a conversation that it cannot represent.
    """
    if not conversations:
        return Rendered([], 0)
    chat, found, reader = _chat(model, options), [], LazyReader(model)
    for number, one in enumerate(conversations):
        where = one.source or f"conversation {number + 1}"
        try:
            own = chat.under(MessageRoles(), options, one.tools)
        except UnusableTemplate as error:
            raise TrainerError(f"{where}: it declares functions in `tools`, and {error}") from None
        name, reward = f"conversation/{number}", one.reward or 0.0
        found.append(_sequences(own, one.messages, name, where, max_tokens, reward, reader))
    fitting = [sequences for sequences in found if sequences is not None]
    return Rendered([one for sequences in fitting for one in sequences], len(found) - len(fitting))


def render_pairs(
    preferences: Sequence[Preference], model: Path, max_tokens: int, options: TemplateOptions = AS_IT_IS
) -> Found:
    """Return preferences as pairs in the tokens of a directory's model, without those that are too long.

    Replies in the prompt have no loss. Raises TrainerError as `render` does.
    """
    found, chat, reader = Found(), _chat(model, options), LazyReader(model)
    for number, one in enumerate(preferences):
        prompt = [message.model_copy(update={"learned": False}) for message in one.prompt]
        name, task = f"preference/{number}", one.task
        where = one.source or f"preference {number + 1}"
        rows = [
            _sequences(chat, [*prompt, *said], f"{name}/{place}", f"{where}, {side}", max_tokens, 0.0, reader)
            for place, (side, said) in enumerate((("chosen", one.chosen), ("rejected", one.rejected)))
        ]
        named = "" if task is None else f"{task.env}/{task.split}/{task.task_id}"
        sides = [Side(named, side[0].trajectory_id, 0.0, tuple(side)) for side in rows if side is not None]
        if len(sides) < 2:
            found.left_out[LeftOut.TOO_LONG] += 1
        elif (pair := pair_of(*sides)) is None:
            found.left_out[LeftOut.SAME_REPLIES] += 1
        else:
            found.pairs.append(pair)
    return found


def _chat(model: Path, options: TemplateOptions) -> ChatTokens:
    try:
        return ChatTokens.load(model, options)
    except (UnusableTokenizer, UnusableTemplate) as error:
        raise TrainerError(f"conversations cannot be learned by this model: {error}") from None


def _sequences(
    chat: ChatTokens,
    messages: Sequence[Message],
    name: str,
    where: str,
    max_tokens: int,
    reward: float,
    reader: LazyReader,
) -> list[TrainSequence] | None:
    """Return the sequences with something to learn, the reward at the end of the last; None if one is too long."""
    found: list[tuple[list[int], list[bool], list[SeenImage]]] = []
    try:
        for piece in chat.pieces(messages, reader.of(messages)):
            if piece.replaces or not found:
                found.append(([], [], []))
            token_ids, mask, images = found[-1]
            images += reader.seen(piece.images, piece.prompt, len(token_ids))
            token_ids += (*piece.prompt, *piece.reply)
            mask += [False] * len(piece.prompt) + [piece.learned] * len(piece.reply)
            if len(token_ids) > max_tokens:  # the time to render all of it grows with the square of its length
                return None
    except (UnusableTemplate, BadImage) as error:
        raise TrainerError(f"{where}: {error}") from None
    found = [row for row in found if any(row[1])]
    if not found:
        raise TrainerError(f"{where}: none of its messages is learned from")
    sequences = []
    for place, (token_ids, mask, images) in enumerate(found, 1):
        nothing = [0.0] * len(token_ids)
        rewards = [*nothing[1:], reward if place == len(found) else 0.0]
        sequences.append(TrainSequence(token_ids, mask, nothing, rewards, 0, name, images=tuple(images)))
    return sequences
