"""`gymfleet-trainer`: examine or build the initial model, plan its memory, run a recipe, or measure a checkpoint."""

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
from gymfleet_contracts.recipe import Recipe, RecipeError, load_recipe
from gymfleet_kit.logs import configure_logs
from gymfleet_kit.plugin_command import PluginRoom, plugin_command
from gymfleet_kit.plugins import PluginError
from gymfleet_kit.serve import bind
from gymfleet_kit.settings import read_settings
from gymfleet_kit.streams import OUTAGE
from gymfleet_kit.telemetry import configure_tracing

from gymfleet_trainer.distributed.ray_settings import prepare_ray
from gymfleet_trainer.errors import Stalled, TrainerError, disk_line, is_disk_full
from gymfleet_trainer.run.run_directory import RunDirectory, write_atomically
from gymfleet_trainer.settings import TrainerSettings

if TYPE_CHECKING:
    from gymfleet_trainer.learning.protocol import LearnerFactory

log = structlog.get_logger()

_INTERRUPTED: Final = 128
_DISK_FULL: Final = 5
_CANCEL_S: Final = 5.0


def main(argv: list[str] | None = None) -> None:
    """Run a command and exit: 0 done, 2 usage, 3 to 10 see `errors`, 130 or 143 interrupted (resumable)."""
    rooms = {
        "algorithm": _algorithms, "stage": _stages, "converter": _converters, "filter": _filters,
        "augmenter": _augmenters,
    }  # fmt: skip
    if plugin_command("gymfleet-trainer", rooms, sys.argv[1:] if argv is None else argv):
        return
    arguments = _parser().parse_args(argv)
    settings = read_settings(TrainerSettings)
    configure_logs("trainer", level=settings.log_level, json=settings.log_json)
    configure_tracing("trainer")
    try:
        recipe = load_recipe(arguments.recipe)
        code = _COMMANDS[arguments.command](arguments, recipe, RunDirectory(arguments.run_dir), settings)
    except (TrainerError, RecipeError, PluginError) as error:
        sys.stderr.write(f"error: {error}\n")
        code = getattr(error, "exit_code", 2)
    except OUTAGE as error:
        sys.stderr.write(f"error: Redis does not answer: {error}; start it and run the same command again\n")
        code = Stalled.exit_code
    except SystemExit as stop:  # a signal while the workers were starting
        code = int(stop.code or 0)
    except Exception as error:
        if not is_disk_full(error):
            raise
        sys.stderr.write(f"error: {disk_line(arguments.run_dir, error)}; make room and run the same command again\n")
        code = _DISK_FULL
    sys.stderr.flush()
    sys.stdout.flush()
    # sys.exit would wait for an update that torch is still computing in its thread.
    os._exit(code)


def _algorithms() -> PluginRoom:
    from gymfleet_trainer.learning.algorithm_checks import examine  # noqa: PLC0415 - torch takes seconds
    from gymfleet_trainer.learning.plugins import ALGORITHMS  # noqa: PLC0415

    return PluginRoom(ALGORITHMS, examine)


def _stages() -> PluginRoom:
    from gymfleet_trainer.run.plan import STAGES  # noqa: PLC0415 - torch takes seconds
    from gymfleet_trainer.stage_checks import examine  # noqa: PLC0415

    return PluginRoom(STAGES, examine)


def _converters() -> PluginRoom:
    from gymfleet_kit.data import converter_checks, converting  # noqa: PLC0415 - other kinds need less

    return PluginRoom(converting.CONVERTERS, converter_checks.examine)


def _filters() -> PluginRoom:
    from gymfleet_kit.data import filter_checks, filtering  # noqa: PLC0415 - other kinds need less

    return PluginRoom(filtering.FILTERS, filter_checks.examine)


def _augmenters() -> PluginRoom:
    from gymfleet_kit.data import augmenter_checks, augmenting  # noqa: PLC0415 - other kinds need less

    return PluginRoom(augmenting.AUGMENTERS, augmenter_checks.examine)


def _examine(arguments: argparse.Namespace, recipe: Recipe, *_: object) -> int:  # noqa: ARG001 - as the others
    from gymfleet_trainer.run.build import require_model  # noqa: PLC0415 - it imports the client

    require_model(recipe)
    return 0


def _plan(arguments: argparse.Namespace, recipe: Recipe, _: RunDirectory, settings: TrainerSettings) -> int:
    from gymfleet_trainer.run.devices import Devices  # noqa: PLC0415 - beside the next
    from gymfleet_trainer.run.memory_plan import memory_plan  # noqa: PLC0415 - torch takes seconds to import

    plan = memory_plan(recipe, Devices.parse(arguments.gpus), threads=settings.torch_threads)
    sys.stdout.write(f"{json.dumps(plan.as_dict())}\n")
    return 0


def _build(arguments: argparse.Namespace, recipe: Recipe, directory: RunDirectory, settings: TrainerSettings) -> int:
    from gymfleet_trainer.run.build import (  # noqa: PLC0415 - it imports the client
        build,
        initial_model,
        nothing_to_build,
        require_model,
    )

    require_model(recipe)
    if nothing_to_build(recipe, directory):
        sys.stdout.write(f"{initial_model(recipe, directory)}\n")
        return 0
    with directory:
        directory.claim(recipe, arguments.recipe)
        return _interruptible(lambda: _say(build(recipe, directory, settings)))


def _run(arguments: argparse.Namespace, recipe: Recipe, directory: RunDirectory, settings: TrainerSettings) -> int:
    from gymfleet_trainer.run.build import require_model  # noqa: PLC0415 - it imports the client
    from gymfleet_trainer.run.plan import own_sources, stages_of  # noqa: PLC0415 - torch takes seconds

    # Hold the lock to the end of the process: an interrupted run leaves threads behind that still write a checkpoint.
    directory.lock()
    stages_of(recipe)  # before anything of the run is written
    require_model(recipe)
    run_id = directory.claim(recipe, arguments.recipe)
    directory.pin(own_sources(recipe))
    if directory.finished:
        sys.stdout.write(f"{directory.path} is finished; its figures are in summary.json\n")
        return 0
    listener = bind(settings.host, settings.port)
    structlog.contextvars.bind_contextvars(run_id=run_id)
    with _learners(recipe, directory, settings) as learner:
        return _interruptible(lambda: _train(recipe, directory, settings, run_id, listener, learner))


async def _train(
    recipe: Recipe,
    directory: RunDirectory,
    settings: TrainerSettings,
    run_id: str,
    listener: socket.socket,
    learner: "LearnerFactory",
) -> None:
    from gymfleet_trainer import app  # noqa: PLC0415
    from gymfleet_trainer.run import lifecycle  # noqa: PLC0415 - torch takes seconds to import
    from gymfleet_trainer.run.progress import Reporter  # noqa: PLC0415

    reporter = Reporter(directory, run_id)
    async with app.serving(app.create(reporter, settings.rules()), listener):
        try:
            await lifecycle.train(recipe, directory, settings, reporter, run_id, learner)
        except asyncio.CancelledError:
            reporter.finish("interrupted", "the same command resumes")
            raise
        except Exception as error:
            with contextlib.suppress(OSError):  # a full disk must not hide its own message
                reporter.finish("failed", str(error))
            raise


@contextlib.contextmanager
def _learners(recipe: Recipe, directory: RunDirectory, settings: TrainerSettings) -> "Iterator[LearnerFactory]":
    """Provide the learner's factory: in this process, or on workers that run as long as the body does."""
    from gymfleet_trainer.learning.learner import LocalLearner  # noqa: PLC0415 - torch takes seconds to import

    if recipe.trainer.workers == 1:
        yield LocalLearner
        return
    prepare_ray()
    try:
        from gymfleet_trainer.distributed.workers import ray_workers  # noqa: PLC0415 - Ray is an extra
    except ImportError as error:
        raise RecipeError(f"trainer.workers > 1 needs gymfleet[trainer-ray]: {error}") from None
    with ray_workers(recipe, settings, directory) as workers:
        yield workers.learner


def _eval(arguments: argparse.Namespace, recipe: Recipe, directory: RunDirectory, settings: TrainerSettings) -> int:
    from gymfleet_trainer.run import lifecycle  # noqa: PLC0415 - torch takes seconds to import
    from gymfleet_trainer.run.progress import Reporter  # noqa: PLC0415
    from gymfleet_trainer.stages.measure import measurement_of  # noqa: PLC0415

    options = measurement_of(recipe, arguments.num_tasks)
    run_id = f"{recipe.name}-eval-{secrets.token_hex(4)}"

    async def work() -> None:
        # Write inside the run directory, where the rollout service can read. The weights are kept: they are
        # live, and the service reads them again when it has to refuse a later version.
        place = RunDirectory(directory.path / ".eval")
        place.lock()  # to the end of the process, as for a run
        for leftover in ("checkpoints", "trajectories", "trees"):
            shutil.rmtree(place.path / leftover, ignore_errors=True)
        reporter = Reporter(place, run_id)
        result = await lifecycle.evaluate_only(recipe, place, settings, reporter, arguments.checkpoint, run_id, options)
        write_atomically(arguments.out, result.model_dump_json(indent=2) + "\n")

    return _interruptible(work)


async def _say(work: Coroutine[Any, Any, str]) -> None:
    sys.stdout.write(f"{await work}\n")


def _interruptible(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run `work` in an event loop; on SIGINT or SIGTERM, cancel it and return 128 + the signal's number."""
    received: list[int] = []

    async def body() -> None:
        task = asyncio.create_task(work())
        loop = asyncio.get_running_loop()
        interrupted = asyncio.Event()

        def stop(number: int) -> None:
            received.append(number)
            interrupted.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number)
        waiting = asyncio.create_task(interrupted.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        while not task.done():
            # Cancel repeatedly: a plug-in's code may swallow a cancellation.
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_S)
        await task

    try:
        asyncio.run(body())
    except asyncio.CancelledError:
        if not received:
            raise
    if received:
        log.info("run.interrupted", signal=signal.Signals(received[0]).name)
        return _INTERRUPTED + received[0]
    return 0


_COMMANDS: Final[dict[str, Callable[[argparse.Namespace, Recipe, RunDirectory, TrainerSettings], int]]] = {
    "examine": _examine,
    "plan": _plan,
    "build": _build,
    "run": _run,
    "eval": _eval,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gymfleet-trainer", description="Train a policy as a recipe says.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("examine", "say whether the trainer can compute the recipe's model"),
        ("plan", "print, as JSON, what of the recipe lies where, and what does not fit"),
        ("build", "make the model that the recipe starts from"),
        ("run", "run the recipe, or resume an interrupted run"),
        ("eval", "measure a checkpoint on the recipe's held-out tasks"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("recipe", type=Path)
        command.add_argument("--run-dir", type=Path, required=name not in ("examine", "plan"), default=Path())
        if name == "plan":
            command.add_argument("--gpus", required=True, help="8xH200, 4x80GiB, or 1xcpu for this machine without one")
    commands.add_parser("describe", help="print what plug-ins are and which options they take")
    commands.add_parser("check", help="try what plug-ins promise")
    commands.choices["eval"].add_argument("--checkpoint", type=Path, required=True)
    commands.choices["eval"].add_argument("--out", type=Path, required=True)
    commands.choices["eval"].add_argument(
        "--num-tasks", type=int, help="held-out tasks, once each; otherwise as the recipe's last measurement has it"
    )
    return parser
