"""`gymfleet eval --suite` with real services: what fails is named, the rest is measured, and is not measured again."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.integration.test_cli_fleet import GYMFLEET

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_services"), pytest.mark.timeout(400)]

RECIPE = """
name = "suited"

[[environments]]
name = "babyai"

[model]
path = "{model}"

[inference]
backend = "embedded"
max_model_len = 2048
max_num_seqs = 16
kv_cache_gib = 0.1

[rollout.limits]
max_turns = 2
max_response_tokens = 8
max_context_tokens = 2000

[[stages]]
kind = "measure"
num_tasks = 3
"""
SUITE = """
name = "two"

[[environments]]
name = "babyai"
level = "intro"
episodes = 3

[[environments]]
name = "maze"
level = "no_such_level"
"""


def test_one_environment_that_fails_does_not_stop_the_others(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "suited.toml").write_text(RECIPE.format(model=tiny_model))
    suite = tmp_path / "two.toml"
    suite.write_text(SUITE)
    command = [
        GYMFLEET, "eval", str(tmp_path / "suited.toml"), "--run-dir", str(tmp_path / "run"), "--suite", str(suite),
    ]  # fmt: skip

    def run() -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "COLUMNS": "160"}
        return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=environment)

    first = run()

    assert first.returncode == 1, first.stdout + first.stderr
    assert "maze: not measured" in first.stdout
    assert "1 of 2 environments could not be measured" in first.stderr
    (figure,) = json.loads((tmp_path / "run" / "suites" / "two.json").read_bytes())
    assert (figure["environment"], figure["num_episodes"]) == ("babyai", 3)

    suite.write_text(SUITE.partition('\n\n[[environments]]\nname = "maze"')[0])
    again = run()

    assert again.returncode == 0, again.stdout + again.stderr
    assert "measuring" not in again.stderr, "it was measured before"
    assert "babyai" in again.stdout
