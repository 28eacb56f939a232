"""`gymfleet-env-import ENV SOURCE HOME`: check a benchmark's files and convert them to what an environment reads.

`gymfleet data import` runs it, so that the command line needs no environment's engine.
"""

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gymfleet_envs.environment import AnyEnvironment
from gymfleet_envs.tasks import SPLITS, TaskDataError, TaskSource
from gymfleet_kit.settings import read_settings

from gymfleet_env_server.catalogue import EnvironmentUnavailable, configured, find_environment, load_entry
from gymfleet_env_server.interpreters import change_interpreter
from gymfleet_env_server.settings import EnvServerSettings


def import_benchmark(
    reference: str, source: Path, home: Path, options: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Put a benchmark's data at `home`/NAME, replacing what was there, once the environment has read all of it.

    Options are keyed by environment, as a server's are; those of other environments are ignored.

    Returns `name`, `path`, `task_source`, `tasks` (level, split, count) and `left_out` (what cannot be played, and
    why). Raises `EnvironmentUnavailable`; then `home` is unchanged.
    """
    kind = configured(reference, options)
    target = home / kind.name
    if not source.is_dir():
        raise EnvironmentUnavailable(f"{source} is not a directory; give the one that holds the benchmark's files")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        tasks = _imported(reference, kind, source, scratch, options)
        found = {level: {split: tasks.count(split, level) for split in SPLITS} for level in tasks.levels}
        _replace(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    left_out = list(getattr(tasks, "left_out", ()))
    return {"name": kind.name, "path": str(target), "task_source": tasks.name, "tasks": found, "left_out": left_out}


def _imported(
    reference: str,
    kind: type[AnyEnvironment],
    source: Path,
    scratch: Path,
    options: Mapping[str, Mapping[str, Any]] | None,
) -> TaskSource[Any]:
    try:
        kind.import_data(source, scratch)
        return load_entry(reference, {kind.name: scratch}, options).tasks
    except TaskDataError as error:
        raise EnvironmentUnavailable(f"environment {kind.name}: {error}") from None
    except (OSError, shutil.Error) as error:
        raise EnvironmentUnavailable(f"environment {kind.name}: {source} could not be imported: {error}") from None
    except EnvironmentUnavailable as error:  # the user knows the files by their original path
        raise EnvironmentUnavailable(str(error).replace(str(scratch), str(source))) from None


def _replace(scratch: Path, target: Path) -> None:
    """Replace `target` with two renames: a reader finds the old data or the new, never part of either."""
    scratch.chmod(0o755)
    if not target.exists():
        scratch.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
    target.rename(old / target.name)
    scratch.rename(target)
    shutil.rmtree(old)


def main() -> None:
    """Exit with code 0 and a line of JSON on stdout, or with code 2 and a line on stderr."""
    parser = argparse.ArgumentParser(prog="gymfleet-env-import", description="Check and convert a benchmark's files.")
    parser.add_argument("environment", help="a name, package.module:Class, or the path of a .py file")
    parser.add_argument("source", type=Path)
    parser.add_argument("home", type=Path, help="where the directory of the environment's name is made")
    parser.add_argument("--options", type=json.loads, default={}, help="options of the environment, as a JSON object")
    arguments = parser.parse_args()
    settings = read_settings(EnvServerSettings)
    try:
        change_interpreter([arguments.environment], "gymfleet_env_server.importing")
        with contextlib.redirect_stdout(sys.stderr):  # what environments log and engines print is not the result
            name = find_environment(arguments.environment).name
            options = {name: {**settings.options.get(name, {}), **arguments.options}}
            found = import_benchmark(arguments.environment, arguments.source, arguments.home, options)
    except EnvironmentUnavailable as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":  # in the interpreter of an environment's own packages
    main()
