"""`gymfleet plan`: show what fits where, before anything is started."""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from gymfleet_contracts.recipe import Recipe
from rich.table import Table

from gymfleet_cli.console import CliError, UsageProblem, one_line, out, plain
from gymfleet_cli.recipes import load_with_overrides, to_toml
from gymfleet_cli.supervisor.service import console_script

_GIB: Final = 1 << 30
_MIB: Final = 1 << 20


def plan(
    recipe: Annotated[Path, typer.Argument(help="Recipe, a TOML file.")],
    gpus: Annotated[str, typer.Option(help="What there is: 8xH200, 4x80GiB, or 1xcpu for this machine without a GPU.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Override a key: --set stages.reinforce.tokens_per_microbatch=4096. Repeat for several."
        ),
    ] = None,
) -> None:
    """Show a run's memory by device: weights, gradients, optimiser, activations, the engine's weights and its cache.

    Nothing is started and no weights are read. If something does not fit, say what would help; the exit code is 2.
    """
    # Environments and rewards take no GPU memory, so the services that know them are not asked.
    found = json.loads(asked_of_trainer("plan", load_with_overrides(recipe, overrides or ()), "--gpus", gpus))
    _show(found)
    if found["faults"]:
        raise UsageProblem("; ".join(found["faults"]))


def require_model(recipe: Recipe) -> None:
    """Raise `UsageProblem` if the recipe names a model that the trainer cannot compute."""
    if recipe.model.path is not None:
        asked_of_trainer("examine", recipe)


def asked_of_trainer(command: str, recipe: Recipe, *arguments: str) -> str:
    """Run a trainer command on a recipe and return its output. Raises `UsageProblem` or `CliError` with its reason."""
    with tempfile.TemporaryDirectory(prefix="gymfleet-") as place:
        file = Path(place) / "recipe.toml"
        file.write_text(to_toml(recipe), encoding="utf-8")
        done = subprocess.run(
            [console_script("gymfleet-trainer"), command, str(file), *arguments],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        reason = lines[-1].removeprefix("error: ") if lines else f"gymfleet-trainer ended with code {done.returncode}"
        raise (UsageProblem if done.returncode == 2 else CliError)(one_line(reason))
    return done.stdout.splitlines()[-1] if done.stdout else ""


def _show(found: dict[str, Any]) -> None:
    of_stage = f", in {found['stage']}, which needs most" if found["stage"] else ""
    out.print(plain(f"{found['model']}: {found['num_parameters']:,} parameters{of_stage}"), soft_wrap=True)
    for one in _merged(found["devices"]):
        table = Table.grid(padding=(0, 2))
        for process in one["processes"]:
            for number, part in enumerate(process["parts"]):
                name = "" if number else process["name"]
                table.add_row(plain(name), plain(part["what"]), plain(_gib(part["size_bytes"]), "bold"))
        room = "" if one["size_bytes"] is None else f" of {_gib(one['size_bytes'])}"
        out.print(plain(f"{one['name']}: {_gib(one['used_bytes'])}{room}", "bold"), soft_wrap=True)
        out.print(table)
    for note in found["notes"]:
        out.print(plain(note), soft_wrap=True)


def _merged(devices: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge devices with the same contents into one, with all their names."""
    alike: dict[str, list[dict[str, Any]]] = {}
    for device in devices:
        parts = [process["parts"] for process in device["processes"]]
        alike.setdefault(json.dumps(parts), []).append(device)
    merged = []
    for group in alike.values():
        first, last = group[0], group[-1]
        if first is last:
            merged.append(first)
            continue
        processes = [
            {**one, "name": one["name"] if one["name"] == other["name"] else f"{one['name']} to {other['name']}"}
            for one, other in zip(first["processes"], last["processes"], strict=True)
        ]
        merged.append(
            {**first, "name": f"{len(group)} devices, {first['name']} to {last['name']}, each", "processes": processes}
        )
    return merged


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.2f} GiB" if size_bytes >= _GIB / 10 else f"{size_bytes / _MIB:.1f} MiB"
