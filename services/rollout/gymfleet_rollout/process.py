"""The rollout service's process, from settings to its end."""

import contextlib
import gc
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from gymfleet_contracts.recipe import Recipe, RecipeError, initial_model, load_recipe
from gymfleet_kit.logs import configure_logs
from gymfleet_kit.plugins import PluginError
from gymfleet_kit.serve import serve
from gymfleet_kit.settings import read_settings
from gymfleet_kit.telemetry import configure_tracing

from gymfleet_rollout.app import build_app
from gymfleet_rollout.backend import InferenceBackend, backend_of
from gymfleet_rollout.model import ModelNotFound, ModelPlace, find_model, vocab_size
from gymfleet_rollout.recipe import settings_for
from gymfleet_rollout.settings import RolloutSettings
from gymfleet_rollout.strategy import STRATEGIES


def run(recipe_file: Path | None, run_dir: Path | None) -> None:
    """Serve until SIGINT or SIGTERM. Without a model, a backend or a compiler it ends with one line and exit code 2.

    An engine that cannot start, or has died, ends the process with exit code 1, to be restarted from outside. The two
    arguments are given together.
    """
    try:
        recipe = None if recipe_file is None else load_recipe(recipe_file)
        kind = RolloutSettings if recipe is None else settings_for(recipe, run_dir or Path())
    except RecipeError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from None
    settings = read_settings(kind)
    try:
        model = _model(settings, recipe, run_dir or Path())
    except ModelNotFound as error:
        name = "GYMFLEET_ROLLOUT_MODEL" if recipe is None else f"GYMFLEET_ROLLOUT_MODEL, or model.path of {recipe.name}"
        sys.stderr.write(f"error: {name}: {error}\n")
        raise SystemExit(2) from None
    backend = _backend(settings, recipe)
    if recipe is not None and settings.reward_url is None and (place := _evaluating(recipe)):
        sys.stderr.write(
            f"error: {place} of {recipe.name} has nodes valued by the reward service: set GYMFLEET_ROLLOUT_REWARD_URL\n"
        )
        raise SystemExit(2)
    if settings.max_lora_rank and not backend.facts.adapters:
        sys.stderr.write(
            f"error: the backend {settings.backend} loads no adapters, which [model.lora] or "
            "GYMFLEET_ROLLOUT_MAX_LORA_RANK asks for: take embedded or server, or train whole weights\n"
        )
        raise SystemExit(2)
    if settings.sleep_mode and not backend.facts.sleeps:
        sys.stderr.write(
            f"error: engines of the backend {settings.backend} do not sleep, which placement.colocated or "
            "GYMFLEET_ROLLOUT_SLEEP_MODE asks for: take embedded or server, or give them a GPU of their own\n"
        )
        raise SystemExit(2)
    compiler = os.environ.get("CXX", "g++")
    if backend.facts.compiles and not settings.enforce_eager and shutil.which(compiler) is None:
        sys.stderr.write(
            f"error: GYMFLEET_ROLLOUT_ENFORCE_EAGER=false compiles the model, and the C++ compiler {compiler!r} is not "
            "on PATH; install one (on Debian: apt install g++) or leave the setting at true\n"
        )
        raise SystemExit(2)
    configure_logs("rollout", level=settings.log_level)
    configure_tracing("rollout")
    more_ports = () if settings.control_port is None else (settings.control_port,)
    failed = threading.Event()

    def end() -> None:
        failed.set()
        signal.raise_signal(signal.SIGTERM)

    try:
        serve(build_app(settings, model, backend, end), host=settings.host, port=settings.port, more_ports=more_ports)
    finally:
        # Otherwise the interpreter goes through vLLM's million objects several times before it ends.
        gc.freeze()
        if failed.is_set():
            raise SystemExit(1)


def _evaluating(recipe: Recipe) -> str:
    """Return the place of a strategy that has nodes valued, or an empty string; skip those that cannot be found."""
    for place, strategy in recipe.strategies().items():
        with contextlib.suppress(PluginError):  # told with each group that names it
            if STRATEGIES.find(strategy.use).facts.evaluates:
                return place
    return ""


def _backend(settings: RolloutSettings, recipe: Recipe | None) -> InferenceBackend[Any]:
    """Find the backend, and check its options; one that cannot be used ends the process."""
    setting = "GYMFLEET_ROLLOUT_BACKEND"
    from_recipe = recipe is not None and settings.backend == recipe.inference.backend
    try:
        return backend_of(
            settings.backend,
            settings.options_of_backend,
            table="inference" if from_recipe else f"{setting}_OPTIONS",
        )
    except PluginError as error:
        name = setting if recipe is None else f"{setting}, or [inference] of {recipe.name}"
        sys.stderr.write(f"error: {name}: {error}\n")
        raise SystemExit(2) from None


def _model(settings: RolloutSettings, recipe: Recipe | None, run_dir: Path) -> ModelPlace:
    """Find the model. One from scratch may still have to be built; any other must exist. Raises ModelNotFound."""
    if recipe is not None and recipe.model.scratch is not None and settings.model == initial_model(recipe, run_dir):
        return ModelPlace(Path(settings.model), built_by=recipe.name)
    path = find_model(settings.model)
    vocab_size(path)
    return ModelPlace(path)
