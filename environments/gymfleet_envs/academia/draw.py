"""Draw a network of invented papers."""

import random
from collections import Counter
from typing import Final

from gymfleet_envs.academia.network import Author, Network, Paper

_FIRST: Final = (
    "Amal", "Bence", "Chiara", "Dmitri", "Elif", "Fumiko", "Gustav", "Hana", "Igor", "Jun", "Katrin", "Lior", "Mateo",
    "Nadia", "Oskar", "Priya", "Rafael", "Sofie", "Tomas", "Ximena",
)  # fmt: skip
_LAST: Final = (
    "Adler", "Bianchi", "Cardoso", "Dvorak", "Eriksen", "Ferrari", "Gupta", "Horvat", "Ito", "Jovanovic", "Kaplan",
    "Larsen", "Mendes", "Nowak", "Olsen", "Pereira", "Rossi", "Schmitt", "Toth", "Vogel",
)  # fmt: skip
_ORGS: Final = (
    "Aalto University", "Bilkent University", "Chiba University", "Delft Institute of Technology", "ETH Labs",
    "Fraunhofer West", "Ghent University", "Hebrew College", "IMDEA Networks", "Jena University", "KTH South",
    "Lisbon Polytechnic",
)  # fmt: skip
_WAY: Final = (
    "Adaptive", "Bayesian", "Contrastive", "Decentralized", "Efficient", "Federated", "Hierarchical", "Incremental",
    "Lightweight", "Multimodal", "Neural", "Probabilistic", "Robust", "Scalable", "Self-Supervised", "Sparse",
)  # fmt: skip
_WHAT: Final = (
    "Anomaly Detection", "Code Search", "Consensus", "Entity Linking", "Graph Clustering", "Image Retrieval",
    "Indexing", "Intrusion Detection", "Load Balancing", "Motion Planning", "Question Answering", "Query Optimization",
    "Recommendation", "Scheduling", "Speech Enhancement", "Storage",
)  # fmt: skip
_WHERE: Final = (
    "Edge Devices", "Electronic Health Records", "Large Graphs", "Low-Resource Languages", "Mobile Networks",
    "Noisy Labels", "Satellite Images", "Smart Cities", "Social Media", "Time Series", "Urban Traffic",
    "Wireless Sensors",
)  # fmt: skip
_VENUES: Final = (
    "AAAI", "CIKM", "ECAI", "ICDE", "ICML", "IJCAI", "INFOCOM", "KDD", "NeurIPS", "SIGIR", "VLDB", "WWW",
)  # fmt: skip
_KEYWORDS: Final = (
    "anomaly", "attention", "caching", "clustering", "compression", "consensus", "distillation", "embedding",
    "fairness", "graph", "hashing", "indexing", "latency", "privacy", "pruning", "ranking", "retrieval", "robustness",
    "sampling", "scheduling", "similarity", "streaming", "transfer", "uncertainty",
)  # fmt: skip
_AUTHORS: Final = 12
_PAPERS: Final = 14
_MOST_PAPERS: Final = 4
"""Papers per author, few enough for an agent to look at all of them within the turn limit."""


def draw_network(rng: random.Random) -> Network:
    """Return a network of papers by two or three authors each."""
    names = rng.sample([f"{first} {last}" for first in _FIRST for last in _LAST], _AUTHORS)
    authors = tuple(Author(name, rng.choice(_ORGS)) for name in names)
    titles: list[str] = []
    while len(titles) < _PAPERS:
        title = f"{rng.choice(_WAY)} {rng.choice(_WHAT)} for {rng.choice(_WHERE)}"
        if title not in titles:
            titles.append(title)
    written: Counter[str] = Counter()
    papers: list[Paper] = []
    for number, title in enumerate(titles):
        free = [name for name in names if written[name] < _MOST_PAPERS]
        chosen = tuple(rng.sample(free, min(rng.randint(2, 3), len(free))))
        written.update(chosen)
        papers.append(_paper(rng, title, chosen, titles[:number]))
    return Network(tuple(papers), authors)


def _paper(rng: random.Random, title: str, authors: tuple[str, ...], earlier: list[str]) -> Paper:
    return Paper(
        title=title,
        authors=authors,
        year=rng.randint(2005, 2023),
        venue=rng.choice(_VENUES),
        n_citation=rng.randint(3, 1500),
        keywords=tuple(rng.sample(_KEYWORDS, rng.randint(3, 5))),
        cites=tuple(rng.sample(earlier, min(len(earlier), rng.randint(2, 4)))),
    )
