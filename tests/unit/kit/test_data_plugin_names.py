"""Converters, filters and augmenters of installed packages: found by name, and never two of one name."""

from importlib.metadata import EntryPoint
from typing import Any

import pytest
from gymfleet_kit import plugins
from gymfleet_kit.data.augmenting import AUGMENTERS, augmenter_of
from gymfleet_kit.data.converting import CONVERTERS, converter_of
from gymfleet_kit.data.filtering import FILTERS, filter_of
from gymfleet_kit.plugins import PluginError

OURS = [
    pytest.param(
        converter_of, CONVERTERS, "sharegpt", "gymfleet_kit.data.converters.sharegpt:ShareGpt", id="converter"
    ),
    pytest.param(filter_of, FILTERS, "length", "gymfleet_kit.data.filters.length:Length", id="filter"),
    pytest.param(
        augmenter_of, AUGMENTERS, "shortened", "gymfleet_kit.data.augmenters.shortened:Shortened", id="augmenter"
    ),
]


def installed(monkeypatch: pytest.MonkeyPatch, kind: Any, *declared: tuple[str, str]) -> None:
    points = [EntryPoint(name, value, f"gymfleet.{kind.name}s") for name, value in declared]
    monkeypatch.setattr(plugins, "declared", lambda group: [point for point in points if point.group == group])


@pytest.mark.parametrize(("make", "kind", "name", "place"), OURS)
def test_what_a_package_declares_has_a_name(
    monkeypatch: pytest.MonkeyPatch, make: Any, kind: Any, name: str, place: str
) -> None:
    installed(monkeypatch, kind, ("theirs", place))

    assert type(make("theirs", table="x").plugin) is kind.find(name)
    assert kind.names() == sorted([*kind.included(), "theirs"])


@pytest.mark.parametrize(("make", "kind", "name", "place"), OURS)
def test_two_of_one_name_are_a_line_that_names_both(
    monkeypatch: pytest.MonkeyPatch, make: Any, kind: Any, name: str, place: str
) -> None:
    installed(monkeypatch, kind, ("theirs", place), ("theirs", "other.package:Thing"))
    with pytest.raises(
        PluginError, match=rf"^two {kind.name}s are called 'theirs', {place} and other\.package:Thing: "
    ):
        make("theirs", table="x")

    installed(monkeypatch, kind, (name, "other.package:Thing"))
    with pytest.raises(PluginError, match=rf"^two {kind.name}s are called '{name}', gymfleet_kit\.data\..* and other"):
        make(name, table="x")
