"""Finding an environment: by its name, by `package.module:Class`, or by the path of a file."""

import inspect
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gymfleet_contracts.faults import faults
from gymfleet_contracts.session import EnvironmentSpec
from gymfleet_envs.environment import COROUTINES, AnyEnvironment, AsyncEnvironment, Environment
from gymfleet_envs.families import family_of
from gymfleet_envs.tasks import TaskDataError, TaskSource
from gymfleet_kit.plugins import PluginError, PluginKind
from pydantic import ValidationError

from gymfleet_env_server import tools
from gymfleet_env_server.models.replies import AskCounts, Model, ModelCalls
from gymfleet_env_server.shards.coroutines import Settled

KIND: Final = PluginKind[Any](
    "environment", (Environment, AsyncEnvironment), "gymfleet_envs", module="environment", extra="env-{}",
    family=family_of,
)  # fmt: skip
_REQUIRED: Final = ("name", "version", "summary", "instructions", "max_turns")
ENVIRONMENTS: Final = tuple(KIND.included())
"""The environments that come with gymfleet; the conformance suite runs over them."""


class EnvironmentUnavailable(Exception):
    """The environment cannot be served here. The message is one line that gives the reason and a remedy."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An environment, ready to be served."""

    kind: type[AnyEnvironment]
    tasks: TaskSource[Any]
    spec: EnvironmentSpec
    models: Mapping[str, Model] = field(default_factory=dict)
    """The models that answer for the roles that the environment declares, if it is served."""
    asked: AskCounts = field(default_factory=AskCounts)
    """How often the models were asked."""

    def model_calls(self, *, told: bool) -> ModelCalls | None:
        """Make the account of one episode's calls of models; None for an environment that asks none."""
        if not self.spec.models:
            return None
        return ModelCalls(self.spec, self.models, told=told, counts=self.asked)

    def make(self) -> Environment[Any] | Settled:
        """Make an instance, for one episode."""
        instance = self.kind()
        return Settled(instance) if isinstance(instance, AsyncEnvironment) else instance


def load_entry(reference: str, data: Mapping[str, Path], options: Mapping[str, Any] | None = None) -> Entry:
    """Load an environment and its tasks; `data` and `options` are keyed by name. Raises `EnvironmentUnavailable`."""
    kind = configured(reference, options)
    if kind.asked_models() and not kind.is_blocking():
        raise EnvironmentUnavailable(
            f"environment {kind.name} asks a model, for which all sessions of its process would wait: set "
            "blocking = True, or derive from AsyncEnvironment"
        )
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
    try:
        found = KIND.find(reference)
    except PluginError as error:
        raise EnvironmentUnavailable(str(error)) from error
    awaited = issubclass(found, AsyncEnvironment)
    for name in COROUTINES:
        if inspect.iscoroutinefunction(getattr(found, name)) != awaited:
            cure = f"make it async def {name}" if awaited else "derive from AsyncEnvironment"
            raise EnvironmentUnavailable(
                f"{reference}: {name} of {found.__name__} is {'not ' * awaited}async def; {cure}"
            )
    if missing := [name for name in _REQUIRED if not hasattr(found, name)]:
        raise EnvironmentUnavailable(f"{reference}: {found.__name__} must set {', '.join(missing)}")
    if len({role.name for role in found.models}) < len(found.models):
        raise EnvironmentUnavailable(f"{reference}: two models of {found.__name__} have one name")
    if len(set(found.seats)) < len(found.seats) or bool(found.seats) != found.seats_players():
        raise EnvironmentUnavailable(f"{reference}: a game names its seats, each once, and writes game()")
    if found.tools and (fault := tools.fault_of(found)) is not None:
        raise EnvironmentUnavailable(f"{reference}: {fault}")
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
