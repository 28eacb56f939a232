"""`gymfleet check FILE`: whether a plug-in keeps the promises of its kind."""

from typing import Annotated

import typer

from gymfleet_cli.console import UsageProblem, err, out, plain
from gymfleet_cli.plugins import KINDS, broken_promises, kind_of


def check(
    reference: Annotated[str, typer.Argument(metavar="FILE", help="A .py file, a name or package.module:Class.")],
    kind: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(KINDS)}. Default: what the file imports tells.")
    ] = None,
) -> None:
    """Test a plug-in against the promises of its kind. Exit code 0 if it keeps all, 1 if not, 2 if it is unusable."""
    if kind is not None and kind not in KINDS:
        raise UsageProblem(f"--kind {kind!r}: known are {', '.join(KINDS)}")
    found = kind or kind_of(reference)
    if found == "environment":
        sound = _environment_is_sound(reference)
    else:
        with err.status(f"trying the {found} {reference}"):
            faults = broken_promises(found, reference)
        for fault in faults:
            out.print(plain(f"- {fault}"), soft_wrap=True)
        sound = not faults
    out.print(plain(f"{reference}: {f'a sound {found}' if sound else f'no sound {found}'}"), soft_wrap=True)
    if not sound:
        raise typer.Exit(1)


def _environment_is_sound(reference: str) -> bool:
    """Serve the environment, and test the promises of its server."""
    from gymfleet_cli.examination import AUTO, examine_server  # noqa: PLC0415 - a tenth of a second for all others
    from gymfleet_cli.gateway import temporary_server  # noqa: PLC0415

    with temporary_server((reference,), {}) as (address, key):
        return examine_server(
            address, protocol=AUTO, env=(), check=(), api_key=key, json_file=None, junit_file=None, failures_only=True,
            list_checks=False, markdown=False,
        )  # fmt: skip
