"""The kinds of plug-ins, and descriptions of plug-ins without importing them here."""

import ast
import hashlib
import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gymfleet_contracts.recipe import RecipeError
from gymfleet_kit.plugins import PluginDescription, is_path, plural_of
from pydantic import ValidationError

from gymfleet_cli.console import CliError, UsageProblem
from gymfleet_cli.supervisor.errors import FleetError
from gymfleet_cli.supervisor.service import console_script, reason_of

Plugin = tuple[str, str]
"""A kind, and the reference of one of its plug-ins."""


@dataclass(frozen=True)
class _Kind:
    service: str
    """The command that knows the plug-ins: `SERVICE describe KIND REFERENCE`, `SERVICE check KIND REFERENCE`."""
    base: str
    """The module of the base class; a file that imports it is of this kind."""
    may_import: str = ""
    """Another kind whose base such a file may also import, for shared parts."""


class UnusablePlugin(RecipeError):
    """A plug-in does not exist, or cannot be used; the message says why."""

    def __init__(self, plugin: Plugin, reason: str) -> None:
        super().__init__(reason)
        self.plugin = plugin


KINDS: Final[Mapping[str, _Kind]] = {
    "environment": _Kind("gymfleet-env-server", "gymfleet_envs"),
    "strategy": _Kind("gymfleet-rollout", "gymfleet_rollout.strategy"),
    "format": _Kind("gymfleet-rollout", "gymfleet_contracts.reply_format"),
    "component": _Kind("gymfleet-reward", "gymfleet_reward"),
    "algorithm": _Kind("gymfleet-trainer", "gymfleet_trainer.learning"),
    "backend": _Kind("gymfleet-rollout", "gymfleet_rollout.backend"),
    "stage": _Kind("gymfleet-trainer", "gymfleet_trainer.stage", may_import="algorithm"),
    "converter": _Kind("gymfleet-trainer", "gymfleet_kit.data.converter"),
    "filter": _Kind("gymfleet-trainer", "gymfleet_kit.data.filter"),
    "augmenter": _Kind("gymfleet-trainer", "gymfleet_kit.data.augmenter"),
}


def description(kind: str, reference: str) -> PluginDescription:
    """Return the description of a plug-in. Raises `UnusablePlugin`."""
    return descriptions([(kind, reference)])[kind, reference]


def descriptions(plugins: Iterable[Plugin]) -> dict[Plugin, PluginDescription]:
    """Return descriptions of plug-ins: from the cache while their sources are unchanged, else from their services.

    Raises `UnusablePlugin`.
    """
    wanted = list(dict.fromkeys(plugins))
    known = {plugin: found for plugin in wanted if (found := _remembered(*plugin)) is not None}
    missing: dict[str, list[str]] = {}
    for kind, reference in wanted:
        if (kind, reference) not in known:
            missing.setdefault(kind, []).append(reference)
    with ThreadPoolExecutor(max(1, len(missing))) as pool:  # most of a service's answer is the time to import it
        for kind, answers in zip(missing, pool.map(_asked, missing, missing.values()), strict=True):
            for reference, answer in zip(missing[kind], answers, strict=True):
                known[kind, reference] = answer
                _keep(_cached(kind, reference), answer)
    return known


def _remembered(kind: str, reference: str) -> PluginDescription | None:
    try:
        found = PluginDescription.model_validate_json(_cached(kind, reference).read_bytes())
    except (OSError, ValidationError):
        return None
    return found if found.current else None


def _asked(kind: str, references: Sequence[str]) -> list[PluginDescription]:
    answers = _answers("describe", kind, *references)
    return [
        PluginDescription.model_validate(_sound(kind, reference, answer))
        for reference, answer in zip(references, answers, strict=True)
    ]


def broken_promises(kind: str, reference: str) -> list[str]:
    """Return a line for each promise of its kind that a plug-in breaks. Raises `UnusablePlugin`."""
    (answer,) = _answers("check", kind, reference)
    return [str(fault) for fault in _sound(kind, reference, answer)["faults"]]


def installed(kinds: Iterable[str]) -> dict[str, list[PluginDescription] | str]:
    """Return the named plug-ins of each kind that are installed, or the reason why they cannot be listed."""

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
    shared = {KINDS[kind].may_import for kind in kinds}
    kinds = [kind for kind in kinds if kind not in shared]
    if not kinds and any(isinstance(node, ast.FunctionDef) and node.name == "compute_score" for node in tree.body):
        return "component"  # a function as verl has them imports nothing of ours
    if len(kinds) != 1:
        raise UsageProblem(f"{reference} imports the base class of {' and of '.join(kinds) or 'no kind'}: {ask}")
    return kinds[0]


def _sound(kind: str, reference: str, answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise UnusablePlugin((kind, reference), answer["error"])
    return answer


def _answers(command: str, kind: str, *references: str) -> list[dict[str, Any]]:
    program = KINDS[kind].service
    done = subprocess.run(
        [console_script(program), command, kind, "--", *references], capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise CliError(f"{program} cannot say {_asked_for(kind, references)}: {reason_of(program, done)}")
    return [json.loads(line) for line in lines]


def _asked_for(kind: str, references: Sequence[str]) -> str:
    if not references:
        return f"which {plural_of(kind)} there are"
    named = ", ".join(references)
    return f"what the {kind} {named} is" if len(references) == 1 else f"what the {plural_of(kind)} {named} are"


def _cached(kind: str, reference: str) -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    # Within one installation, a name means the same from any directory; a path does not.
    means = os.fspath(Path(reference).resolve()) if is_path(reference) else console_script(KINDS[kind].service)
    key = hashlib.sha256(json.dumps([kind, reference, means]).encode()).hexdigest()[:32]
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
