"""The checks for a GPU, in the form that needs none."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_check import CHECKS, checked
from tests.fixtures.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_check_runs_small_and_writes_a_file(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--smoke", "--out", str(file), "--only"]

    done = subprocess.run([*command, "attention"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["checks"]["attention"]["ok"]


@pytest.mark.long
@pytest.mark.usefixtures("forked_services")
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
    assert sum(seconds for _, seconds in CHECKS.values()) <= 52 * 60
    assert 0 < found["checks"]["parity"]["mean_difference"] < 0.01, "bfloat16 differs, and a little"
    lora = found["checks"]["lora"]
    assert lora["merged_largest_difference"] < 1e-4
    assert lora["adapter_mean_difference"] < lora["tolerance"] < lora["moved_by"], "the engine has the adapter"
    assert "this engine has none" in found["checks"]["cuda_ipc"]["refused"]
    memory = found["checks"]["memory"]
    assert memory["planned_over_seen"] == pytest.approx(memory["planned_bytes"] / memory["seen_bytes"], abs=1e-3)
    assert memory["seen_bytes"] > 2 * memory["weights_bytes"], "a gradient and moments lie beside the weights"


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


def test_a_torch_that_is_nowhere_is_one_line_before_anything_is_installed(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "torch-2.12.0-cp311-cp311-linux_x86_64.whl").touch()
    (tmp_path / "bin").mkdir()
    bare = tmp_path / "bin" / "python3"  # without the packages of the environment that runs the tests
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', encoding="utf-8")
    bare.chmod(0o755)

    done = subprocess.run(
        [str(ROOT / "scripts" / "gpu-check.sh"), str(tmp_path / "wheels")],
        capture_output=True, text=True, check=False, env=os.environ | {"PATH": f"{bare.parent}:{os.environ['PATH']}"},
    )  # fmt: skip

    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(r"error: vLLM \S+ needs torch 2\.\S+: this machine has none, and \S+ has no wheel of it", line)
