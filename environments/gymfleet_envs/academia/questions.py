"""The kinds of generated questions: each makes the calls of its plan and reads the answer from their results."""

import random
from collections import Counter
from typing import Any, Final

from gymfleet_envs.academia.draw import draw_network
from gymfleet_envs.academia.network import AUTHORS, PAPERS, Network, Paper
from gymfleet_envs.agentgym_tools.base import Move

_NUMBER = "Please give me a numerical value as an answer."
_NAMES = "Please answer in the form of a list ['author1', 'author2', ...]."
_TITLES = "Please answer in the form of a list ['paper1', 'paper2', ...]."
_NETWORK = "in the DBLP citation network"
_FEWEST_PAPERS: Final = 3
"""Papers of an author whose papers are compared: with only two, a guess would be right too often."""
_MOST_LOOKS: Final = 8
"""Looks at papers and at collaborators; loading, listing and finishing are extra."""


class Draft:
    """A question in the making. `call` makes a call and adds it to the plan."""

    def __init__(self, rng: random.Random, network: Network) -> None:
        self.rng = rng
        self.network = network
        self.goal = ""
        self.answer: Any = None
        self.moves: list[Move] = []

    def load(self, graph: str) -> None:
        """Load a network."""
        self.moves.append(Move.of(f"I need {graph} for that.", f"load{graph}"))

    def call(self, thought: str, tool: str, **arguments: Any) -> Any:
        """Make a call and return its result."""
        self.moves.append(Move.of(thought, tool, **arguments))
        return self.network.use(tool, arguments)

    def look(self, title: str) -> Any:
        """Look at a paper."""
        return self.call(f"I look at {title}.", "paperNodeCheck", node=title)

    def neighbours(self, graph: str, node: str) -> list[str]:
        """List the neighbours of a node."""
        found: list[str] = self.call(f"I list the neighbours of {node}.", "neighbourCheck", graph=graph, node=node)
        return found

    def paper(self) -> Paper:
        """Draw a paper that cites others."""
        return self.rng.choice([paper for paper in self.network.papers if len(paper.cites) > 1])

    def pair(self, least: int) -> tuple[str, str]:
        """Draw two authors with at least `least` joint papers, or with at least one if no pair has so many."""
        pairs = [
            (author.name, other, len(titles))
            for author in self.network.authors
            for other, titles in self.network.together(author.name).items()
        ]
        one, other, _ = self.rng.choice([pair for pair in pairs if pair[2] >= least] or pairs)
        return one, other


def citations(draft: Draft) -> None:
    """Ask how often a paper is cited."""
    paper = draft.paper()
    draft.goal = f"How many citations does the paper '{paper.title}' have {_NETWORK}? {_NUMBER}"
    draft.load(PAPERS)
    draft.answer = draft.look(paper.title)["n_citation"]


def authors(draft: Draft) -> None:
    """Ask who wrote a paper."""
    paper = draft.paper()
    draft.goal = f"Who wrote the paper titled '{paper.title}'? {_NAMES}"
    draft.load(PAPERS)
    draft.answer = sorted(draft.look(paper.title)["authors"])


def collaborators(draft: Draft) -> None:
    """Ask with whom an author has written."""
    name, _ = draft.pair(1)
    draft.goal = f"With whom has {name} written papers {_NETWORK}? {_NAMES}"
    draft.load(AUTHORS)
    draft.answer = sorted(draft.neighbours(AUTHORS, name))


def joint_papers(draft: Draft) -> None:
    """Ask which papers two authors have written together."""
    one, other = draft.pair(1)
    draft.goal = f"Which papers have {one} and {other} written together {_NETWORK}? {_TITLES}"
    draft.load(AUTHORS)
    found = draft.call("I look at what connects the two.", "authorEdgeCheck", node1=one, node2=other)
    draft.answer = sorted(found["collaborative_papers"])


def joint_citations(draft: Draft) -> None:
    """Ask how often two authors' joint papers are cited."""
    one, other = draft.pair(2)
    draft.goal = f"How many citations do papers co-authored by {one} and {other} have {_NETWORK}? {_NUMBER}"
    draft.load(AUTHORS)
    found = draft.call("I look at what connects the two.", "authorEdgeCheck", node1=one, node2=other)
    draft.load(PAPERS)
    draft.answer = sum(draft.look(title)["n_citation"] for title in found["collaborative_papers"])


def cited_citations(draft: Draft) -> None:
    """Ask how often the references of a paper are themselves cited."""
    paper = draft.paper()
    draft.goal = f"How many citations do the papers that '{paper.title}' cites have in total {_NETWORK}? {_NUMBER}"
    draft.load(PAPERS)
    draft.answer = sum(draft.look(title)["n_citation"] for title in draft.neighbours(PAPERS, paper.title))


def common_collaborators(draft: Draft) -> None:
    """Ask who has written with both of two authors."""
    together = {author.name: set(draft.network.together(author.name)) for author in draft.network.authors}
    pairs = [(one, other) for one in together for other in together if one != other and together[one] & together[other]]
    one, other = draft.rng.choice(pairs)
    draft.goal = f"Who has written papers with both {one} and {other} {_NETWORK}? {_NAMES}"
    draft.load(AUTHORS)
    first, second = (set(draft.neighbours(AUTHORS, name)) for name in (one, other))
    draft.answer = sorted(first & second)


def _authors_of_several(network: Network) -> list[str]:
    """Return the authors with three papers or more, all of which an agent can look at within the turn limit."""
    papers = Counter(name for paper in network.papers for name in paper.authors)
    return [
        name
        for name, count in sorted(papers.items())
        if count >= _FEWEST_PAPERS and count + len(network.together(name)) <= _MOST_LOOKS
    ]


def _all_papers(draft: Draft) -> tuple[str, dict[str, int]]:
    """Draw an author of several papers; return the name, and the citations of the papers."""
    while not (names := _authors_of_several(draft.network)):
        draft.network = draw_network(draft.rng)
    name = draft.rng.choice(names)
    draft.load(AUTHORS)
    titles: dict[str, None] = {}
    for other in draft.neighbours(AUTHORS, name):
        found = draft.call(f"I look at what connects them with {other}.", "authorEdgeCheck", node1=name, node2=other)
        titles |= dict.fromkeys(found["collaborative_papers"])
    draft.load(PAPERS)
    return name, {title: draft.look(title)["n_citation"] for title in titles}


def most_cited(draft: Draft) -> None:
    """Ask which of an author's papers is cited most."""
    name, found = _all_papers(draft)
    draft.goal = f"Which paper by {name} has the most citations {_NETWORK}?"
    draft.answer = max(found, key=lambda title: found[title])


def all_citations(draft: Draft) -> None:
    """Ask how often an author's papers are cited in total."""
    name, found = _all_papers(draft)
    draft.goal = f"How many citations do all papers by {name} have in total {_NETWORK}? {_NUMBER}"
    draft.answer = sum(found.values())
