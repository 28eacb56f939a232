"""AgentBench's two measures of an answer: whether it is the gold set, and F1."""


def f1(predicted: frozenset[str], gold: frozenset[str]) -> float:
    """Return the harmonic mean of precision and recall; 0 if nothing is right, as in an empty answer."""
    right = len(predicted & gold)
    return 2 * right / (len(predicted) + len(gold)) if right else 0.0
