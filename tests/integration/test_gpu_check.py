"""The checks for a GPU, in the form that needs none."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.gpu_check import CHECKS, checked
from tests.fixtures.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_script_runs_every_check_small_and_writes_one_file(tmp_path: Path) -> None:
    file = tmp_path / "found.json"

    done = subprocess.run(
        [str(ROOT / "scripts" / "gpu-check.sh"), "--smoke", str(file)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["machine"]["gpu"] == "none"
    assert found["checks"].keys() == CHECKS.keys()
    assert all(check["ok"] for check in found["checks"].values())
    assert sum(seconds for _, seconds in CHECKS.values()) <= 40 * 60
    assert 0 < found["checks"]["parity"]["mean_difference"] < 0.01, "bfloat16 differs, and a little"


def test_a_check_that_takes_too_long_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHECKS, "attention", (CHECKS["attention"][0], 0.01))

    found = checked("attention", smoke=True)

    assert found["ok"] is False
    assert found["error"] == "no result within 0.01 s"


def test_a_directory_of_wheels_that_is_none_is_one_line() -> None:
    done = subprocess.run(
        [str(ROOT / "scripts" / "gpu-check.sh"), "/no/such/place"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert done.stderr == "error: /no/such/place is not a directory of wheels\n"
