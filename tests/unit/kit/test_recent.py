"""The dictionary that drops its oldest entry."""

from gymfleet_kit.recent import Recent


def test_a_full_one_drops_its_oldest_entry_and_no_other() -> None:
    recent: Recent[str, int] = Recent(2)

    recent["a"] = 1
    recent["b"] = 2
    recent["a"] = 3  # known already: nothing has to go
    recent["c"] = 4

    assert dict(recent) == {"b": 2, "c": 4}
