"""Plug-ins that a recipe names, checked before any process of a run is started, and without importing them here."""

import ast
import hashlib
import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gymfleet_contracts.recipe import AlgorithmFacts, Recipe, RecipeError, StrategyFacts
from gymfleet_kit.plugins import ASCENDING, PluginDescription, plural_of
from pydantic import ValidationError

from gymfleet_cli.console import CliError, UsageProblem
from gymfleet_cli.supervisor.errors import FleetError
from gymfleet_cli.supervisor.service import console_script


@dataclass(frozen=True)
class _Kind:
    service: str
    """The command that knows the plug-ins: `SERVICE describe KIND REFERENCE`, `SERVICE check KIND REFERENCE`."""
    base: str
    """The module of the base class: a file that imports it is of this kind."""


KINDS: Final[Mapping[str, _Kind]] = {
    "environment": _Kind("gymfleet-env-server", "gymfleet_envs"),
    "strategy": _Kind("gymfleet-rollout", "gymfleet_rollout.strategy"),
    "format": _Kind("gymfleet-rollout", "gymfleet_contracts.reply_format"),
    "component": _Kind("gymfleet-reward", "gymfleet_reward"),
    "algorithm": _Kind("gymfleet-trainer", "gymfleet_trainer.learning"),
}


def check_plugins(recipe: Recipe) -> None:
    """Check the options of the plug-ins that a recipe names. Raises `RecipeError`, with the key and what is known."""
    reply_format, chosen = recipe.rollout.format, recipe.rollout.strategy
    _checked("format", reply_format.use, reply_format.options, "rollout.format")
    strategy = _checked("strategy", chosen.use, chosen.options, "rollout.strategy")
    recipe.plays_by(StrategyFacts.model_validate(strategy.facts))
    for label, table in recipe.reward.components.items():
        _checked("component", table.use or label, table.options, f"reward.{label}")
    if recipe.rl is not None:
        algorithm = _checked("algorithm", recipe.rl.algorithm, recipe.rl.options, "rl")
        recipe.suits(AlgorithmFacts.model_validate(algorithm.facts))


def _checked(kind: str, reference: str, options: dict[str, Any], table: str) -> PluginDescription:
    plugin = description(kind, reference)
    if told := list(_faults(plugin, options, table)):
        raise RecipeError("; ".join(told))
    return plugin


def description(kind: str, reference: str) -> PluginDescription:
    """Return what is known of a plug-in: from the cache while its sources are the same, else from its service.

    Raises `RecipeError` for one that cannot be used.
    """
    place = _cached(kind, reference)
    try:
        known = PluginDescription.model_validate_json(place.read_bytes())
    except (OSError, ValidationError):
        known = None
    if known is None or not known.current:
        known = _asked(kind, reference)
        _keep(place, known)
    return known


def _asked(kind: str, reference: str) -> PluginDescription:
    return PluginDescription.model_validate(_answer("describe", kind, reference))


def broken_promises(kind: str, reference: str) -> list[str]:
    """Return a line for each promise of its kind that a plug-in breaks. Raises `RecipeError` for one without use."""
    return [str(fault) for fault in _answer("check", kind, reference)["faults"]]


def installed(kinds: Iterable[str]) -> dict[str, list[PluginDescription] | str]:
    """Return the plug-ins of each kind that have a name here, or the reason why they cannot be known."""

    def of(kind: str) -> list[PluginDescription] | str:
        try:
            return [
                PluginDescription.model_validate(found) for found in _answers("describe", kind) if "error" not in found
            ]
        except (CliError, FleetError) as error:
            return str(error)

    names = list(kinds)
    with ThreadPoolExecutor(len(names)) as pool:  # most of a service's answer is the time to import it
        return dict(zip(names, pool.map(of, names), strict=True))


def kind_of(reference: str) -> str:
    """Return the kind of the plug-in in a file, by what it imports. Raises `UsageProblem` if that is not clear."""
    ask = f"give --kind with one of {', '.join(KINDS)}"
    if not reference.endswith(".py"):
        raise UsageProblem(f"{reference} is no .py file: {ask}")
    try:
        tree = ast.parse(Path(reference).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageProblem(f"there is no file {reference}") from None
    except (OSError, ValueError, SyntaxError) as error:
        raise UsageProblem(f"{reference} is no Python source: {' '.join(str(error).split())}") from None
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    kinds = [
        kind for kind, known in KINDS.items() if any(f"{module}.".startswith(f"{known.base}.") for module in modules)
    ]
    if not kinds and any(isinstance(node, ast.FunctionDef) and node.name == "compute_score" for node in tree.body):
        return "component"  # a function as verl has them imports nothing of ours
    if len(kinds) != 1:
        raise UsageProblem(f"{reference} imports the base class of {' and of '.join(kinds) or 'no kind'}: {ask}")
    return kinds[0]


def _answer(command: str, kind: str, reference: str) -> dict[str, Any]:
    found = _answers(command, kind, reference)[-1]
    if "error" in found:
        raise RecipeError(found["error"])
    return found


def _answers(command: str, kind: str, *references: str) -> list[dict[str, Any]]:
    program = KINDS[kind].service
    done = subprocess.run(
        [console_script(program), command, kind, "--", *references], capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        told = done.stderr.strip().splitlines() or [f"{program} ended with code {done.returncode}"]
        what = f"what the {kind} {', '.join(references)} is" if references else f"which {plural_of(kind)} there are"
        raise CliError(f"{program} cannot say {what}: {told[-1].removeprefix('error: ')}")
    return [json.loads(line) for line in lines]


def _cached(kind: str, reference: str) -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = hashlib.sha256(json.dumps([kind, reference, os.fspath(Path.cwd())]).encode()).hexdigest()[:32]
    return home / "gymfleet" / "plugins" / f"{key}.json"


def _keep(place: Path, known: PluginDescription) -> None:
    temporary = place.with_suffix(f".{os.getpid()}.tmp")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(known.model_dump_json(), encoding="utf-8")
        temporary.replace(place)
    except OSError:  # a home that cannot be written to: it is asked for again next time
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _not_ascending(_: Any, names: Sequence[str], given: Any, schema: dict[str, Any]) -> Iterator[Exception]:
    from jsonschema import ValidationError as Fault  # noqa: PLC0415

    values = [given.get(name, schema["properties"][name].get("default")) for name in names]
    if all(isinstance(value, int | float) for value in values) and values != sorted(values):
        yield Fault(f"{' <= '.join(names)} does not hold: {', '.join(map(str, values))}")


def _faults(plugin: PluginDescription, options: dict[str, Any], table: str) -> Iterator[str]:
    from jsonschema import Draft202012Validator, validators  # noqa: PLC0415 - most commands do not need it

    validator = validators.extend(Draft202012Validator, {ASCENDING: _not_ascending})
    faults = validator(plugin.options).iter_errors(options)
    for fault in sorted(faults, key=lambda fault: [str(part) for part in fault.absolute_path]):
        place = ".".join([table, *map(str, fault.absolute_path)])
        if fault.validator == "additionalProperties":
            known = ", ".join(fault.schema.get("properties", {})) or "no options"
            unknown = sorted(fault.instance.keys() - fault.schema.get("properties", {}).keys())
            yield f"{', '.join(f'{place}.{name}' for name in unknown)}: unknown; {plugin.reference} knows: {known}"
        else:
            yield f"{place}: {fault.schema.get('$comment', fault.message)}"
