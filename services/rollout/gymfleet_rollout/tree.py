"""The nodes of a group's tree, and the replies that lead from one to the next."""

from dataclasses import dataclass

from gymfleet_contracts.observation import Part
from gymfleet_contracts.reply_format import ParsedReply
from gymfleet_contracts.session import TaskRef
from gymfleet_contracts.trajectory import FinishReason, PromptImage, ReplyEnd, Turn, VersionSpan

from gymfleet_rollout.seen import Prompted, ShownImage
from gymfleet_rollout.table import Table


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply to the observation of a node, by the policy or the expert, that was not carried out yet."""

    node_id: str
    """The node that this replies to."""
    text: str
    parsed: ParsedReply
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    """As the engine gave them; None if an expert wrote the reply."""
    prompt: tuple[int, ...]
    """The new tokens of its prompt, including those of a hint."""
    images: tuple[PromptImage, ...]
    """Where the prompt shows images."""
    replaces: bool
    """Whether the prompt replaced the context that the node had."""
    versions: tuple[VersionSpan, ...]
    """Which version of the policy sampled which tokens; none if an expert wrote the reply."""
    end: ReplyEnd
    seconds: float
    role: str
    num_reasoning_tokens: int = 0
    """Number of its tokens that are thoughts, if the chat template has a place for them."""
    num_prefilled_tokens: int = 0
    """Tokens of its context that the engine computed; the others were in its prefix cache."""
    greedy: bool = False
    """Whether it is made of the likeliest tokens, and is therefore not a sample of the policy."""

    @property
    def action(self) -> str | None:
        """Return the action that the reply asks for, or None if it asks for none."""
        return self.parsed.action


@dataclass(slots=True, eq=False)
class Node:
    """A state of an episode, in its own session. The fields below `ended` are for the context that made it.

    The id of a node gives its depth and then where its path left the first one: `3@1-2.1` is the third turn of the
    first fork that was made after two turns of the second opened episode. A fork is the same node of the tree in
    another session, and has the same id.
    """

    id: str
    parent_id: str | None
    depth: int
    """The number of turns that lead here."""
    observation: str
    score: float
    """The environment's score, in [0, 1]."""
    ended: FinishReason | None
    """Why the episode is over here; None if it can go on."""

    task: TaskRef
    session_id: str
    index: int
    """Steps that the session has taken."""
    branch: str
    prompt: Prompted
    """The tokens that the next prompt adds; empty if the environment ended the episode."""
    num_tokens: int
    """Number of tokens in the prompts and replies of the sequence that leads here."""
    parts: tuple[Part, ...] = ()
    """The whole observation, if it is more than text."""
    shown: tuple[ShownImage, ...] = ()
    """The images of the observation that the policy sees."""
    seat: str | None = None
    """In a game, the player whose node this is."""
    table: Table | None = None
    """The game; None if the environment is not a game."""
    beside: str = ""
    """The text below the observation, which is part of it: admissible actions, a hint."""
    state_key: str | None = None
    """The environment's key of the state; None if the group did not ask for keys, or there is none."""
    sealed: str | None = None
    """Data that the environment sealed for the reward service alone when the episode began."""
    replacement: Prompted | None = None
    """The whole next prompt, if it replaces the context."""
    turn: Turn | None = None
    """The turn that led here."""
    parent: "Node | None" = None
    context: list[int] | None = None
    """The tokens of the sequence that leads here; None if they were not needed yet, or the next node has them."""
    num_replies: int = 0
    num_forks: int = 0
    moved_on: bool = False
    exported: bool = False
    greedy: bool = False
    """Whether a greedy reply led here."""

    @property
    def over(self) -> bool:
        """Return whether the episode is over."""
        return self.ended is not None

    @property
    def seats(self) -> tuple[str, ...]:
        """Return the players of the game; none if the environment is not a game."""
        return () if self.table is None else self.table.seats

    def path(self) -> "list[Node]":
        """Return the nodes that lead here, from the first one to this one."""
        nodes = [self]
        while (before := nodes[-1].parent) is not None:
            nodes.append(before)
        return nodes[::-1]

    def turns(self) -> list[Turn]:
        """Return the turns that lead here, the first one first."""
        turns: list[Turn] = []
        node: Node | None = self
        while node is not None and node.turn is not None:
            turns.append(node.turn)
            node = node.parent
        return turns[::-1]
