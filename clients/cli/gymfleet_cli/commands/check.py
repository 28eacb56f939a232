"""`gymfleet check FILE`: whether a plug-in keeps what its kind promises."""

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
    """Try what every plug-in of its kind promises. Exit code 0 when all holds, 1 when not, 2 when it cannot be used."""
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
    """Serve it, and try the promises of its server."""
    from gymfleet_cli.examination import AUTO, examine_server  # noqa: PLC0415 - a tenth of a second for all others
    from gymfleet_cli.gateway import temporary_server  # noqa: PLC0415

    with temporary_server((reference,), {}) as (address, key):
        return examine_server(
            address, protocol=AUTO, env=(), check=(), api_key=key, json_file=None, junit_file=None, failures_only=True,
            list_checks=False, markdown=False,
        )  # fmt: skip
