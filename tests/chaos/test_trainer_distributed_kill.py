"""A run on two Ray workers: one dies, the run goes on; the run is told to end, and nothing stays."""

import signal
import time
from pathlib import Path
from typing import Final

import pytest

from benchmarks.bench_workers import started
from benchmarks.stack_accounts import Accounts
from tests.chaos.test_trainer_kill import check_accounting
from tests.fixtures.benchmarks import smoke
from tests.fixtures.trainer_runs import TrainerRun
from tests.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_START_S: Final = 300.0
"""Ray starts a dozen processes."""
_MARK: Final = "DISTRIBUTED_RUN"
"""An environment variable that all processes of a run inherit, Ray's included, and the kernel remembers."""


@pytest.fixture
def run(maze_fleet: Fleet, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainerRun:
    monkeypatch.setenv(_MARK, str(tmp_path))
    return TrainerRun(
        maze_fleet, tmp_path, tiny_model, steps=4, sft="", more="[trainer]\nworkers = 2",
        settings={"SERVICES_TIMEOUT_S": f"{_START_S:g}"}, whole_process=True,
    )  # fmt: skip


def processes(directory: Path) -> set[str]:
    """The processes of the run there that have not ended."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"{_MARK}={directory}\0".encode() in (path / "environ").read_bytes():
                found.add((path / "comm").read_text().strip())
        except OSError:  # gone meanwhile
            continue
    return found


def check_nothing_is_left(directory: Path, run_dir: Path) -> None:
    deadline = time.monotonic() + 20
    while remaining := processes(directory):
        assert time.monotonic() < deadline, f"left behind: {remaining}"
        time.sleep(0.05)
    assert not (run_dir / "ray").exists()


def test_a_killed_worker_is_replaced_and_every_group_is_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(_MARK, str(tmp_path))

    printed = smoke("workers", "--runs", str(tmp_path))

    assert "a worker killed: both successors joined" in printed
    assert "a worker killed: the next training step ended" in printed
    accounts = Accounts.of(tmp_path / "killed", {})
    unseen = {"groups trained that nobody produced": accounts.trained}  # Redis went with the run
    assert accounts.faults == dict.fromkeys(accounts.faults, 0) | unseen, "each group once"
    assert (accounts.steps, accounts.trained, accounts.resumed) == (3, 3 * 2, 1)
    assert sorted((one["group"], one["rank"]) for one in started(tmp_path / "killed")) == [
        (1, 0), (1, 1), (2, 0), (2, 1),
    ]  # fmt: skip
    check_nothing_is_left(tmp_path, tmp_path / "killed")


@pytest.mark.long
async def test_an_interrupted_run_leaves_no_process_and_goes_on_with_one_worker(run: TrainerRun) -> None:
    run.start()
    run.wait_until(lambda: len(run.metrics("rl_step")) >= 1, _START_S)
    assert run.process is not None
    run.process.send_signal(signal.SIGTERM)

    code = run.wait(60)

    assert code == 128 + signal.SIGTERM, run.tail()
    check_nothing_is_left(run.directory, run.run_dir)
    run.more = ""
    run.write_recipe()
    run.finish()
    check_accounting(run, set())
