"""`gymfleet-env-server NAME [NAME...]`: serve environments over the session API."""

import argparse
import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

from gymfleet_kit.logs import configure_logs
from gymfleet_kit.plugin_command import PluginRoom, plugin_command
from gymfleet_kit.serve import serve
from gymfleet_kit.settings import read_settings
from gymfleet_kit.telemetry import configure_tracing

from gymfleet_env_server.app import build_app
from gymfleet_env_server.catalogue import ENVIRONMENTS, KIND, EnvironmentUnavailable, configured, load_entry
from gymfleet_env_server.interpreters import change_interpreter, packages_of
from gymfleet_env_server.settings import EnvServerSettings
from gymfleet_env_server.shards.pool import ShardPool

_COMMANDS: Final = ("check", "describe", "environment")
"""Words of the command line of plug-ins, which name no environment."""


def _describe(references: Sequence[str], settings: EnvServerSettings) -> None:
    for reference in references:
        found: dict[str, object]
        try:
            with contextlib.redirect_stdout(sys.stderr):  # some engines print when they are imported
                entry = load_entry(reference, settings.data, settings.options)
            found = {"spec": entry.spec.model_dump(mode="json")}
        except EnvironmentUnavailable as error:
            found = {"error": str(error)}
        sys.stdout.write(json.dumps({"environment": reference, **found}) + "\n")


def _check_options(references: Sequence[str], settings: EnvServerSettings) -> None:
    """Print the environments' names. Raises `EnvironmentUnavailable` for options that they do not take."""
    with contextlib.redirect_stdout(sys.stderr):
        names = {reference: configured(reference, settings.options).name for reference in references}
    sys.stdout.write(json.dumps(names) + "\n")


def _in_its_interpreter() -> None:
    """Go on with the packages that the environments' files name. Several that differ are described one by one."""
    references = [word for word in sys.argv[1:] if word.endswith(".py")]
    others = [word for word in sys.argv[1:] if not word.startswith("-") and word not in references]
    if not any(packages_of(reference) for reference in references):
        return
    if "--describe" in sys.argv and len(references) + len(others) > 1:
        for reference in [word for word in sys.argv[1:] if not word.startswith("-")]:
            done = subprocess.run([sys.argv[0], "--describe", reference], check=False)
            if done.returncode:
                raise SystemExit(done.returncode)
        raise SystemExit(0)
    change_interpreter([*references, *(word for word in others if word not in _COMMANDS)])


def main() -> None:
    """Serve until SIGINT or SIGTERM; exit code 2 and one line when an environment cannot be served."""
    try:
        _in_its_interpreter()
    except EnvironmentUnavailable as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from None
    if plugin_command("gymfleet-env-server", {"environment": lambda: PluginRoom(KIND)}, sys.argv[1:]):
        return
    parser = argparse.ArgumentParser(
        prog="gymfleet-env-server",
        description="Serve environments over HTTP. Settings: GYMFLEET_ENV_* (HOST, PORT, SHARDS, LEASE_S, DATA, ...).",
    )
    parser.add_argument(
        "environment",
        nargs="+",
        help=f"{', '.join(ENVIRONMENTS)}, package.module:Class, or the path of a .py file with an Environment",
    )
    parser.add_argument(
        "--describe",
        action="store_true",
        help="serve nothing: a line of JSON per environment, its spec or what it lacks",
    )
    parser.add_argument(
        "--check-options",
        action="store_true",
        help="serve nothing: the environments' names as JSON, once each could take its options",
    )
    parser.add_argument(
        "--prepare",
        action="store_true",
        help="serve nothing: make the interpreter of the packages that the environment's file names, for an image",
    )
    arguments = parser.parse_args()
    if arguments.prepare:  # which has been done, as this is it
        return
    references = tuple(arguments.environment)
    settings = read_settings(EnvServerSettings)
    if arguments.describe:
        _describe(references, settings)
        return
    if arguments.check_options:
        try:
            _check_options(references, settings)
        except EnvironmentUnavailable as error:
            sys.stderr.write(f"error: {error}\n")
            raise SystemExit(2) from None
        return
    configure_logs("env-server", level=settings.log_level)
    configure_tracing("env-server")
    pool = ShardPool(references, settings)
    try:
        pool.start()
    except EnvironmentUnavailable as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    drain = partial(pool.drain, settings.drain_s) if settings.drain_s else None
    app = build_app(pool, settings.rules("/play/"))
    serve(app, host=settings.host, port=settings.port, drain=drain)


if __name__ == "__main__":  # in the interpreter of an environment's own packages
    main()
