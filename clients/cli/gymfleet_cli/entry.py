"""The console script; if only the SDK is installed, it says what else to install."""

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
