"""`gymfleet-rollout`: the rollout service's process."""

import gc
import os
import shutil
import sys

from gymfleet_kit.logs import configure_logs
from gymfleet_kit.serve import serve
from gymfleet_kit.settings import read_settings
from gymfleet_kit.telemetry import configure_tracing

from gymfleet_rollout.app import build_app
from gymfleet_rollout.model import ModelNotFound, find_model, vocab_size
from gymfleet_rollout.settings import RolloutSettings


def main() -> None:
    """Serve until SIGINT or SIGTERM. A model or compiler that is not there ends with one line and exit code 2."""
    settings = read_settings(RolloutSettings)
    try:
        model_path = find_model(settings.model)
        vocab_size(model_path)
    except ModelNotFound as error:
        sys.stderr.write(f"error: GYMFLEET_ROLLOUT_MODEL: {error}\n")
        raise SystemExit(2) from None
    compiler = os.environ.get("CXX", "g++")
    if settings.backend == "embedded" and not settings.enforce_eager and shutil.which(compiler) is None:
        sys.stderr.write(
            f"error: GYMFLEET_ROLLOUT_ENFORCE_EAGER=false compiles the model, and the C++ compiler {compiler!r} is not "
            "on PATH; install one (on Debian: apt install g++) or leave the setting at true\n"
        )
        raise SystemExit(2)
    configure_logs("rollout", level=settings.log_level)
    configure_tracing("rollout")
    try:
        serve(build_app(settings, model_path), host=settings.host, port=settings.port)
    finally:
        # Else the interpreter looks several times through vLLM's million objects before it ends.
        gc.freeze()


if __name__ == "__main__":
    main()
