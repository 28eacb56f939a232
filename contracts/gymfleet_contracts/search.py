"""The record of a search, for people to look at: the tree that a strategy made in playing a group."""

from typing import Annotated, Final, Self

from pydantic import Field, StrictBool, model_validator

from gymfleet_contracts._model import WireModel
from gymfleet_contracts.numbers import NUMBER, Integer
from gymfleet_contracts.session import TaskRef
from gymfleet_contracts.trajectory import (
    AGENT,
    MAX_GROUP_SIZE,
    FinishReason,
    Finite,
    NodeId,
    RoleName,
    StrategyName,
)

MAX_NODES: Final = 1024
"""Maximum number of nodes in a record; those beyond it are only counted."""
MAX_COUNTS: Final = 32
"""Maximum number of things that a record counts."""
MAX_ACTION_CHARS: Final = 500
"""Maximum number of characters of an action that a record shows."""

Count = Annotated[int, Field(ge=0), NUMBER]


class SearchNode(WireModel):
    """A state that the search reached. Forks of a session are the same node."""

    id: NodeId
    parent: NodeId | None
    """None for the root of an episode."""
    depth: Count
    """Turns from the root."""
    role: RoleName = AGENT
    """The role in which the policy was asked for the reply that led here."""
    action: Annotated[str, Field(max_length=MAX_ACTION_CHARS)] | None
    """The action that led here, or its beginning."""
    score: Finite
    """The environment's score, in [0, 1]."""
    value: Finite | None = None
    """The node's value, from the reward service or noted by the strategy."""
    visits: Count | None = None
    """Number of visits to the node that the strategy noted."""
    ended: FinishReason | None
    """Why the episode ended here; None for a node that was left or played on."""
    samples: Annotated[tuple[Count, ...], Field(max_length=MAX_GROUP_SIZE)] = ()
    """The samples of the group that were exported here; none for a node that was not exported."""
    selected: StrictBool = False
    """It was exported because the search chose it for how well it ended."""


class Spent(WireModel):
    """The part of the group's budget that was used, by all attempts together."""

    env_steps: Count
    model_calls: Count
    tokens: Count
    """Tokens that were sampled, and those of prompts that the engine computed."""
    evaluations: Count = 0
    seconds: Finite


class SearchTree(WireModel):
    """The nodes of a group that its strategy played together, in the order in which they were reached."""

    run_id: str
    group_id: str
    replay: Count = 0
    """The `replay` of the request that it answers; see `Trajectory.replay`."""
    attempt: Integer = 1
    """The number of the attempt whose nodes these are."""
    task: TaskRef
    strategy: StrategyName
    nodes: Annotated[tuple[SearchNode, ...], Field(max_length=MAX_NODES)]
    num_left_out: Count = 0
    """Nodes beyond `MAX_NODES`, of which there is no record."""
    counts: Annotated[dict[Annotated[str, Field(max_length=64)], Count], Field(max_length=MAX_COUNTS)] = Field(
        default={}
    )
    """The strategy's own counts, such as of answers that could not be read."""
    num_forks: Count = 0
    """Forks of sessions that were made: what is known about one branch is known to the others."""
    num_replayed: Count = 0
    """Steps that were repeated to return to a state, where forks are replays or sessions were closed to make room. No
    budget counts them."""
    valued_by: Annotated[tuple[str, ...], Field(max_length=64)] = ()
    """The reward components by which nodes were valued; empty if no node was. With `goal` or another component that
    reads the environment's score, the search chose with the answer at hand."""
    spent: Spent

    @model_validator(mode="after")
    def nodes_are_a_tree(self) -> Self:
        """Require that each node is there once, below a parent that comes before it."""
        known: set[str] = set()
        for place, node in enumerate(self.nodes):
            if node.id in known:
                raise ValueError(f"nodes.{place}: node {node.id} is there twice")
            if node.parent is not None and node.parent not in known:
                raise ValueError(f"nodes.{place}: the parent of node {node.id}, {node.parent}, does not come before it")
            known.add(node.id)
        return self
