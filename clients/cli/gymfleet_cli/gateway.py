"""A session API to use: the given one, the running fleet's, or a temporary env server's."""

import json
import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Final

from gymfleet_client.errors import TransportError
from gymfleet_client.sync import SyncGatewayClient
from gymfleet_contracts.session import EnvironmentSpec
from pydantic import JsonValue

from gymfleet_cli.console import CliError, err
from gymfleet_cli.display import StartDisplay
from gymfleet_cli.options import served_options
from gymfleet_cli.supervisor.errors import ServiceFailed
from gymfleet_cli.supervisor.interrupts import Interrupts
from gymfleet_cli.supervisor.plan import DATA_VARIABLE, ENV_SERVER, GATEWAY, Plan, choose_ports
from gymfleet_cli.supervisor.service import console_script, reason_of
from gymfleet_cli.supervisor.state import read_state
from gymfleet_cli.supervisor.supervisor import Supervisor

CALL_TIMEOUT_S: Final = 30.0
_NO_OPTIONS: Final[Mapping[str, Mapping[str, JsonValue]]] = MappingProxyType({})
_SEAL_KEY: Final = "GYMFLEET_ENV_SEAL_KEY"


@contextmanager
def session_api(
    url: str | None, state_dir: Path, envs: tuple[str, ...], data: Mapping[str, Path] | None = None
) -> Iterator[SyncGatewayClient]:
    """Yield a client of the session API at `session_address`."""
    with (
        session_address(url, state_dir, envs, data) as (address, key),
        SyncGatewayClient(address, api_key=key, timeout_s=CALL_TIMEOUT_S) as client,
    ):
        yield client


@contextmanager
def session_address(
    url: str | None,
    state_dir: Path,
    envs: tuple[str, ...],
    data: Mapping[str, Path] | None = None,
    options: Mapping[str, Mapping[str, JsonValue]] = _NO_OPTIONS,
) -> Iterator[tuple[str, str | None]]:
    """Yield the address and key of a session API; without a gateway, serve `envs` for the duration of the block.

    `data` gives benchmark files by environment, and `options` the environments' options; with either, a new server is
    started, whatever already runs.
    The key of a running service is the one in the variable GYMFLEET_API_KEY. Raises `CliError` if the service that was
    given or that runs gives no answer.
    """
    own = bool(data) or any(options.values())
    found = url or (None if own else running_gateway(state_dir))
    if found is not None:
        try:
            yield found, os.environ.get("GYMFLEET_API_KEY")
        except TransportError as error:  # it names the call, not whom it was sent to
            raise CliError(f"{found} gives no answer: {error}") from None
        return
    with temporary_server(envs, data or {}, options) as served:
        yield served


def describe(envs: Sequence[str], data: Mapping[str, Path]) -> tuple[list[EnvironmentSpec], list[str]]:
    """Return the specs of environments that are not served, and what is missing for those that cannot run here."""
    settings = {DATA_VARIABLE: json.dumps({env: str(path) for env, path in data.items()})} if data else {}
    done = subprocess.run(
        [console_script("gymfleet-env-server"), "--describe", *envs],
        capture_output=True, text=True, check=False, env={**os.environ, **settings},
    )  # fmt: skip
    if done.returncode:
        raise CliError(reason_of("gymfleet-env-server", done))
    found = [json.loads(line) for line in done.stdout.splitlines()]
    specs = [EnvironmentSpec.model_validate(each["spec"]) for each in found if "spec" in each]
    return specs, [each["error"] for each in found if "error" in each]


def running_gateway(state_dir: Path) -> str | None:
    """Return the address of the fleet's gateway; None when none runs."""
    state = read_state(state_dir)
    if state is None:
        return None
    return next((service.url for service in state.living if service.name == GATEWAY), None)


@contextmanager
def temporary_server(
    envs: tuple[str, ...], data: Mapping[str, Path], options: Mapping[str, Mapping[str, JsonValue]] = _NO_OPTIONS
) -> Iterator[tuple[str, str]]:
    """Run one server for all `envs` and yield its address and key; it has the same session API as the gateway."""
    interrupts = Interrupts()
    with TemporaryDirectory(prefix="gymfleet-") as name:
        directory = Path(name)
        secret = secrets.token_hex(32)
        plan = Plan(directory=directory, ports=choose_ports(envs, None), envs=envs, gateway_secret=secret, data=data,
                    options=served_options(envs, options))  # fmt: skip
        service = plan.env_server(*envs)
        if _SEAL_KEY in os.environ:  # what is kept of an episode is opened later, with the user's own key
            service = replace(service, env={name: value for name, value in service.env.items() if name != _SEAL_KEY})
        with Supervisor(directory, interrupts=interrupts, tethered=True) as supervisor:
            with interrupts, StartDisplay(err, lambda: supervisor.waiting, quiet=True) as display:
                supervisor.start(service)
                try:
                    supervisor.wait_ready([service.name], display.refresh)
                except ServiceFailed as error:  # the log's path is left out, because the log is removed with the server
                    raise CliError(f"{', '.join(envs)} cannot be served: {error.reason}") from None
            yield service.url, plan.key(ENV_SERVER)
