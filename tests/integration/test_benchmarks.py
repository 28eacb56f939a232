"""Every benchmark runs in its smoke size, prints its figures and leaves the published ones alone."""

import hashlib
from pathlib import Path
from typing import Final

import pytest

from benchmarks.record import OWN_RESULTS, RESULTS
from tests.fixtures.benchmarks import smoke
from tests.fixtures.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_services"), pytest.mark.timeout(300)]

ELSEWHERE: Final = {
    "quickstart": "tests/e2e/test_quickstart.py",
    "stack": "tests/chaos/test_stack_kills.py",
    "workers": "tests/chaos/test_trainer_distributed_kill.py",
}
"""Those that train, whose runs these tests look at more closely."""
BENCHMARKS: Final = sorted(path.stem.removeprefix("bench_") for path in (ROOT / "benchmarks").glob("bench_*.py"))


def files(*directories: Path) -> dict[Path, str]:
    """The hashes of what lies there."""
    return {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for directory in directories
        for path in directory.glob("*.json")
    }


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.peers] if name == "openenv" else [])
        for name in BENCHMARKS
        if name not in ELSEWHERE
    ],
)
def test_a_benchmark_runs_small_and_keeps_nothing(name: str) -> None:
    before = files(RESULTS, OWN_RESULTS)

    printed = smoke(name)

    assert f"\n{name}: " in f"\n{printed}", "hardware and commit"
    assert len(printed.strip().splitlines()) >= 3, "a head and figures"
    assert files(RESULTS, OWN_RESULTS) == before


def test_those_that_are_run_elsewhere_are() -> None:
    for name, path in ELSEWHERE.items():
        assert f'smoke("{name}"' in (ROOT / path).read_text(encoding="utf-8"), path
