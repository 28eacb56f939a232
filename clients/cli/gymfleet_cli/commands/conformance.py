"""`gymfleet conformance URL`: check which of a server's promises hold."""

from pathlib import Path
from typing import Annotated

import typer


def conformance(
    url: Annotated[
        str | None, typer.Argument(help="Base URL of an env server, a gateway or one of its fronts.")
    ] = None,
    protocol: Annotated[str, typer.Option(help="native, openenv, agentgym, or auto: ask the server.")] = "auto",
    env: Annotated[
        list[str] | None, typer.Option(help="Environment; repeatable. Default: each that is served.")
    ] = None,
    check: Annotated[list[str] | None, typer.Option(help="Glob over ids, or a group's name; repeatable.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="GYMFLEET_API_KEY", show_envvar=True, help="Sent as a bearer token.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report there as JSON.")] = None,
    junit_file: Annotated[Path | None, typer.Option("--junit", help="Write the report there as JUnit's XML.")] = None,
    failures_only: Annotated[bool, typer.Option("--failures", help="Show only what does not hold.")] = False,
    list_checks: Annotated[bool, typer.Option("--list", help="Print the checks and try none.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="With --list: as Markdown.")] = False,
) -> None:
    """Test a server's promises, one check each. Exit code 0 if every `must` holds, 1 if not, 2 without a server."""
    from gymfleet_cli.examination import examine_server  # noqa: PLC0415 - a tenth of a second for all other commands

    conforms = examine_server(
        url, protocol=protocol, env=env or (), check=check or (), api_key=api_key, json_file=json_file,
        junit_file=junit_file, failures_only=failures_only, list_checks=list_checks, markdown=markdown,
    )  # fmt: skip
    if not conforms:
        raise typer.Exit(1)
