"""`gymfleet-reward`: the reward service's process."""

import sys

from gymfleet_kit.chat_endpoint import KeyUnreadable
from gymfleet_kit.logs import configure_logs
from gymfleet_kit.plugin_command import PluginRoom, plugin_command
from gymfleet_kit.serve import serve
from gymfleet_kit.settings import no_arguments, read_settings
from gymfleet_kit.telemetry import configure_tracing

from gymfleet_reward import component_checks
from gymfleet_reward.app import build_app
from gymfleet_reward.models.tables import UnusableModel
from gymfleet_reward.plugins import COMPONENTS
from gymfleet_reward.settings import RewardSettings


def main() -> None:
    """Serve until SIGINT or SIGTERM, or describe plug-ins."""
    if plugin_command(
        "gymfleet-reward", {"component": lambda: PluginRoom(COMPONENTS, component_checks.examine)}, sys.argv[1:]
    ):
        return
    no_arguments("gymfleet-reward", "Score trajectories: from Redis streams, and over HTTP.", RewardSettings)
    settings = read_settings(RewardSettings)
    configure_logs("reward", level=settings.log_level)
    configure_tracing("reward")
    try:
        app = build_app(settings)
    except KeyUnreadable as error:
        sys.stderr.write(f"error: GYMFLEET_REWARD_JUDGES: key_file {error}\n")
        raise SystemExit(2) from None
    except UnusableModel as error:
        sys.stderr.write(f"error: GYMFLEET_REWARD_MODELS: {error}\n")
        raise SystemExit(2) from None
    serve(app, host=settings.host, port=settings.port)


if __name__ == "__main__":
    main()
