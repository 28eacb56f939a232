"""`gymfleet-rollout`: serve, or describe plug-ins."""

import argparse
import sys
from pathlib import Path

from gymfleet_kit.formats import FORMATS
from gymfleet_kit.plugin_command import PluginRoom, plugin_command

from gymfleet_rollout import format_checks


def main(argv: list[str] | None = None) -> None:
    """Serve until SIGINT or SIGTERM, or describe plug-ins."""
    rooms = {"backend": _backends, "format": _formats, "strategy": _strategies}
    if plugin_command("gymfleet-rollout", rooms, sys.argv[1:] if argv is None else argv):
        return
    arguments = _parse(argv)
    from gymfleet_rollout.process import run  # noqa: PLC0415 - what serves takes seconds to import

    run(arguments.recipe, arguments.run_dir)


def _backends() -> PluginRoom:
    from gymfleet_rollout.backend import BACKENDS  # noqa: PLC0415 - other kinds need less
    from gymfleet_rollout.backend_checks import examine  # noqa: PLC0415

    return PluginRoom(BACKENDS, examine)


def _formats() -> PluginRoom:
    return PluginRoom(FORMATS, format_checks.examine)


def _strategies() -> PluginRoom:
    from gymfleet_rollout.strategy import STRATEGIES  # noqa: PLC0415 - other kinds need less
    from gymfleet_rollout.strategy_checks import examine  # noqa: PLC0415

    return PluginRoom(STRATEGIES, examine)


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gymfleet-rollout",
        description="Play episodes with a policy. Settings are environment variables, GYMFLEET_ROLLOUT_*.",
    )
    parser.add_argument("--recipe", type=Path, help="engine settings, seed and model where the environment has none")
    parser.add_argument("--run-dir", type=Path, help="where the recipe's run lives, and its model from scratch")
    arguments = parser.parse_args(argv)
    if (arguments.recipe is None) != (arguments.run_dir is None):
        parser.error("--recipe and --run-dir are given together")
    return arguments


if __name__ == "__main__":
    main()
