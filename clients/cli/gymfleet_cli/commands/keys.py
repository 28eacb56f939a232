"""`gymfleet keys new`: make an API key, and the entry that its gateway needs."""

import re
import secrets
from typing import Annotated, Final

import typer
from gymfleet_contracts.keys import Scope, key_digest, new_key

from gymfleet_cli.console import UsageProblem

app = typer.Typer(help="API keys of a gateway's tenants.", no_args_is_help=True)

_TENANT: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@app.callback()
def keys() -> None:
    """API keys of a gateway's tenants."""


@app.command()
def new(
    tenant: Annotated[str, typer.Option(help="Whom the key is for.")],
    scope: Annotated[
        list[Scope] | None, typer.Option(help="What it may be used for; repeat for several. Default: play.")
    ] = None,
    key_id: Annotated[str | None, typer.Option("--id", help="Its name in the file. Default: a random one.")] = None,
) -> None:
    """Print a new key on stdout, once, and on stderr the entry for the gateway's file of tenants.

    The key is stored nowhere: the file holds only its SHA-256.
    """
    if _TENANT.fullmatch(tenant) is None:
        raise UsageProblem("--tenant: a name is 1 to 64 of a-z, 0-9, _ and -, and begins with a letter or digit")
    try:
        key = new_key(secrets.token_hex(4) if key_id is None else key_id)
    except ValueError as error:
        raise UsageProblem(f"--id: {error}") from None
    scopes = ", ".join(f'"{each.value}"' for each in dict.fromkeys(scope or [Scope.PLAY]))
    typer.echo(
        f"# Append this to the file that GYMFLEET_GATEWAY_TENANTS names; running gateways read it by themselves.\n"
        f"[[tenants.{tenant}.keys]]\n"
        f'id = "{key.split("_")[1]}"\n'
        f'sha256 = "{key_digest(key)}"\n'
        f"scopes = [{scopes}]",
        err=True,
    )
    typer.echo(key)
