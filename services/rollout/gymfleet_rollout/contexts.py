"""What the policy reads at a node: the tokens of prompts, and how many there may be."""

from collections.abc import Sequence
from typing import Final

from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.trajectory import Turn

from gymfleet_rollout.inference.base import InferenceError
from gymfleet_rollout.parts import Parts
from gymfleet_rollout.tree import Node


class PromptTooLong(InferenceError):
    """The first prompt and one token do not fit the context: the limits are wrong, not the policy."""


class Contexts:
    """Writes the prompts of a group's episodes."""

    def __init__(self, parts: Parts, group: GroupRequest) -> None:
        self._parts = parts
        self.max_tokens: Final = min(group.limits.max_context_tokens, parts.policy.max_model_len)
        """Of prompts and replies together."""

    def prompt(self, last: Turn | None, observation: str) -> tuple[int, ...]:
        """Return what the prompt of an observation adds to the turns before it, of which `last` is the last."""
        chat = self._parts.chat
        if last is None:
            return chat.first(observation, self._instructions)
        calls = chat.read(last.response_token_ids).reply.calls if self._parts.format.tools else ()
        called = calls[0].name if len(calls) == 1 else ""
        return chat.following(
            observation, reply_ended=chat.ended(last.response_token_ids, called=bool(called)), called=called
        )

    def replacement(self, turns: Sequence[Turn], observation: str) -> tuple[int, ...] | None:
        """Return the whole prompt of an observation, where contexts are replaced and the template's own differs from
        what was sampled; None where the turns before it are gone on with.
        """
        if not self._parts.chat.replaces or not turns:
            return None
        answers = [*(turn.observation for turn in turns[1:]), observation]
        said = [(turn.response_token_ids, answer) for turn, answer in zip(turns, answers, strict=True)]
        token_ids, replaces = self._parts.chat.rendered(turns[0].observation, self._instructions, said)
        return token_ids if replaces else None

    @property
    def _instructions(self) -> str:
        instructions = (self._parts.spec.instructions.strip(), self._parts.format.instructions)
        return "\n\n".join(part for part in instructions if part)

    def require_fitting(self, prompt: tuple[int, ...]) -> None:
        """Raise PromptTooLong for a first prompt that leaves no room for a reply."""
        if len(prompt) >= self.max_tokens:
            raise PromptTooLong(
                f"the first prompt has {len(prompt)} tokens, the context {self.max_tokens}: raise "
                "limits.max_context_tokens and the engine's max_model_len"
            )

    def complaint(self, action: str | None) -> str:
        """Return the answer to a reply that could not be executed."""
        if action is None:
            return self._parts.format.complaint
        limit = self._parts.spec.max_action_chars
        return f"Invalid action: it has {len(action)} characters, at most {limit} are allowed."


def tokens_before(node: Node) -> list[int]:
    """Return the tokens of the sequence that leads to a node, which keeps them."""
    if node.context is None:
        node.context = []
        for turn in node.turns():
            if turn.context == "replaced":
                node.context.clear()
            node.context += turn.prompt_token_ids
            node.context += turn.response_token_ids
    return node.context
