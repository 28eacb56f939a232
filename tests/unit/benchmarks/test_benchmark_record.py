"""Where a benchmark's figures go, and that figures older than their sources say so."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks import record as recording
from benchmarks.command import BenchmarkCommand, Size
from benchmarks.record import Row, commit_of, record
from benchmarks.sources import digest
from benchmarks.tables import render

ROWS = [Row.of("speed", 3.0, "1/s")]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The directories of published and of one's own figures."""
    published, own = tmp_path / "published", tmp_path / "own"
    monkeypatch.setattr(recording, "RESULTS", published)
    monkeypatch.setattr(recording, "OWN_RESULTS", own)
    return published, own


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """A benchmark of one option; what that was."""
    monkeypatch.setattr("sys.argv", ["bench", *arguments])
    command = BenchmarkCommand("A benchmark.", {"rounds": Size(5, smoke=1)})
    options = command.options()
    record("trainer", ROWS, options)
    rounds: int = options.rounds
    return rounds


def test_figures_are_ones_own_until_they_are_published(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    published, own = places

    assert run(monkeypatch) == 5
    assert json.loads((own / "trainer.json").read_text())["rows"][0]["value"] == 3.0
    assert not published.exists()

    assert run(monkeypatch, "--publish") == 5
    assert json.loads((published / "trainer.json").read_text())["sources"] == digest("trainer")
    assert "make tables" in capsys.readouterr().out


def test_the_commit_is_marked_if_anything_but_figures_differs_from_it(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    figures, code = tmp_path / "benchmarks" / "results" / "trainer.json", tmp_path / "trainer.py"
    figures.parent.mkdir(parents=True)
    figures.write_text("1")
    code.write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    commit = commit_of(tmp_path)

    figures.write_text("2")
    (figures.parent / "begun.json").write_text("1")
    assert commit_of(tmp_path) == commit != "unknown"

    code.write_text("2")
    assert commit_of(tmp_path) == f"{commit}+changes"


def test_a_smoke_run_is_small_and_keeps_nothing(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--smoke") == 1
    assert run(monkeypatch, "--smoke", "--rounds", "2") == 2, "what is given by hand wins"

    assert "speed" in capsys.readouterr().out
    assert not any(place.exists() for place in places)


def test_a_smoke_run_cannot_be_published(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "--smoke", "--publish")

    assert "not allowed with" in capsys.readouterr().err


def test_figures_whose_sources_have_changed_say_so(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    published, _ = places
    run(monkeypatch, "--publish")
    assert render(published).count("**older than the code**") == 0

    path = published / "trainer.json"
    path.write_text(path.read_text().replace(digest("trainer"), "0" * 16))

    assert render(published).count("**older than the code**") == 1


def test_the_hash_is_of_names_and_contents(tmp_path: Path) -> None:
    file = tmp_path / "contracts" / "one.py"
    file.parent.mkdir()
    file.write_text("1")
    first = digest("trainer", tmp_path)
    file.write_text("2")
    second = digest("trainer", tmp_path)
    file.rename(file.with_name("two.py"))

    assert len({first, second, digest("trainer", tmp_path)}) == 3
