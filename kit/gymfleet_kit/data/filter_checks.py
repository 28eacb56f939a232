"""The promises of every filter, tested on a user's or an included one: behind `gymfleet check FILE`."""

from collections.abc import Callable, Iterator
from typing import Final

from gymfleet_kit.data import samples
from gymfleet_kit.data.filtering import filter_of
from gymfleet_kit.plugins import PluginError


def examine(reference: str) -> list[str]:
    """Return one line for each promise that a filter breaks with its default options; none if it is sound."""
    try:
        found = filter_of(reference, table="filter")
        if not type(found.plugin).__doc__:
            return ["it has no docstring: `gymfleet plugins list` shows its first line"]
        return [fault for check in _CHECKS for fault in check(reference)]
    except PluginError as error:
        return [str(error)]


def _takes_every_record(reference: str) -> Iterator[str]:
    given = samples.records()
    for one in given:
        filter_of(reference, table="filter").kept([one])
    filter_of(reference, table="filter").kept([])
    before = [record.model_dump_json() for record in samples.records()]
    filter_of(reference, table="filter").kept(given)
    if [record.model_dump_json() for record in given] != before:
        yield "it changes the records that it is given"


def _answers_the_same_again(reference: str) -> Iterator[str]:
    """Yield broken promises. A resumed run filters again, with a new object, and must keep the same records.

    This check comes first: state kept in the class shows only as long as it has seen no records.
    """
    given = samples.records()
    one, other = ([id(record) for record in filter_of(reference, table="filter").kept(given)] for _ in range(2))
    if one != other:
        yield (
            "it keeps other records the second time: draw from a seed of its options, and keep what it remembers in "
            "the object, which filters one list"
        )


_CHECKS: Final[tuple[Callable[[str], Iterator[str]], ...]] = (_answers_the_same_again, _takes_every_record)
