"""Which episodes of a group are compared with which."""

from itertools import combinations

import pytest
from gymfleet_reward.judging.pairs import pairs_of


@pytest.mark.parametrize("count", range(2, 10))
def test_everybody_has_as_many_opponents(count: int) -> None:
    assert pairs_of(count, None) == pairs_of(count, count + 3) == list(combinations(range(count), 2))
    for opponents in range(1, count):
        pairs = pairs_of(count, opponents)
        met = [sum(place in pair for pair in pairs) for place in range(count)]
        more = opponents % 2 and count % 2 and opponents < count - 1
        assert met == [opponents + (1 if more else 0)] * count
        assert len(set(pairs)) == len(pairs)
        assert all(one < other for one, other in pairs)
