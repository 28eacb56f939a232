"""Ray's own settings where the operator has set none. Ray reads them on import, so they must be set earlier."""

import os
import secrets
from typing import Final

ADDRESS: Final = "RAY_ADDRESS"
"""The cluster to use; by default, a cluster of this machine alone that ends with this process."""


def prepare_ray() -> None:
    """Set Ray's settings in the environment. Must be called before anything imports Ray."""
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # the patch would show every line of a worker twice
        "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",  # Ray Train's own log handlers print too much
        "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
        "RAY_DEDUP_LOGS": "0",  # it would hold back lines that several workers log
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",  # the run has a deadline of its own
    }
    if ADDRESS not in os.environ:
        settings |= {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),  # otherwise Ray keeps a token in the home directory
            "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
            "RAY_TRAIN_METRICS_ENABLED": "0",
        }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
