"""A session API to talk to: the one given, the running fleet's, or an env server for the moment."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from gymfleet_client.cli.console import CliError, err
from gymfleet_client.cli.display import StartDisplay
from gymfleet_client.supervisor.errors import ServiceFailed
from gymfleet_client.supervisor.interrupts import Interrupts
from gymfleet_client.supervisor.plan import GATEWAY, Plan, choose_ports
from gymfleet_client.supervisor.state import read_state
from gymfleet_client.supervisor.supervisor import Supervisor
from gymfleet_client.sync import SyncGatewayClient

_CALL_TIMEOUT_S: Final = 30.0


@contextmanager
def session_api(url: str | None, state_dir: Path, envs: tuple[str, ...]) -> Iterator[SyncGatewayClient]:
    """A client of the session API; without a gateway, `envs` are served as long as the block lasts."""
    found = url or _running_gateway(state_dir)
    if found is not None:
        with SyncGatewayClient(found, timeout_s=_CALL_TIMEOUT_S) as client:
            yield client
        return
    with _temporary_server(envs) as address, SyncGatewayClient(address, timeout_s=_CALL_TIMEOUT_S) as client:
        yield client


def _running_gateway(state_dir: Path) -> str | None:
    state = read_state(state_dir)
    if state is None:
        return None
    return next((service.url for service in state.living if service.name == GATEWAY), None)


@contextmanager
def _temporary_server(envs: tuple[str, ...]) -> Iterator[str]:
    """One server for all of `envs`: an env server speaks the same session API as the gateway."""
    interrupts = Interrupts()
    with TemporaryDirectory(prefix="gymfleet-") as name:
        directory = Path(name)
        plan = Plan(directory=directory, ports=choose_ports(envs, None), envs=envs, gateway_secret="")
        service = plan.env_server(*envs)
        with Supervisor(directory, interrupts=interrupts, tethered=True) as supervisor:
            with interrupts, StartDisplay(err, lambda: supervisor.waiting, quiet=True) as display:
                supervisor.start(service)
                try:
                    supervisor.wait_ready([service.name], display.refresh)
                except ServiceFailed as error:  # without the log's path: it is removed with the server
                    raise CliError(f"{', '.join(envs)} cannot be served: {error.reason}") from None
            yield service.url
