"""`gymfleet envs new`: what it makes is a whole environment."""

from pathlib import Path

import pytest
from gymfleet_cli.main import run
from gymfleet_env_server.catalogue import load_entry
from gymfleet_env_server.expert_play import ExpertFault, solve
from gymfleet_envs.tasks import SPLITS

Capture = pytest.CaptureFixture[str]


def test_the_folder_is_an_environment_whose_expert_solves_its_tasks(tmp_path: Path, capsys: Capture) -> None:
    assert run(["envs", "new", "number_hunt", "--in", str(tmp_path)]) == 0
    folder = tmp_path / "number_hunt"

    entry = load_entry(str(folder / "environment.py"), {})

    assert str(folder / "environment.py") in capsys.readouterr().out.replace("\n", "")
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "environment.py", "test_number_hunt.py"]
    assert entry.spec.name == "number_hunt"
    assert entry.kind.__name__ == "NumberHunt"
    for level in entry.spec.levels:
        tasks = [entry.tasks.by_index(split, level, index) for split in SPLITS for index in range(5)]
        assert all(solve(entry, task.data) for task in tasks)
    for text in (path.read_text() for path in folder.iterdir()):
        assert "CLASS_NAME" not in text
        assert "ENV_NAME" not in text


def test_an_expert_that_says_what_is_no_action_is_a_fault(tmp_path: Path) -> None:
    run(["envs", "new", "hunt", "--in", str(tmp_path)])
    file = tmp_path / "hunt" / "environment.py"
    file.write_text(file.read_text().replace('action=f"guess {middle}"', 'action=f"try {middle}"'))
    entry = load_entry(str(file), {})

    with pytest.raises(ExpertFault, match="'try "):
        solve(entry, entry.tasks.by_index("test", "easy", 0).data)


@pytest.mark.parametrize("name", ["Hunt", "../hunt", "my-hunt", "class", "9lives", "h" * 33, ""])
def test_what_is_no_name_is_refused(name: str, tmp_path: Path, capsys: Capture) -> None:
    assert run(["envs", "new", name, "--in", str(tmp_path)]) == 2

    assert "a name is" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "hunt").mkdir()
    (tmp_path / "hunt" / "environment.py").write_text("mine")

    assert run(["envs", "new", "hunt", "--in", str(tmp_path)]) == 1

    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "hunt" / "environment.py").read_text() == "mine"
