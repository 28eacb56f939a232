"""The prompts that the policy reads at a node: their tokens, and the limit on their number."""

from collections.abc import Sequence
from typing import Final

from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.trajectory import PromptImage, Turn

from gymfleet_rollout.inference.base import InferenceError
from gymfleet_rollout.parts import Parts
from gymfleet_rollout.seen import Prompted, Seen, ShownImage, marked_text
from gymfleet_rollout.tree import Node


class PromptTooLong(InferenceError):
    """The first prompt and one token do not fit the context: the limits are wrong, not the policy."""


class Contexts:
    """Writes the prompts of a group's episodes."""

    def __init__(self, parts: Parts, group: GroupRequest, seen: Seen) -> None:
        self._parts = parts
        self._seen = seen
        self.max_tokens: Final = min(group.limits.max_context_tokens, parts.policy.max_model_len)
        """Limit on the tokens of prompts and replies together."""

    def prompt(self, last: Turn | None, text: str, shown: Sequence[ShownImage] = ()) -> Prompted:
        """Return what the prompt of an observation adds to the turns before it; `last` is the last of these.

        The text contains the marks of the images that are shown.
        """
        chat, images = self._parts.chat, tuple(one.marked for one in shown)
        if last is None:
            return self._seen.prompted(chat.first(text, self._instructions, images), shown)
        calls = chat.read(last.response_token_ids).reply.calls if self._parts.format.tools else ()
        called = calls[0].name if len(calls) == 1 else ""
        ended = chat.ended(last.response_token_ids, called=bool(called))
        token_ids = chat.following(text, reply_ended=ended, called=called, images=images)
        return self._seen.prompted(token_ids, shown)

    def replacement(self, nodes: Sequence[Node], text: str, shown: Sequence[ShownImage] = ()) -> Prompted | None:
        """Return the whole prompt of an observation, or None if it continues the turns before it.

        The prompt is whole if contexts are replaced and the template's own context differs from what was sampled.

        Args:
            nodes: the nodes that lead to the observation, from the first one to the one that it belongs to.
            text: the observation's text, with the marks of its images.
            shown: the observation's images.
        """
        chat = self._parts.chat
        if not chat.replaces or len(nodes) < 2:
            return None
        told = [*(marked_text(node.observation, node.parts, node.shown) for node in nodes[:-1]), text]
        turns = [node.turn for node in nodes if node.turn is not None]
        said = [(turn.response_token_ids, answer) for turn, answer in zip(turns, told[1:], strict=True)]
        images = [*(image for node in nodes[:-1] for image in node.shown), *shown]
        token_ids, replaces, left = chat.rendered(told[0], self._instructions, said, [image.marked for image in images])
        if not replaces:
            return None
        return self._seen.prompted(token_ids, [image for image in images if image.marked in left])

    @property
    def _instructions(self) -> str:
        instructions = (self._parts.spec.instructions.strip(), self._parts.format.instructions)
        return "\n\n".join(part for part in instructions if part)

    def require_fitting(self, prompt: Prompted) -> None:
        """Raise PromptTooLong for a first prompt that leaves no room for a reply."""
        if len(prompt.token_ids) >= self.max_tokens:
            raise PromptTooLong(
                f"the first prompt has {len(prompt.token_ids)} tokens, the context {self.max_tokens}: raise "
                "limits.max_context_tokens and the engine's max_model_len"
            )

    def complaint(self, action: str | None) -> str:
        """Return the answer to a reply that could not be executed."""
        if action is None:
            return self._parts.format.complaint
        limit = self._parts.spec.max_action_chars
        return f"Invalid action: it has {len(action)} characters, at most {limit} are allowed."


def images_before(node: Node) -> list[tuple[int, PromptImage]]:
    """Return the images of the sequence that leads to a node, each with the place where its turn's prompt begins."""
    found: list[tuple[int, PromptImage]] = []
    begin = 0
    for turn in node.turns():
        if turn.context == "replaced":
            found, begin = [], 0
        found += ((begin, image) for image in turn.prompt_images)
        begin += len(turn.prompt_token_ids) + len(turn.response_token_ids)
    return found


def tokens_before(node: Node) -> list[int]:
    """Return the tokens of the sequence that leads to a node, and keep them in the node."""
    if node.context is None:
        node.context = []
        for turn in node.turns():
            if turn.context == "replaced":
                node.context.clear()
            node.context += turn.prompt_token_ids
            node.context += turn.response_token_ids
    return node.context
