"""`gymfleet new`: what it makes works as it is."""

import subprocess
import sys
from pathlib import Path

import pytest
from gymfleet_cli.main import run
from gymfleet_cli.plugins import KINDS
from gymfleet_env_server.catalogue import load_entry
from gymfleet_env_server.expert_play import ExpertFault, solve
from gymfleet_envs.tasks import SPLITS

from tests.fixtures.paths import ROOT

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a plug-in of every kind."""
    directory = tmp_path_factory.mktemp("made")
    for kind in KINDS:
        assert run(["new", kind, f"my_{kind}", "--in", str(directory)]) == 0
    return directory


@pytest.mark.parametrize("kind", KINDS)
def test_it_makes_a_plug_in_and_its_test(kind: str, tmp_path: Path, capsys: Capture) -> None:
    assert run(["new", kind, "my_own", "--in", str(tmp_path)]) == 0

    assert str(tmp_path / "my_own.py") in capsys.readouterr().out.replace("\n", "")
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["my_own.py", "test_my_own.py"]
    for text in (path.read_text() for path in files):
        assert "CLASS_NAME" not in text
        assert "PLUGIN_NAME" not in text
    assert "class MyOwn" in files[0].read_text()


def test_every_plug_in_passes_its_own_test(made: Path) -> None:
    tests = [str(made / f"test_my_{kind}.py") for kind in KINDS]

    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--rootdir", str(made), *tests],
        cwd=made, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert tested.returncode == 0, tested.stdout
    assert all(f"test_my_{kind}.py::" in tested.stdout for kind in KINDS), "each has a test"


def test_ruff_finds_nothing_in_them(made: Path) -> None:
    linted = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), "--ignore", "D,S101,ARG002",
         *map(str, made.glob("*.py"))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert linted.returncode == 0, linted.stdout


def test_the_expert_of_a_new_environment_solves_its_tasks(tmp_path: Path) -> None:
    run(["new", "environment", "number_hunt", "--in", str(tmp_path)])

    entry = load_entry(str(tmp_path / "number_hunt.py"), {})

    assert entry.spec.name == "number_hunt"
    for level in entry.spec.levels:
        tasks = [entry.tasks.by_index(split, level, index) for split in SPLITS for index in range(5)]
        assert all(solve(entry, task.data) for task in tasks)


def test_an_expert_that_says_what_is_no_action_is_a_fault(tmp_path: Path) -> None:
    run(["new", "environment", "hunt", "--in", str(tmp_path)])
    file = tmp_path / "hunt.py"
    file.write_text(file.read_text().replace('action=f"guess {middle}"', 'action=f"try {middle}"'))
    entry = load_entry(str(file), {})

    with pytest.raises(ExpertFault, match="'try "):
        solve(entry, entry.tasks.by_index("test", "easy", 0).data)


@pytest.mark.parametrize("name", ["Hunt", "../hunt", "my-hunt", "class", "9lives", "h" * 33, ""])
def test_what_is_no_name_is_refused(name: str, tmp_path: Path, capsys: Capture) -> None:
    assert run(["new", "environment", name, "--in", str(tmp_path)]) == 2

    assert "a name is" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_kind_is_refused(tmp_path: Path, capsys: Capture) -> None:
    assert run(["new", "algorythm", "mine", "--in", str(tmp_path)]) == 2

    assert (
        "'algorythm' is no kind of plug-in; known: environment, strategy, format, component, algorithm"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("there", ["hunt.py", "test_hunt.py"])
def test_nothing_is_overwritten(there: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / there).write_text("mine")

    assert run(["new", "environment", "hunt", "--in", str(tmp_path)]) == 1

    assert f"{there} exists already" in " ".join(capsys.readouterr().err.split())
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
