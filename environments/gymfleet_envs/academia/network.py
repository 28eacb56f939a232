"""A citation network (papers that cite each other, authors who write together), and AgentGym's tools on it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from gymfleet_envs.agentgym_tools.base import Refused, taken

PAPERS: Final = "PaperNet"
AUTHORS: Final = "AuthorNet"


@dataclass(frozen=True, slots=True)
class Author:
    """A node of AuthorNet."""

    name: str
    org: str


@dataclass(frozen=True, slots=True)
class Paper:
    """A node of PaperNet."""

    title: str
    authors: tuple[str, ...]
    year: int
    venue: str
    n_citation: int
    keywords: tuple[str, ...]
    cites: tuple[str, ...]
    doc_type: str = "Conference"


class Service(Protocol):
    """A network, generated or recorded."""

    def use(self, tool: str, arguments: Any) -> Any:
        """Return the result of a tool whose network is loaded. Raises `Refused` and `Faulty`."""


@dataclass(frozen=True, slots=True)
class Network:
    """A generated network."""

    papers: tuple[Paper, ...]
    authors: tuple[Author, ...]

    def use(self, tool: str, arguments: Any) -> Any:
        """See `Service`."""
        return _TOOLS[tool](self, arguments)

    def paper(self, title: Any) -> Paper:
        """Return a paper. Raises `Refused`."""
        found = next((paper for paper in self.papers if paper.title == title), None)
        if found is None:
            raise Refused(f"There is no node named {title} in the {PAPERS}.")
        return found

    def author(self, name: Any) -> Author:
        """Return an author. Raises `Refused`."""
        found = next((author for author in self.authors if author.name == name), None)
        if found is None:
            raise Refused(f"There is no node named {name} in the {AUTHORS}.")
        return found

    def together(self, name: str) -> dict[str, list[str]]:
        """Return the papers that an author wrote with each other author."""
        found: dict[str, list[str]] = {}
        for paper in self.papers:
            for other in paper.authors if name in paper.authors else ():
                if other != name:
                    found.setdefault(other, []).append(paper.title)
        return found


def _neighbours(network: Network, arguments: Any) -> list[str]:
    graph, node = taken(arguments, "graph"), taken(arguments, "node")
    if graph == PAPERS:
        return list(network.paper(node).cites)
    if graph == AUTHORS:
        return list(network.together(network.author(node).name))
    raise Refused(f"AttributeError('{type(graph).__name__}' object has no attribute 'neighbors')")


def _paper_node(network: Network, arguments: Any) -> dict[str, Any]:
    paper = network.paper(taken(arguments, "node"))
    return {
        "authors": list(paper.authors),
        "year": paper.year,
        "venue": paper.venue,
        "n_citation": paper.n_citation,
        "keywords": list(paper.keywords),
        "doc_type": paper.doc_type,
    }


def _author_node(network: Network, arguments: Any) -> dict[str, Any]:
    author = network.author(taken(arguments, "node"))
    return {"name": author.name, "org": author.org}


def _author_edge(network: Network, arguments: Any) -> dict[str, Any]:
    one, other = (network.author(taken(arguments, name)).name for name in ("node1", "node2"))
    if other not in (together := network.together(one)):
        raise Refused(f"There is no edge between {one} and {other}.")
    return {"collaborative_papers": together[other]}


def _paper_edge(network: Network, arguments: Any) -> dict[str, Any]:
    one, other = (network.paper(taken(arguments, name)) for name in ("node1", "node2"))
    if other.title not in one.cites:
        raise Refused(f"There is no edge between {one.title} and {other.title}.")
    return {}


_TOOLS: Final[dict[str, Callable[[Network, Any], Any]]] = {
    "neighbourCheck": _neighbours,
    "paperNodeCheck": _paper_node,
    "authorNodeCheck": _author_node,
    "authorEdgeCheck": _author_edge,
    "paperEdgeCheck": _paper_edge,
}
