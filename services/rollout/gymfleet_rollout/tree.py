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
    """A reply to what stands at a node, either the policy's or the expert's; not acted upon yet."""

    node_id: str
    """The node that it replies to."""
    text: str
    parsed: ParsedReply
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    """As the engine gave them; None when an expert wrote it."""
    prompt: tuple[int, ...]
    """The tokens that were new in its prompt, those of a hint among them."""
    images: tuple[PromptImage, ...]
    """Where that shows images."""
    replaces: bool
    """Whether the prompt replaced the context that the node had."""
    versions: tuple[VersionSpan, ...]
    """Which version of the policy sampled which tokens; none where an expert wrote it."""
    end: ReplyEnd
    seconds: float
    role: str
    num_reasoning_tokens: int = 0
    """Of its tokens those of its thoughts, where the chat template has a place for them."""
    greedy: bool = False
    """Whether it is made of the likeliest tokens, and therefore no sample of the policy."""

    @property
    def action(self) -> str | None:
        """Return the action that it asks for, or None if it asks for none."""
        return self.parsed.action


@dataclass(slots=True, eq=False)
class Node:
    """A state of an episode, in a session of its own. The fields below `ended` are for the context that made it.

    The id of a node says its depth and, behind it, where its path left the first one: `3@1-2.1` is the third turn of
    the first fork that was made after two turns of the second episode that was opened. A fork is the same node of the
    tree in another session, and has its id.
    """

    id: str
    parent_id: str | None
    depth: int
    """The number of turns that lead here."""
    observation: str
    score: float
    """The environment's, in [0, 1]."""
    ended: FinishReason | None
    """Why the episode is over here; None where it can go on."""

    task: TaskRef
    session_id: str
    index: int
    """Steps that the session has taken."""
    branch: str
    prompt: Prompted
    """What the next prompt adds; empty where the environment ended the episode."""
    num_tokens: int
    """In the prompts and replies of the sequence that leads here."""
    parts: tuple[Part, ...] = ()
    """The observation in full, where it is more than text."""
    shown: tuple[ShownImage, ...] = ()
    """Those of its images that the policy sees."""
    seat: str | None = None
    """The player of a game whose node it is."""
    table: Table | None = None
    """The game; None where the environment is none."""
    beside: str = ""
    """What stands below the observation, and is part of it: admissible actions, a hint."""
    state_key: str | None = None
    """The environment's key of the state; None where the group did not ask for keys, or there is none."""
    sealed: str | None = None
    """What the environment told the reward service alone when the episode began."""
    replacement: Prompted | None = None
    """The whole next prompt, where it replaces the context."""
    turn: Turn | None = None
    """The turn that led here."""
    parent: "Node | None" = None
    context: list[int] | None = None
    """The tokens of the sequence that leads here; None where nobody has needed them yet, or the next node has them."""
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
        """Return the players of the game; none where the environment is no game."""
        return () if self.table is None else self.table.seats

    def path(self) -> "list[Node]":
        """Return the nodes that lead here, from the first one on, with this as the last."""
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
