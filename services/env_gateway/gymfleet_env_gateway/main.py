"""`gymfleet-env-gateway`: the process."""

import resource
from typing import Final

from gymfleet_kit.logs import configure_logs
from gymfleet_kit.serve import serve
from gymfleet_kit.settings import no_arguments, read_settings
from gymfleet_kit.telemetry import configure_tracing

from gymfleet_env_gateway.app import build_app
from gymfleet_env_gateway.settings import GatewaySettings
from gymfleet_env_gateway.state import Gateway

_OPEN_FILES: Final = 65_536


def main() -> None:
    """Read the settings and serve."""
    no_arguments("gymfleet-env-gateway", "Serve every environment of the fleet behind one address.", GatewaySettings)
    settings = read_settings(GatewaySettings)
    configure_logs("env-gateway", level=settings.log_level)
    configure_tracing("env-gateway")
    raise_file_limit()
    app = build_app(settings)
    gateway: Gateway = app.state.gateway
    serve(app, host=settings.host, port=settings.port, drain=gateway.streams.finish)


def raise_file_limit() -> None:
    """Raise the limit on open files: each client of a front has a socket, and the usual soft limit is only 1024.

    With it, a full fleet would have to reject most of its clients.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
