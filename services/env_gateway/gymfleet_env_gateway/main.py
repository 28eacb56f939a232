"""`gymfleet-env-gateway`: the process."""

from gymfleet_kit.logs import configure_logs
from gymfleet_kit.serve import serve
from gymfleet_kit.settings import no_arguments, read_settings
from gymfleet_kit.telemetry import configure_tracing

from gymfleet_env_gateway.app import gateway_app
from gymfleet_env_gateway.settings import GatewaySettings
from gymfleet_env_gateway.state import Gateway


def main() -> None:
    """Read the settings and serve."""
    no_arguments("gymfleet-env-gateway", "Serve every environment of the fleet behind one address.", GatewaySettings)
    settings = read_settings(GatewaySettings)
    configure_logs("env-gateway", level=settings.log_level)
    configure_tracing("env-gateway")
    app = gateway_app(settings)
    gateway: Gateway = app.state.gateway
    serve(app, host=settings.host, port=settings.port, drain=gateway.streams.finish)
