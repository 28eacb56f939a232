"""How an environment is found: by its name, by `package.module:Class`, or by the path of a file."""

import importlib
import importlib.util
import inspect
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from gymfleet_contracts.faults import faults
from gymfleet_contracts.session import EnvironmentSpec
from gymfleet_envs.environment import COROUTINES, AnyEnvironment, AsyncEnvironment, Environment
from gymfleet_envs.tasks import TaskDataError, TaskSource
from pydantic import ValidationError

from gymfleet_env_server.shards.coroutines import Settled

ENVIRONMENTS: Final = (
    "maze", "textcraft", "wordle", "babyai", "db", "sql", "os", "webshop", "sciworld", "alfworld",
)  # fmt: skip
"""The environments that come with gymfleet; the conformance suite runs over them."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_REQUIRED: Final = ("name", "version", "summary", "instructions", "max_turns")


class EnvironmentUnavailable(Exception):
    """The environment cannot be served here. The message is one line that gives the reason and a remedy."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An environment, ready to be served."""

    kind: type[AnyEnvironment]
    tasks: TaskSource[Any]
    spec: EnvironmentSpec

    def make(self) -> Environment[Any] | Settled:
        """Make an instance, for one episode."""
        instance = self.kind()
        return Settled(instance) if isinstance(instance, AsyncEnvironment) else instance


def load_entry(reference: str, data: Mapping[str, Path], options: Mapping[str, Any] | None = None) -> Entry:
    """Load an environment and its tasks; `data` and `options` are keyed by name. Raises `EnvironmentUnavailable`."""
    kind = configured(reference, options)
    try:
        tasks = kind.task_source(data.get(kind.name))
        return Entry(kind=kind, tasks=tasks, spec=kind.spec(tasks))
    except TaskDataError as error:
        raise EnvironmentUnavailable(f"environment {kind.name}: {error}") from None
    except ValidationError as error:
        raise EnvironmentUnavailable(f"environment {reference} describes itself wrongly: {faults(error)}") from None
    except (ImportError, FileNotFoundError) as error:  # an engine's package, or a program such as Java
        raise EnvironmentUnavailable(f"environment {kind.name} lacks its engine: {error}") from None


def configured(reference: str, options: Mapping[str, Any] | None = None) -> type[AnyEnvironment]:
    """Return the class, with the operator's options set and its programs found. Raises `EnvironmentUnavailable`."""
    kind = find_environment(reference)
    _configure(kind, (options or {}).get(kind.name, {}))
    return kind


def find_environment(reference: str) -> type[AnyEnvironment]:
    """Return the class for a name, a `package.module:Class` or a path. Raises `EnvironmentUnavailable`."""
    if reference.endswith(".py") or "/" in reference:
        return _exported(_from_file(Path(reference)), reference)
    if ":" in reference:
        module_name, _, class_name = reference.partition(":")
        return _checked(getattr(_imported(module_name, reference), class_name, None), reference, class_name)
    if _NAME.fullmatch(reference) is None:
        raise EnvironmentUnavailable(f"{reference!r} names no environment; {_hint()}")
    module_name = f"gymfleet_envs.{reference}.environment"
    if reference == "runtime" or _spec_of(module_name) is None:
        raise EnvironmentUnavailable(f"there is no environment {reference!r}; {_hint()}")
    return _exported(_imported(module_name, reference), reference)


def _hint() -> str:
    return f"known: {', '.join(ENVIRONMENTS)}; or give package.module:Class or the path of a .py file"


def _spec_of(module_name: str) -> object | None:
    try:
        return importlib.util.find_spec(module_name)
    except ModuleNotFoundError:
        return None


def _imported(module_name: str, reference: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        missing = error.name or str(error)
        if missing == module_name or module_name.startswith(f"{missing}."):
            raise EnvironmentUnavailable(f"there is no module {missing!r}; {_hint()}") from None
        extra = f"; install gymfleet[env-{reference}]" if _NAME.fullmatch(reference) else ""
        raise EnvironmentUnavailable(f"environment {reference} needs the package {missing!r}{extra}") from None


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise EnvironmentUnavailable(f"there is no file {path}")
    module_name = f"gymfleet_local_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise EnvironmentUnavailable(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look classes up by their module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise EnvironmentUnavailable(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _exported(module: ModuleType, reference: str) -> type[AnyEnvironment]:
    """Return the module's `ENVIRONMENT`, else the only environment that it defines."""
    found = getattr(module, "ENVIRONMENT", None)
    if found is None:
        own = [
            value
            for value in vars(module).values()
            if inspect.isclass(value)
            and issubclass(value, Environment | AsyncEnvironment)
            and not inspect.isabstract(value)
            and value.__module__ == module.__name__
        ]
        if len(own) != 1:
            raise EnvironmentUnavailable(f"{reference} must say ENVIRONMENT = <its Environment subclass>")
        found = own[0]
    return _checked(found, reference, "ENVIRONMENT")


def _checked(found: object, reference: str, what: str) -> type[AnyEnvironment]:
    if not (inspect.isclass(found) and issubclass(found, Environment | AsyncEnvironment)):
        raise EnvironmentUnavailable(f"{reference}: {what} is not a subclass of gymfleet_env_server's Environment")
    if inspect.isabstract(found):
        raise EnvironmentUnavailable(f"{reference}: {what} must define {', '.join(sorted(found.__abstractmethods__))}")
    awaited = issubclass(found, AsyncEnvironment)
    for name in COROUTINES:
        if inspect.iscoroutinefunction(getattr(found, name)) != awaited:
            cure = f"make it async def {name}" if awaited else "derive from AsyncEnvironment"
            raise EnvironmentUnavailable(f"{reference}: {name} of {what} is {'not ' * awaited}async def; {cure}")
    if missing := [name for name in _REQUIRED if not hasattr(found, name)]:
        raise EnvironmentUnavailable(f"{reference}: {what} must set {', '.join(missing)}")
    return found


def _configure(kind: type[AnyEnvironment], given: Mapping[str, Any]) -> None:
    """Set the operator's options, and look for the programs that they require."""
    known = type(kind.options)
    try:
        kind.options = known.model_validate(given)
    except ValidationError as error:
        names = ", ".join(known.model_fields) or "none"
        raise EnvironmentUnavailable(
            f"GYMFLEET_ENV_OPTIONS for {kind.name}: {faults(error)} (it knows: {names})"
        ) from None
    if absent := [program for program in kind.programs() if shutil.which(program) is None]:
        raise EnvironmentUnavailable(f"environment {kind.name} needs the program {absent[0]!r}, which is not on PATH")
