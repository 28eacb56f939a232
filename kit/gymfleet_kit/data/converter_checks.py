"""The promises of every converter, tested on a user's or an included one: behind `gymfleet check FILE`."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from gymfleet_contracts.data_records import DATA_RECORDS
from pydantic import JsonValue

from gymfleet_kit.data import samples
from gymfleet_kit.data.converter import UnusableRecord
from gymfleet_kit.data.converting import CheckedConverter, ConverterFailed, converter_of
from gymfleet_kit.data.losses import NEVER_LOST, differences
from gymfleet_kit.plugins import PluginError

_STRANGE: Final[tuple[JsonValue, ...]] = (None, True, 7, 0.5, "", "text", [], [None], ["text"], {}, {"text": []})


def examine(reference: str) -> list[str]:
    """Return one line for each promise that a converter breaks with its default options; none if it is sound."""
    try:
        converter = converter_of(reference, table="converter")
    except PluginError as error:
        return [str(error)]
    if unsaid := list(_says_what_it_is(converter)):
        return unsaid
    checks: tuple[Callable[[CheckedConverter], Iterator[str]], ...] = (
        _converts_its_examples, _is_pure, _answers_for_what_is_damaged, _names_what_is_lost,
    )  # fmt: skip
    for check in checks:
        try:
            if told := list(check(converter)):
                return told
        except (ConverterFailed, UnusableRecord) as error:
            return [str(error)]
    return []


def _says_what_it_is(converter: CheckedConverter) -> Iterator[str]:
    if not type(converter.plugin).__doc__:
        yield "it has no docstring: `gymfleet plugins list` shows its first line"
    examples = converter.plugin.examples
    if not isinstance(examples, tuple) or not examples or not all(isinstance(one, Mapping) for one in examples):
        yield "examples: give a tuple of records as they stand in such files, one of each kind that it takes"


def _converts_its_examples(converter: CheckedConverter) -> Iterator[str]:
    for number, record in enumerate(_records(converter)):
        try:
            found = converter.convert(record)
        except UnusableRecord as error:
            yield f"examples[{number}]: it does not take its own example: {error}"
            continue
        if not found:
            yield f"examples[{number}]: it makes no conversation of its own example"
        for one in found:
            if DATA_RECORDS.validate_json(one.model_dump_json()) != one:
                yield f"examples[{number}]: its conversation changes when it is written to a file and read again"


def _is_pure(converter: CheckedConverter) -> Iterator[str]:
    """Yield broken promises of purity. A resumed run converts again, and must get the same."""
    records = _records(converter)
    before = copy.deepcopy(records)
    first = [converter.convert(record) for record in records]
    if records != before:
        yield "it changes the record that it is given"
    again = [converter.convert(record) for record in reversed(before)]
    if first != again[::-1]:
        yield "it makes something else of the same record the second time: one object converts all, and keeps nothing"


def _answers_for_what_is_damaged(converter: CheckedConverter) -> Iterator[str]:
    for number, record in enumerate(_records(converter)):
        for what, damaged in _damaged(record):
            try:
                converter.convert(damaged)
            except UnusableRecord as error:
                if not str(error).strip():
                    yield f"examples[{number}] {what}: UnusableRecord says nothing; say what is wrong with the record"
                    return
            except ConverterFailed as error:
                yield f"examples[{number}] {what}: {error}; raise UnusableRecord with a line about the record instead"
                return


def _names_what_is_lost(converter: CheckedConverter) -> Iterator[str]:
    """Check that written records convert back, except for the named losses; other forms may be refused in a line."""
    if not converter.writes:
        return
    own = [one for record in _records(converter) for one in converter.convert(record)]
    for number, one in enumerate([*own, *samples.records(), *samples.preferences(), *samples.rows()]):
        try:
            written = converter.write(one)
        except UnusableRecord as error:
            if number < len(own):
                yield f"write: it refuses what it converted itself: {error}"
            continue
        found = converter.convert(written.record)
        if len(found) != 1:
            yield f"write: {len(found)} records come of the one that it wrote"
        elif (differ := differences(one, found[0])) & NEVER_LOST:
            yield f"write: {', '.join(sorted(differ))} of {type(one).__name__} is another one when it is read again"
        elif differ != written.lost:
            said, seen = (", ".join(sorted(names)) or "nothing" for names in (written.lost, differ))
            yield f"write: it says that {said} is lost of {type(one).__name__}; when it is read again, {seen} is"


def _damaged(record: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the record with each of its parts missing, or replaced by something else."""
    yield "with nothing in it", {}
    for path in _paths(record):
        place = ".".join(map(str, path))
        *way, last = path
        for strange in _STRANGE:
            changed = copy.deepcopy(record)
            _at(changed, way)[last] = copy.deepcopy(strange)
            yield f"with {strange!r} as {place}", changed
        changed = copy.deepcopy(record)
        del _at(changed, way)[last]
        yield f"without {place}", changed


def _paths(value: Any) -> Iterator[tuple[str | int, ...]]:
    inside: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield (key,)
        yield from ((key, *rest) for rest in _paths(part))


def _at(value: Any, path: list[str | int]) -> Any:
    for key in path:
        value = value[key]
    return value


def _records(converter: CheckedConverter) -> list[dict[str, Any]]:
    return [copy.deepcopy(dict(record)) for record in converter.plugin.examples]
