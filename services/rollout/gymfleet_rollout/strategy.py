"""The interface of a strategy: how the episodes of a group are played.

A strategy sees nodes and replies, not services: `PlayContext` opens, forks, asks for replies and acts. Attempts,
deadlines, typed failures, budgets and the closing of sessions are the same for all.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from gymfleet_contracts.recipe_sections import StrategyFacts
from gymfleet_contracts.rollout import GroupRequest, StrategySpec
from gymfleet_contracts.trajectory import AGENT
from gymfleet_kit.plugins import PluginKind, checked_options
from pydantic import BaseModel, ConfigDict

from gymfleet_rollout.budget import BudgetSpent
from gymfleet_rollout.tree import Node, Reply

__all__ = [
    "STRATEGIES",
    "BudgetSpent",
    "Node",
    "PlayContext",
    "Reply",
    "Strategy",
    "StrategyFacts",
    "StrategyOptions",
    "strategy_of",
]


class PlayContext(Protocol):
    """What a strategy plays with.

    Every call may raise the client's errors, `InferenceError`, `TimeoutError`, or `BudgetSpent`; only the last one is
    for a strategy to catch. `StrategyError` says that a call makes no sense.
    """

    @property
    def group(self) -> GroupRequest:
        """Return what was asked for: the task, how many samples, limits and budget."""

    async def open(self) -> Node:
        """Open a session of the group's task and return its root."""

    async def sit(self, table: Node, seat: str) -> Node:
        """Return the root of the episode of one player of a game, once that player is to move.

        `table` is the root that `open` returned, of which `seats` names the players. Sit down at each seat once, and
        play them at the same time: each has a context of its own, in which `act` returns when the player is to move
        again or the game is over.
        """

    async def fork(self, node: Node, count: int = 1) -> list[Node]:
        """Return copies of a node, each in a session of its own; the node itself can still be played on."""

    async def propose(
        self, node: Node, count: int = 1, hint: str = "", role: str = AGENT, *, greedy: bool = False
    ) -> list[Reply]:
        """Return replies of the policy to a node, drawn apart; or made of the likeliest tokens, if they are `greedy`.

        What comes of a greedy reply is no sample of the policy: it can be valued, and not handed in.
        A hint is put below the observation, and stays in the prompts of what follows: it is part of what the
        policy replied to. The role stands in the record, and is `agent` or one of `facts.roles`.
        """

    async def ask(self, node: Node, question: str, count: int = 1, *, role: str) -> list[str]:
        """Return answers of the policy to a question below the observation of a node, drawn apart.

        For what the policy thinks of its work, which is not carried out. A question that is asked again at the same
        place, of the same weights, has the answers that it had, which cost nothing and are counted in the record of the
        search. Where more are wanted than there are, the others are sampled: `count` answers are so many samples. The
        role is one of `facts.roles`.
        """

    def restart(self, node: Node, text: str) -> None:
        """Replace the context of a node: the next prompt is the instructions and this text, and nothing before them.

        For templates that drop earlier thinking, summaries and memories. A node that is over because its context was
        full goes on. What was sampled stays as it was: the episode is then several token sequences, each of which has
        room for `limits.max_context_tokens`.
        """

    async def demonstrate(self, node: Node) -> Reply | None:
        """Return the expert's reply to a node, for strategies with `facts.expert`.

        None where the episode is over, and where the expert has no move or none that fits, which ends it.
        """

    def write(self, node: Node, thought: str, action: str) -> Reply | None:
        """Return a reply of the strategy's own to a node, in the group's format, for strategies with `facts.expert`.

        None where the episode is over, and where the reply does not fit, which ends it.
        """

    async def admissible(self, node: Node) -> list[str] | None:
        """Return the actions that are possible at a node, but for those with free text.

        None where the environment does not know all of them. `StrategyError` for one that never lists any.
        """

    async def act(self, node: Node, reply: Reply) -> Node:
        """Carry out a reply and return the node that it leads to. To try several, fork the node first."""

    def answer(self, node: Node, reply: Reply, text: str) -> Node:
        """Reply to the policy with a text, instead of carrying out its reply, and return the node that this leads to.

        For plans, summaries and critiques: a turn without an action, which the environment does not see.
        """

    async def evaluate(self, nodes: Sequence[Node]) -> list[float]:
        """Return the value of each node, by the reward service as the recipe's `[rollout.evaluator]` says.

        What is scored is the episode up to the node, as if the strategy had stopped there; for strategies with
        `facts.evaluates`. A component that fails is a failure of the machinery, and never a value. The record of the
        search has the values.
        """

    def note(self, node: Node, *, value: float | None = None, visits: int | None = None) -> None:
        """Put what the strategy thinks of a node into the record of the search, instead of what it noted before."""

    def count(self, what: str, number: int = 1) -> None:
        """Count something in the record of the search, such as answers that could not be read."""

    def value(self, node: Node, mean: float, samples: int) -> None:
        """Say what a state is worth: the mean total reward of so many episodes that were played on from it.

        For strategies with `facts.values`. Turns that are played in the state carry it, and so does the record of the
        search.
        """

    async def release(self, node: Node) -> None:
        """Close the session of a node that is not played on, so that others may have its place.

        The episode that ends there can still be valued and handed in.
        """

    def export(self, leaf: Node, *, selected: bool = False) -> None:
        """Hand in the episode that ends at a leaf, as the next sample of the group.

        One that is `selected` was chosen for how well it ended, and is therefore no sample of the policy. One that the
        budget ended before its first turn is left out.
        """


class StrategyOptions(BaseModel):
    """The options of a strategy: the keys beside `use` in `[rollout.strategy]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)


OptionsT = TypeVar("OptionsT", bound=StrategyOptions)


class Strategy(ABC, Generic[OptionsT]):
    """How the episodes of a group are played. An instance plays one group."""

    Options: ClassVar[type[Any]] = StrategyOptions
    facts: ClassVar[StrategyFacts] = StrategyFacts()
    """What others must know of it."""

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    @abstractmethod
    async def play(self, ctx: PlayContext) -> None:
        """Play the group, and hand in its episodes with `ctx.export`, at least one.

        With `facts.by_sample` it is called for each sample by itself, and hands in one episode. What it raises ends
        the attempt: the client's errors, `InferenceError` and a deadline as the failure that they are, after which all
        is played anew; `BudgetSpent` as the end of the open episodes; anything else as a mistake of the strategy.
        """


STRATEGIES: Final = PluginKind[Strategy[Any]]("strategy", (Strategy,), "gymfleet_rollout.strategies")


def strategy_of(kind: type[Strategy[Any]], spec: StrategySpec) -> Strategy[Any]:
    """Return a strategy with its options. Raises `PluginError` for options that it does not take."""
    return kind(checked_options(kind.Options, spec.options, table="rollout.strategy", owner=spec.use))
