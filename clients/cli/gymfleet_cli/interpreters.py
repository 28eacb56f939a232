"""Interpreters for environments whose files name packages of their own, made before waiting for a service."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gymfleet_cli.console import UsageProblem, err, plain
from gymfleet_cli.supervisor.service import console_script, reason_of

_MARK: Final = "# /// script"


def prepare_interpreters(envs: Sequence[str]) -> None:
    """Make missing interpreters, which may take minutes. Raises `UsageProblem` with pip's reason."""
    for env in envs:
        path = Path(env)
        if path.suffix != ".py" or not path.is_file() or _MARK not in path.read_text("utf-8", errors="replace"):
            continue
        err.print(plain(f"{env} names packages of its own; its interpreter is made if it is not there"))
        done = subprocess.run(
            [console_script("gymfleet-env-server"), "--prepare", env], stderr=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            raise UsageProblem(reason_of("gymfleet-env-server", done))
