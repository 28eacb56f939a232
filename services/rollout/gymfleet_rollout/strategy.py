"""The interface of a strategy: how the episodes of a group are played.

A strategy sees nodes and replies, not services: `PlayContext` opens and forks sessions, asks for replies and acts.
Attempts, deadlines, typed failures, budgets and the closing of sessions are the same for all strategies.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from gymfleet_contracts.recipe_sections import StrategyFacts
from gymfleet_contracts.rollout import GroupRequest, StrategySpec
from gymfleet_contracts.trajectory import AGENT
from gymfleet_kit.plugins import PluginKind, checked_options
from pydantic import BaseModel, ConfigDict

from gymfleet_rollout.budget import BudgetSpent, NoRoom
from gymfleet_rollout.tree import Node, Reply

__all__ = [
    "STRATEGIES",
    "BudgetSpent",
    "NoRoom",
    "Node",
    "PlayContext",
    "Reply",
    "Strategy",
    "StrategyFacts",
    "StrategyOptions",
    "strategy_of",
]


class PlayContext(Protocol):
    """The interface through which a strategy plays.

    Every call may raise the client's errors, `InferenceError`, `TimeoutError`, or `BudgetSpent`; a strategy should
    catch only the last one, of which `NoRoom` concerns a single node. `StrategyError` means that a call makes no sense.
    """

    @property
    def group(self) -> GroupRequest:
        """Return the request: the task, the number of samples, limits and budget."""

    async def open(self) -> Node:
        """Open a session of the group's task and return its root."""

    async def sit(self, table: Node, seat: str) -> Node:
        """Return the root of one player's episode of a game, once it is that player's turn.

        `table` is the root that `open` returned; its `seats` names the players. Sit down at each seat once, and play
        all seats at the same time: each has its own context, in which `act` returns when it is the player's turn again
        or the game is over.
        """

    async def fork(self, node: Node, count: int = 1) -> list[Node]:
        """Return copies of a node, each in its own session; the node itself can still be played on."""

    async def propose(
        self, node: Node, count: int = 1, hint: str = "", role: str = AGENT, *, greedy: bool = False
    ) -> list[Reply]:
        """Return replies of the policy to a node, sampled independently, or made of the likeliest tokens if `greedy`.

        An episode with a greedy reply is not a sample of the policy: it can be valued, but not exported.
        A hint is put below the observation, and stays in later prompts: it is part of what the policy replied to.
        Raises `NoRoom` if the context is too short for it. The role is part of the record, and is `agent` or one of
        `facts.roles`.
        """

    async def ask(self, node: Node, question: str, count: int = 1, *, role: str) -> list[str]:
        """Return independently sampled answers of the policy to a question below the observation of a node.

        For the policy's opinion of its work; answers are not carried out. A question that is asked again at the same
        place, of the same weights, has the same answers, which cost nothing and are counted in the record of the
        search. If more are wanted than are known, the missing ones are sampled: `count` answers are `count` samples.
        The role is one of `facts.roles`. Raises `NoRoom` if the context is too short for the question.
        """

    def restart(self, node: Node, text: str) -> None:
        """Replace the context of a node: the next prompt is the instructions and this text, and nothing before them.

        For templates that drop earlier thinking, for summaries and for memories. A node that is over because its
        context was full can go on. Sampled tokens stay as they were: the episode then consists of several token
        sequences, each of which has room for `limits.max_context_tokens`.
        """

    async def demonstrate(self, node: Node) -> Reply | None:
        """Return the expert's reply to a node, for strategies with `facts.expert`.

        None if the episode is over, or if the expert has no move or none that fits, which ends the episode.
        """

    def write(self, node: Node, thought: str, action: str) -> Reply | None:
        """Return a reply that the strategy itself writes, in the group's format, for strategies with `facts.expert`.

        None if the episode is over, or if the reply does not fit, which ends the episode.
        """

    async def admissible(self, node: Node) -> list[str] | None:
        """Return the actions that are possible at a node, except those with free text.

        None if the environment does not know all of them. Raises `StrategyError` if it never lists any.
        """

    async def act(self, node: Node, reply: Reply) -> Node:
        """Carry out a reply and return the node that it leads to. To try several, fork the node first."""

    def answer(self, node: Node, reply: Reply, text: str) -> Node:
        """Reply to the policy with a text, instead of carrying out its reply, and return the node that this leads to.

        For plans, summaries and critiques: a turn without an action, which the environment does not see.
        """

    async def evaluate(self, nodes: Sequence[Node]) -> list[float]:
        """Return the value that the reward service gives each node, by the recipe's `[rollout.evaluator]`.

        The reward service scores the episode up to the node, as if the strategy had stopped there; for strategies with
        `facts.evaluates`. A component that fails is a failure of the machinery, and never a value. The record of the
        search contains the values.
        """

    def note(self, node: Node, *, value: float | None = None, visits: int | None = None) -> None:
        """Put the strategy's value and visits of a node into the record of the search, replacing its earlier note."""

    def count(self, what: str, number: int = 1) -> None:
        """Count something in the record of the search, such as answers that could not be read."""

    def value(self, node: Node, mean: float, samples: int) -> None:
        """Set the value of a state: the mean total reward of `samples` episodes that were played on from it.

        For strategies with `facts.values`. Turns that are played in the state carry the value, and so does the record
        of the search.
        """

    async def release(self, node: Node) -> None:
        """Close the session of a node that is not played on, to make room for others.

        The episode that ends there can still be valued and exported.
        """

    def export(self, leaf: Node, *, selected: bool = False) -> None:
        """Export the episode that ends at a leaf as the next sample of the group.

        A `selected` episode was chosen for how well it ended, and is therefore not a sample of the policy. An episode
        that the budget ended before its first turn is left out.
        """


class StrategyOptions(BaseModel):
    """The options of a strategy: the keys of `[rollout.strategy]` other than `use`."""

    model_config = ConfigDict(extra="forbid", frozen=True)


OptionsT = TypeVar("OptionsT", bound=StrategyOptions)


class Strategy(ABC, Generic[OptionsT]):
    """A way to play the episodes of a group. An instance plays one group."""

    Options: ClassVar[type[Any]] = StrategyOptions
    facts: ClassVar[StrategyFacts] = StrategyFacts()
    """What other parts of gymfleet must know about the strategy."""

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    @abstractmethod
    async def play(self, ctx: PlayContext) -> None:
        """Play the group, and export its episodes with `ctx.export`, at least one.

        With `facts.by_sample` this is called for each sample separately, and exports one episode. An exception ends the
        attempt: the client's errors, `InferenceError` and a passed deadline count as failures, after which everything
        is played again; `BudgetSpent` ends the open episodes; anything else is a mistake of the strategy.
        """


STRATEGIES: Final = PluginKind[Strategy[Any]]("strategy", (Strategy,), "gymfleet_rollout.strategies")


def strategy_of(kind: type[Strategy[Any]], spec: StrategySpec) -> Strategy[Any]:
    """Return a strategy with its options. Raises `PluginError` for options that it does not take."""
    return kind(checked_options(kind.Options, spec.options, table="rollout.strategy", owner=spec.use))
