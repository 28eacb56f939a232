"""The layout of searches on the page: the nodes of a tree to draw, and their positions.

A node is a row below its parent, indented by its depth; the chosen path comes before all others. The texts of actions
come from models, so the template escapes them.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal

from gymfleet_contracts.search import SearchNode, SearchTree
from gymfleet_contracts.trajectory import AGENT

from gymfleet_cli.run_directory import RunFiles

MAX_DRAWN: Final = 200
"""The most nodes of a tree to draw, in addition to those that lead to the first chosen end."""
_MAX_SEARCHES: Final = 3
_TREES_READ: Final = 20
_ROW: Final = 22
_INDENT: Final = 18
_MAX_LABEL: Final = 70
_CHAR: Final = 8
"""The most pixels of a character, for the width of the drawing."""

Way = Literal["chosen", "handed-in", "rejected", "pruned", "inner"]
"""The outcome of a node: it leads to an end chosen for its result; it leads to an end that became a sample otherwise;
it is another end; it was left although its episode could have gone on; or other nodes follow it."""

_ORDER: Final[Mapping[Way | None, int]] = {"chosen": 0, "handed-in": 1, None: 2}
"""The order of nodes: those that lead to samples, then the others."""


@dataclass(frozen=True, slots=True)
class Row:
    """A node on the page, in pixels."""

    node: SearchNode
    way: Way
    at: tuple[int, int]
    below: tuple[int, int] | None
    """The position of its parent; None for the root of an episode."""
    label: str
    facts: str
    worth: float | None
    """The node's value scaled to [0, 1] between the tree's lowest and highest; None without a value."""
    num_hidden: int
    """Direct children that are not drawn."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A search on the page."""

    stage: str
    tree: SearchTree
    rows: tuple[Row, ...]
    width: int
    height: int
    num_left_out: int
    """Nodes that are not drawn, including those without a record."""


def drawings(files: RunFiles) -> tuple[Drawing, ...]:
    """Return one search each of the first stage with searches and of the last two: the largest of a stage's first.

    Raises `RunDataError` for a damaged record.
    """
    order = {one.name: place for place, one in enumerate(files.left())}
    stages = sorted(files.searched(), key=lambda name: order.get(name, len(order)))
    shown = stages if len(stages) <= _MAX_SEARCHES else [stages[0], *stages[1 - _MAX_SEARCHES :]]
    found = []
    for stage in shown:
        first = list(islice(files.trees(stage), _TREES_READ))
        if first:
            found.append(drawn(stage, max(first, key=lambda tree: len(tree.nodes))))
    return tuple(found)


def drawn(stage: str, tree: SearchTree) -> Drawing:
    """Lay out a search."""
    by_id = {node.id: node for node in tree.nodes}
    on_the_way = _on_the_way(tree, by_id)
    children: defaultdict[str | None, list[SearchNode]] = defaultdict(list)
    for node in sorted(tree.nodes, key=lambda node: _ORDER[on_the_way.get(node.id)]):
        children[node.parent].append(node)
    kept = _kept(tree, by_id, on_the_way)
    values = [node.value for node in tree.nodes if node.value is not None]
    places: dict[str, tuple[int, int]] = {}
    rows: list[Row] = []
    waiting = children[None][::-1]
    while waiting:  # no recursion: a tree may be a thousand nodes deep
        node = waiting.pop()
        if node.id not in kept:
            continue
        places[node.id] = at = (node.depth * _INDENT + _INDENT // 2, len(rows) * _ROW + _ROW // 2)
        rows.append(
            Row(
                node, _way(node, on_the_way, followed=bool(children[node.id])), at,
                None if node.parent is None else places[node.parent], _label(node), _facts(node),
                _worth(node.value, values), sum(child.id not in kept for child in children[node.id]),
            )
        )  # fmt: skip
        waiting += children[node.id][::-1]
    width = max((row.at[0] + _CHAR * (len(row.label) + len(row.facts) + 20) for row in rows), default=0)
    left_out = len(tree.nodes) - len(rows) + tree.num_left_out
    return Drawing(stage, tree, tuple(rows), width, len(rows) * _ROW, left_out)


def _on_the_way(tree: SearchTree, by_id: dict[str, SearchNode]) -> dict[str, Way]:
    """Return the nodes that lead to samples, chosen ones first."""
    found: dict[str, Way] = {}
    ways: tuple[tuple[Way, bool], ...] = (("chosen", True), ("handed-in", False))
    for way, selected in ways:
        for node in tree.nodes:
            if node.samples and node.selected is selected:
                for one in _up(node, by_id):
                    found.setdefault(one.id, way)
    return found


def _up(node: SearchNode, by_id: dict[str, SearchNode]) -> Iterator[SearchNode]:
    """Yield a node and its ancestors."""
    one: SearchNode | None = node
    while one is not None:
        yield one
        one = None if one.parent is None else by_id[one.parent]


def _kept(tree: SearchTree, by_id: dict[str, SearchNode], on_the_way: dict[str, Way]) -> set[str]:
    """Return the nodes to draw: those that lead to the first chosen end, then to the other samples, then the most
    visited or highest valued.
    """
    ends = sorted((node for node in tree.nodes if node.samples), key=lambda node: not node.selected)
    kept = {one.id for end in ends[:1] for one in _up(end, by_id)}
    room = len(kept) + MAX_DRAWN

    def rank(node: SearchNode) -> tuple[int, int, float]:
        return _ORDER[on_the_way.get(node.id)], -(node.visits or 0), -(node.value if node.value is not None else -1e300)

    for node in sorted(tree.nodes, key=rank):
        lacking = [one.id for one in _up(node, by_id) if one.id not in kept]
        if len(kept) + len(lacking) <= room:
            kept.update(lacking)
    return kept


def _way(node: SearchNode, on_the_way: dict[str, Way], *, followed: bool) -> Way:
    if node.id in on_the_way:
        return on_the_way[node.id]
    if followed:
        return "inner"
    return "pruned" if node.ended is None else "rejected"


def _label(node: SearchNode) -> str:
    if node.parent is None:
        return "start"
    action = " ".join((node.action or "no action").split())
    cut = action if len(action) <= _MAX_LABEL else f"{action[:_MAX_LABEL]}…"
    return cut if node.role == AGENT else f"({node.role}) {cut}"


def _facts(node: SearchNode) -> str:
    said = [] if node.value is None else [f"value {node.value:.3g}"]
    said += [] if node.visits is None else [f"visits {node.visits}"]
    said += [] if node.ended is None else [f"{node.ended.value}, score {node.score:.3g}"]
    said += [f"sample {', '.join(map(str, node.samples[:3]))}"] if node.samples else []
    return " · ".join(said)


def _worth(value: float | None, values: Sequence[float]) -> float | None:
    if value is None:
        return None
    low, high = min(values), max(values)
    return 1.0 if high <= low else (value - low) / (high - low)
