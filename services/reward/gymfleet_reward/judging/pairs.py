"""The pairs of a group's episodes that are compared."""

from itertools import combinations


def pairs_of(count: int, opponents: int | None) -> list[tuple[int, int]]:
    """Return the pairs of places, each once, in which every place has `opponents` opponents.

    The places form a circle, and each meets its nearest neighbours on both sides. With an odd number of opponents it
    also meets the place opposite, or, if there is none because `count` is odd, the next neighbours.

    Args:
        count: number of places, at least two.
        opponents: number of opponents of each place; None for all others.
    """
    if opponents is None or opponents >= count - 1:
        return list(combinations(range(count), 2))
    half, odd = divmod(opponents, 2)
    steps = list(range(1, half + 1))
    if odd:
        steps.append(half + 1 if count % 2 else count // 2)
    found = {(place, (place + step) % count) for step in steps for place in range(count)}
    return sorted({(min(pair), max(pair)) for pair in found})
