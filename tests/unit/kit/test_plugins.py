"""Plug-ins: found by name, by class and by path; what is wrong with one is said in one line."""

import os
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from gymfleet_kit import plugins
from gymfleet_kit.plugins import PluginError, PluginKind


class Greeter:
    """What the plug-ins of these tests derive from."""

    greeting: str


@pytest.fixture
def kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginKind[Greeter]]:
    """Greeters, of which a package of modules has two, and a module that begins with an underscore."""
    package = tmp_path / "some_greeters"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name in ("formal", "casual"):
        (package / f"{name}.py").write_text(plugin(name))
    (package / "_shared.py").write_text("raise RuntimeError('nobody imports me')")
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)
    yield PluginKind("greeter", (Greeter,), "some_greeters", extra="greeter-{}")
    for name in set(sys.modules) - known:
        del sys.modules[name]


def plugin(greeting: str, name: str = "Mine") -> str:
    return f"""
from tests.unit.kit.test_plugins import Greeter


class {name}(Greeter):
    greeting = {greeting!r}
"""


def installed(monkeypatch: pytest.MonkeyPatch, *declared: tuple[str, str]) -> None:
    points = [EntryPoint(name, value, "gymfleet.greeters") for name, value in declared]
    monkeypatch.setattr(plugins, "declared", lambda group: [point for point in points if point.group == group])


def test_by_name_by_class_and_by_path(kind: PluginKind[Greeter], tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(plugin("hey"))

    assert kind.find("formal").greeting == "formal"
    assert kind.find("some_greeters.casual:Mine").greeting == "casual"
    assert kind.find(str(path)).greeting == "hey"


def test_by_the_name_that_an_installed_package_declares(
    kind: PluginKind[Greeter], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "their_package.py").write_text(plugin("one", "One") + plugin("other", "Other"))
    installed(monkeypatch, ("theirs", "their_package:Other"))

    assert kind.names() == ["casual", "formal", "theirs"]
    assert kind.find("theirs").greeting == "other"


def test_a_package_that_is_installed_later_is_found(
    kind: PluginKind[Greeter], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    os.utime(tmp_path, (0, 0))
    assert kind.names() == ["casual", "formal"]
    (tmp_path / "their_package.py").write_text(plugin("hello"))
    information = tmp_path / "their_package-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: their_package\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[gymfleet.greeters]\ntheirs = their_package:Mine\n")

    assert kind.names() == ["casual", "formal", "theirs"]
    assert kind.find("theirs").greeting == "hello"


def test_names_are_listed_without_an_import(kind: PluginKind[Greeter]) -> None:
    assert kind.included() == kind.names() == ["casual", "formal"]
    assert "some_greeters.formal" not in sys.modules


def test_plugins_may_be_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in (("big", "greeter"), ("helpers", "other")):
        folder = tmp_path / "greeter_folders" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        (folder / f"{module}.py").write_text(plugin(name))
    (tmp_path / "greeter_folders" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    kind = PluginKind("greeter", (Greeter,), "greeter_folders", module="greeter")

    assert kind.names() == ["big"]
    assert kind.find("big").greeting == "big"
    with pytest.raises(PluginError, match="there is no greeter 'helpers'; known: big"):
        kind.find("helpers")


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("frmal", "there is no greeter 'frmal'; known: casual, formal; or give package.module:Class or the path"),
        ("_shared", "'_shared' names no greeter"),
        ("Formal!", "'Formal!' names no greeter; known: casual"),
        ("no.module:Class", "there is no module 'no'; known: casual"),
        ("some_greeters.formal:Nothing", "Nothing is not a subclass of tests.unit.kit.test_plugins.Greeter"),
        ("some_greeters._shared:Mine", "some_greeters._shared cannot be imported: RuntimeError: nobody imports me"),
        ("./nothing.py", "there is no file nothing.py"),
        ("os:system", "os:system: system is not a subclass"),
    ],
)
def test_a_reference_to_nothing_is_one_line(kind: PluginKind[Greeter], reference: str, reason: str) -> None:
    with pytest.raises(PluginError, match=reason) as caught:
        kind.find(reference)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
        ("raise ValueError('two\\nlines')", "cannot be imported: ValueError: two lines"),
        ("def", "cannot be imported: SyntaxError"),
        ("import no_such_engine", "No module named 'no_such_engine'"),
        ("x = 1", "must say GREETER = <its Greeter subclass>"),
        (plugin("a", "A") + plugin("b", "B"), "must say GREETER = <its Greeter subclass>"),
        ("GREETER = 7", "GREETER is not a subclass of tests.unit.kit.test_plugins.Greeter"),
    ],
)
def test_a_faulty_file_is_one_line(kind: PluginKind[Greeter], tmp_path: Path, source: str, reason: str) -> None:
    path = tmp_path / "faulty.py"
    path.write_text(source)

    with pytest.raises(PluginError, match=reason) as caught:
        kind.find(str(path))

    assert "\n" not in str(caught.value)
    assert "raise" not in source or not any(
        getattr(module, "__file__", None) == str(path) for module in sys.modules.values()
    )


def test_a_file_is_imported_once_and_equal_names_do_not_meet(kind: PluginKind[Greeter], tmp_path: Path) -> None:
    paths = [tmp_path / place / "mine.py" for place in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text(plugin(path.parent.name, "Mine"))

    first, second = (kind.find(str(path)) for path in paths)

    assert (first.greeting, second.greeting) == ("a", "b")
    assert sys.modules[first.__module__] is not sys.modules[second.__module__]
    assert kind.find(str(paths[0])) is first
    paths[0].write_text(plugin("c", "Mine"))
    assert kind.find(str(paths[0])).greeting == "c"


def test_what_comes_over_the_wire_names_what_is_offered(kind: PluginKind[Greeter], tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(plugin("a", "Mine"))

    assert kind.offered(str(path), [str(path)]).greeting == "a"
    assert kind.offered("formal", ()) is kind.find("formal")
    for reference in (str(path), "os:system", f"./{path.name}", "x" * 10_000):
        with pytest.raises(PluginError, match=r"^this service was not given the greeter '") as caught:
            kind.offered(reference, ["./other.py"])
        assert len(str(caught.value)) < 300


def test_of_several_classes_the_exported_one_is_meant(kind: PluginKind[Greeter], tmp_path: Path) -> None:
    path = tmp_path / "several.py"
    path.write_text(plugin("a", "A") + plugin("b", "B") + "GREETER = B\n")

    assert kind.find(str(path)).greeting == "b"


@pytest.mark.parametrize(
    ("declared", "others"),
    [
        ([("formal", "their_package:Other")], "some_greeters.formal and their_package:Other"),
        ([("theirs", "one:One"), ("theirs", "two:Two")], "one:One and two:Two"),
    ],
)
def test_two_of_one_name_are_refused(
    kind: PluginKind[Greeter], monkeypatch: pytest.MonkeyPatch, declared: list[tuple[str, str]], others: str
) -> None:
    installed(monkeypatch, *declared)

    with pytest.raises(PluginError, match=f"two greeters are called '{declared[0][0]}', {others}: uninstall one"):
        kind.find("casual")


def test_a_builtin_that_lacks_its_engine_names_the_extra(kind: PluginKind[Greeter], tmp_path: Path) -> None:
    (tmp_path / "some_greeters" / "grand.py").write_text("import a_grand_engine")

    with pytest.raises(PluginError, match=r"greeter grand needs the package 'a_grand_engine'; install gymfleet\[gree"):
        kind.find("grand")
