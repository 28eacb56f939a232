"""`gymfleet-env-server NAME [NAME...]`: serve environments over the session API."""

import argparse
import sys
from functools import partial

from gymfleet_kit.logs import configure_logs
from gymfleet_kit.serve import serve
from gymfleet_kit.settings import read_settings
from gymfleet_kit.telemetry import configure_tracing

from gymfleet_envs.runtime.app import create_env_app
from gymfleet_envs.runtime.catalogue import ENVIRONMENTS, EnvironmentUnavailable
from gymfleet_envs.runtime.pool import ShardPool
from gymfleet_envs.runtime.settings import EnvServerSettings


def main() -> None:
    """Serve until SIGINT or SIGTERM; exit code 2 and one line when an environment cannot be served."""
    parser = argparse.ArgumentParser(
        prog="gymfleet-env-server",
        description="Serve environments over HTTP. Settings: GYMFLEET_ENV_* (HOST, PORT, SHARDS, LEASE_S, DATA, ...).",
    )
    parser.add_argument(
        "environment",
        nargs="+",
        help=f"{', '.join(ENVIRONMENTS)}, package.module:Class, or the path of a .py file with an Environment",
    )
    references = tuple(parser.parse_args().environment)
    settings = read_settings(EnvServerSettings)
    configure_logs("env-server", level=settings.log_level)
    configure_tracing("env-server")
    pool = ShardPool(references, settings)
    try:
        pool.start()
    except EnvironmentUnavailable as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    drain = partial(pool.drain, settings.drain_s) if settings.drain_s else None
    serve(create_env_app(pool), host=settings.host, port=settings.port, drain=drain)
