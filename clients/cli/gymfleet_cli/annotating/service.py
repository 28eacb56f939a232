"""A reward service to use: the given one, or one that runs as long as the command."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from gymfleet_cli.commands.fleet import start_waves
from gymfleet_cli.console import CliError
from gymfleet_cli.supervisor.errors import ServiceFailed
from gymfleet_cli.supervisor.interrupts import Interrupts
from gymfleet_cli.supervisor.plan import REWARD, Plan, choose_ports
from gymfleet_cli.supervisor.supervisor import Supervisor

_SEAL_KEY: Final = "GYMFLEET_REWARD_SEAL_KEY"


@contextmanager
def reward_service(url: str | None, components: tuple[str, ...]) -> Iterator[tuple[str, str | None]]:
    """Yield the address and key of a reward service.

    For the service at `url`, the key is that in GYMFLEET_API_KEY. Without a URL, a service is started that may use
    `components` in addition to named ones; it opens only data that environments sealed with the user's own
    GYMFLEET_REWARD_SEAL_KEY.
    """
    if url is not None:
        yield url, os.environ.get("GYMFLEET_API_KEY")
        return
    interrupts = Interrupts()
    with TemporaryDirectory(prefix="gymfleet-") as name:
        plan = Plan(
            directory=Path(name), ports=choose_ports((), None), envs=(), gateway_secret=secrets.token_hex(32),
            components=components,
        )  # fmt: skip
        (service,) = plan.rewards()
        # The plan's own key opens nothing that was sealed before; the user's key is in the variable already.
        service = replace(service, env={name: value for name, value in service.env.items() if name != _SEAL_KEY})
        with Supervisor(plan.directory, interrupts=interrupts, tethered=True) as supervisor:
            try:
                with interrupts:
                    start_waves(supervisor, [[plan.redis()], [service]])
            except ServiceFailed as error:  # the log's path is left out, because the log is removed with the service
                raise CliError(f"the reward service cannot be started: {error.reason}") from None
            yield service.url, plan.key(REWARD)
