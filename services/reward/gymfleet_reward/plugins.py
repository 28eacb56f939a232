"""The components of a reward, with their options."""

import inspect
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from gymfleet_contracts.reward import ComponentTable, RewardSpec
from gymfleet_kit.plugins import PluginError, PluginKind, checked_options, hash_of, options_of
from gymfleet_kit.sealing import Opener

from gymfleet_reward.component import Component, ComponentOptions
from gymfleet_reward.functions import FUNCTION, component_of
from gymfleet_reward.judging.judge import Judges

if TYPE_CHECKING:
    from gymfleet_reward.models.reward_models import RewardModels

_HASH_CHARS: Final = 12
_MAX_KEPT: Final = 256


class ComponentKind(PluginKind[Component[Any]]):
    """Components are classes, or functions as in verl."""

    def _exported(self, module: ModuleType, reference: str) -> type[Component[Any]]:
        function = getattr(module, FUNCTION, None)
        classes = (value for value in vars(module).values() if inspect.isclass(value))
        own = any(issubclass(value, Component) and value.__module__ == module.__name__ for value in classes)
        if own or hasattr(module, self.export) or not inspect.isfunction(function):
            return super()._exported(module, reference)
        return self._checked(function, reference, FUNCTION)

    def _checked(self, found: Any, reference: str, what: str) -> type[Component[Any]]:
        component = super()._checked(component_of(found) if inspect.isfunction(found) else found, reference, what)
        if component.per not in ("episode", "group"):
            raise PluginError(f"{reference}: per is {component.per!r}, it must be 'episode' or 'group'")
        if missing := component.missing():
            raise PluginError(f"{reference}: {what} must define {missing}")
        if not issubclass(options_of(component), ComponentOptions):
            raise PluginError(f"{reference}: the Options of {what} are no subclass of ComponentOptions")
        return component


COMPONENTS: Final = ComponentKind("component", (Component,), "gymfleet_reward.components")


@dataclass(frozen=True, slots=True)
class Term:
    """A component of a reward, under its label."""

    label: str
    reference: str
    component: Component[Any]
    version: str
    immediate: bool
    """Whether it comes with gymfleet and reads only the episode: it never waits, and a retry gives the same answer."""


class Terms:
    """Find the components of rewards, and keep them: loading one takes much longer than scoring with it.

    Args:
        plugins: references that may be used in addition to names.
        load: calls a function that imports other people's code.
        opener: opens the environments' private data for the reward service; None without a key.
        judges: the judges that components may ask.
        models: the reward models; None if there are none.
    """

    def __init__(
        self,
        plugins: Collection[str],
        load: Callable[[Callable[[], Term]], Term],
        opener: Opener | None = None,
        judges: Judges | None = None,
        models: "RewardModels | None" = None,
    ) -> None:
        self._opener = opener
        self._judges = judges
        self._models = models
        self._plugins = plugins
        self._load = load
        self._loading = threading.Lock()
        self._kept: dict[str, tuple[Term, ...]] = {}

    def of(self, spec: RewardSpec, key: str) -> tuple[Term, ...]:
        """Return the terms that count; `key` is equal for equal components. Raises `PluginError`."""
        if (known := self._kept.get(key)) is not None:
            return known
        with self._loading:  # a module that is half imported must not be met
            terms = tuple(
                self._load(partial(self._term, label, table))
                for label, table in spec.components.items()
                if table.enabled
            )
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            self._kept[key] = terms
        return terms

    def forget(self) -> None:
        """Forget all components, so that they are made anew when they are needed next."""
        self._kept.clear()

    def _term(self, label: str, table: ComponentTable) -> Term:
        reference = table.use or label
        kind = COMPONENTS.offered(reference, self._plugins)
        options = checked_options(kind.Options, table.options, table=f"reward.{label}", owner=reference)
        try:
            component = kind(options)
        except Exception as error:
            reason = " ".join(str(error).split())
            raise PluginError(
                f"reward.{label}: {reference} cannot be made: {type(error).__name__}: {reason}"
            ) from error
        component.opener = self._opener
        component.judges = self._judges
        component.reward_models = self._models
        own = kind.__module__.startswith(f"{COMPONENTS.package}.")
        immediate = own and not component.in_batches() and not inspect.iscoroutinefunction(component.score)
        version = component.recorded_version() if own else _source(kind)
        return Term(label, reference, component, version, immediate)


def _source(kind: type) -> str:
    """Return a hash that changes with the component's source."""
    return hash_of(Path(inspect.getfile(kind)))[:_HASH_CHARS]
