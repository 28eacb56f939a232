"""Folders in shared memory: held by whoever uses them, and swept when nobody does."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from gymfleet_kit.shared_weights import HeldFolder, is_shared, sweep

HOLD = """
import sys, time
from pathlib import Path
from gymfleet_kit.shared_weights import HeldFolder
held = HeldFolder.made(sys.argv[2], Path(sys.argv[1]))
print(held.path, flush=True)
time.sleep(60)
"""


def test_a_folder_is_its_users_alone_and_bears_the_runs_name(tmp_path: Path) -> None:
    held = HeldFolder.made("run-1", tmp_path)

    assert held.path == tmp_path / "gymfleet-weights-run-1"
    assert stat.S_IMODE(held.path.stat().st_mode) == 0o700
    assert is_shared(held.path / "v000001", tmp_path)
    assert not is_shared(tmp_path / "other" / "v000001", tmp_path)
    assert not is_shared(held.path / "v000001")


def test_what_somebody_holds_is_not_swept(tmp_path: Path) -> None:
    trainer = HeldFolder.made("run-1", tmp_path)
    rollout = HeldFolder.of(trainer.path)
    assert rollout is not None
    assert sweep(tmp_path) == []
    trainer.let_go()
    assert sweep(tmp_path) == []

    rollout.let_go()

    assert sweep(tmp_path) == [trainer.path]
    assert not trainer.path.exists()
    assert HeldFolder.of(trainer.path) is None


def test_what_a_killed_process_left_is_swept_and_not_before(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path), "run-1"], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    path = Path(child.stdout.readline().strip())
    (path / "v000001").mkdir()
    assert sweep(tmp_path) == []

    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()

    assert sweep(tmp_path) == [path]
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_goes_on_takes_its_folder_again(tmp_path: Path) -> None:
    first = HeldFolder.made("run-1", tmp_path)
    (first.path / "v000001").mkdir()
    first.let_go()

    second = HeldFolder.made("run-1", tmp_path)

    assert sweep(tmp_path) == []
    assert (second.path / "v000001").is_dir()


def test_other_things_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "psm_other").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "gymfleet-weights-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "gymfleet-weights-file").write_text("")
    assert sweep(tmp_path) == []

    foreign = HeldFolder.made("run-2", tmp_path)
    foreign.let_go()
    monkeypatch.setattr(os, "getuid", lambda: 12345)

    assert sweep(tmp_path) == [], "another user's"
    assert foreign.path.is_dir()
    assert (tmp_path / "elsewhere").is_dir()
