"""The console script; it says what to install where only the SDK is installed."""

import sys

_EXTRA = {"typer", "rich"}


def main() -> None:
    """Run `gymfleet`."""
    try:
        from gymfleet_cli.main import main as command  # noqa: PLC0415 - the SDK's installation has no typer
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        sys.stderr.write("error: the gymfleet command needs its extra: pip install 'gymfleet[cli]'\n")
        sys.exit(1)
    command()
