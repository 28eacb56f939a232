"""Runs of a grid: each is made once, and an interrupted run goes on."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gymfleet_cli.recipes import to_toml
from gymfleet_contracts.recipe import Recipe

ROOT: Final = Path(__file__).parents[1]
_NONE: Final[Mapping[str, str]] = {}


def train(
    directory: Path,
    recipe: Recipe,
    seed: int,
    *,
    fresh: bool,
    changes: Sequence[str] = (),
    settings: Mapping[str, str] = _NONE,
) -> None:
    """Run or resume `gymfleet train`; a finished run stays as it was, unless `fresh` is set.

    Args:
        directory: of the run. Its recipe is written next to it.
        recipe: the recipe to run.
        seed: of the run.
        fresh: whether to begin anew.
        changes: to the recipe, as KEY=VALUE.
        settings: environment variables of the services.
    """
    if (directory / "summary.json").is_file() and not fresh:
        return
    file = directory.with_suffix(".toml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(to_toml(recipe), encoding="utf-8")
    gymfleet = str(Path(sys.executable).with_name("gymfleet"))
    command = [gymfleet, "train", str(file), "--run-dir", str(directory), "--seed", str(seed)]
    for change in changes:
        command += ["--set", change]
    if fresh:
        command.append("--fresh")
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **settings})
