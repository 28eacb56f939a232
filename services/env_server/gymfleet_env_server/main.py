"""`gymfleet-env-server NAME [NAME...]`: serve environments over the session API."""

import argparse
import contextlib
import json
import subprocess
import sys
from collections import ChainMap
from collections.abc import Sequence
from functools import partial
from typing import Final

from gymfleet_kit.logs import configure_logs
from gymfleet_kit.plugin_command import PLUGIN_COMMANDS, PluginRoom, plugin_command
from gymfleet_kit.serve import serve
from gymfleet_kit.settings import read_settings
from gymfleet_kit.telemetry import configure_tracing

from gymfleet_env_server.app import build_app
from gymfleet_env_server.catalogue import ENVIRONMENTS, KIND, EnvironmentUnavailable, configured, load_entry
from gymfleet_env_server.interpreters import change_interpreter, differ
from gymfleet_env_server.settings import EnvServerSettings
from gymfleet_env_server.shards.pool import ShardPool

_MODULE: Final = "gymfleet_env_server.main"


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


def _ask_one_by_one(flag: str, references: Sequence[str]) -> None:
    """Print the command's output for each environment by itself, when no interpreter has the packages of all."""
    answers = []
    for reference in references:
        command = [sys.executable, "-m", _MODULE, flag, reference]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.returncode)
        answers.append(done.stdout)
    names = [json.loads(answer) for answer in answers if flag == "--check-options"]
    sys.stdout.write(f"{json.dumps(dict(ChainMap(*names)))}\n" if names else "".join(answers))


def main() -> None:
    """Serve until SIGINT or SIGTERM; exit with code 2 and one line if an environment cannot be served."""
    try:
        _main(sys.argv[1:])
    except EnvironmentUnavailable as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from None


def _main(argv: Sequence[str]) -> None:
    if argv and argv[0] in PLUGIN_COMMANDS:
        change_interpreter([word for word in argv if word.endswith(".py")], _MODULE)
    if plugin_command("gymfleet-env-server", {"environment": lambda: PluginRoom(KIND)}, argv):
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
    arguments = parser.parse_args(argv)
    references = tuple(arguments.environment)
    settings = read_settings(EnvServerSettings)
    if (arguments.describe or arguments.check_options) and differ(references):
        _ask_one_by_one("--describe" if arguments.describe else "--check-options", references)
        return
    change_interpreter(references, _MODULE)
    if arguments.prepare:  # which has been done, as this is it
        return
    if arguments.describe:
        _describe(references, settings)
        return
    if arguments.check_options:
        _check_options(references, settings)
        return
    configure_logs("env-server", level=settings.log_level)
    configure_tracing("env-server")
    pool = ShardPool(references, settings)
    try:
        pool.start()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    drain = partial(pool.drain, settings.drain_s) if settings.drain_s else None
    app = build_app(pool, settings.rules("/play/"))
    serve(app, host=settings.host, port=settings.port, drain=drain)


if __name__ == "__main__":  # in the interpreter of an environment's own packages
    main()
