"""`gymfleet-env-import ENV SOURCE HOME`: check a benchmark's files and make of them what an environment reads.

`gymfleet data import` runs it, so that the command line needs no environment's engine.
"""

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from gymfleet_envs.runtime.catalogue import EnvironmentUnavailable, configured, load_entry
from gymfleet_envs.runtime.environment import Environment
from gymfleet_envs.runtime.tasks import SPLITS, TaskDataError, TaskSource


def import_benchmark(reference: str, source: Path, home: Path) -> dict[str, Any]:
    """Put a benchmark's data at `home`/NAME, in place of what was there, once the environment could read all of it.

    Returns `name`, `path`, `task_source` and `tasks` (level, split, count). Raises `EnvironmentUnavailable`;
    then `home` is as it was.
    """
    kind = configured(reference)
    target = home / kind.name
    if not source.is_dir():
        raise EnvironmentUnavailable(f"{source} is not a directory; give the one that holds the benchmark's files")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        tasks = _imported(reference, kind, source, scratch)
        found = {level: {split: tasks.count(split, level) for split in SPLITS} for level in tasks.levels}
        _replace(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return {"name": kind.name, "path": str(target), "task_source": tasks.name, "tasks": found}


def _imported(reference: str, kind: type[Environment[Any]], source: Path, scratch: Path) -> TaskSource[Any]:
    try:
        kind.import_data(source, scratch)
        return load_entry(reference, {kind.name: scratch}).tasks
    except TaskDataError as error:
        raise EnvironmentUnavailable(f"environment {kind.name}: {error}") from None
    except (OSError, shutil.Error) as error:
        raise EnvironmentUnavailable(f"environment {kind.name}: {source} could not be imported: {error}") from None
    except EnvironmentUnavailable as error:  # the user knows the files by their own place
        raise EnvironmentUnavailable(str(error).replace(str(scratch), str(source))) from None


def _replace(scratch: Path, target: Path) -> None:
    """Two renames: whoever reads `target` finds the old data or the new, never half of one."""
    scratch.chmod(0o755)
    if not target.exists():
        scratch.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
    target.rename(old / target.name)
    scratch.rename(target)
    shutil.rmtree(old)


def main() -> None:
    """Exit code 0 with a line of JSON on stdout, or 2 with a line on stderr."""
    parser = argparse.ArgumentParser(prog="gymfleet-env-import", description="Check and convert a benchmark's files.")
    parser.add_argument("environment", help="a name, package.module:Class, or the path of a .py file")
    parser.add_argument("source", type=Path)
    parser.add_argument("home", type=Path, help="where the directory of the environment's name is made")
    arguments = parser.parse_args()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what environments log and engines print is not the result
            found = import_benchmark(arguments.environment, arguments.source, arguments.home)
    except EnvironmentUnavailable as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    sys.stdout.write(json.dumps(found) + "\n")
