"""One stack for all tests of a run, in a project of its own; nothing of it is left afterwards."""

import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from gymfleet_cli.recipes import load_with_overrides, to_toml

from tests.deploy.compose.stack import COMPOSE_FILE, Stack, compose_program, report
from tests.fixtures.paths import ROOT

SERVING: Final = "textcraft,maze,wordle,babyai,reward"
SHORT: Final = (
    "stages.reinforce.steps=2",
    "stages.reinforce.groups_per_step=16",
    "stages.reinforce.max_wall_s=240",
    "stages.before.num_tasks=100",
    "stages.after.num_tasks=100",
)  # fmt: skip
"""The quickstart's recipe with its whole warm start and two of its steps: every part of a run, and some success."""


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Nothing of it runs yet: the first test brings it up and takes the time."""
    directory = tmp_path_factory.mktemp("stack")
    secrets = directory / "secrets"
    subprocess.run([ROOT / "deploy/compose/secrets.sh", secrets], check=True, timeout=60)
    recipes = directory / "recipes"
    recipes.mkdir()
    recipe = load_with_overrides(ROOT / "recipes/quickstart.toml", SHORT)
    (recipes / "quickstart.toml").write_text(to_toml(recipe), encoding="utf-8")
    for path in (recipes, *recipes.iterdir()):  # read by the containers' user
        path.chmod(0o755)
    program = os.environ.get("GYMFLEET_TEST_COMPOSE")
    stack = Stack(
        program=tuple(shlex.split(program) if program else compose_program()),
        project=os.environ.get("GYMFLEET_TEST_PROJECT") or f"gymfleet-test-{os.getpid()}",
        secrets=secrets,
        settings={
            "COMPOSE_PROFILES": SERVING,
            "GYMFLEET_RECIPE": "quickstart",
            "GYMFLEET_RECIPES": str(recipes),
            "GYMFLEET_MODELS": str(directory),
            # Away from the defaults, where a stack that is in use may listen.
            "GYMFLEET_COMPOSE_GATEWAY_PORTS": "28200-28209",
            "GYMFLEET_COMPOSE_ROLLOUT_PORTS": "28220-28229",
        },
        files=(COMPOSE_FILE, *(Path(file) for file in os.environ.get("GYMFLEET_TEST_OVERRIDES", "").split())),
    )
    try:
        yield stack
    finally:
        stack.take_down("--volumes")


@pytest.fixture(autouse=True)
def _say_what_took_long(request: pytest.FixtureRequest) -> Iterator[None]:
    began = time.monotonic()
    yield
    report(f"[{time.monotonic() - began:.0f} s] {request.node.name}")
