"""Compare a sheet with the gold table."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

Rule: TypeAlias = Literal["agentgym", "exact"]
Texts: TypeAlias = Sequence[Sequence[str]]


def match(shown: Texts, gold: Texts) -> float:
    """Return AgentGym's score: the share of equal cells among those that both tables have.

    Cells that only one of them has do not count, so that a table with its rows deleted scores well.
    """
    rows = min(len(shown), len(gold))
    columns = min(len(shown[0]) if shown else 0, len(gold[0]) if gold else 0)
    if not rows * columns:
        return 0.0
    equal = sum(shown[row][column] == gold[row][column] for row in range(rows) for column in range(columns))
    return equal / (rows * columns)


def exact(shown: Texts, gold: Texts) -> float:
    """Return 1 if both have the same cells, and 0 otherwise."""
    return float([list(row) for row in shown] == [list(row) for row in gold])
