"""Find plug-ins: by a name, by `package.module:Class`, or by the path of a file.

A name belongs to a plug-in that comes with gymfleet, or to one that an installed package declares as an entry point.
"""

import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Generic, TypeVar

from gymfleet_contracts.faults import faults
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_SHOWN: Final = 80
ASCENDING: Final = "x-ascending"
"""A keyword for the JSON Schema of options: a list of names of numbers, none of which may exceed the next."""
Base = TypeVar("Base")
OptionsT = TypeVar("OptionsT", bound=BaseModel)


class PluginError(Exception):
    """The plug-in cannot be used. The message is one line that gives the reason and a remedy."""


@dataclass(frozen=True)
class PluginKind(Generic[Base]):
    """One kind of plug-in, such as algorithms."""

    name: str
    """The name in the singular, for messages."""
    bases: tuple[type[Base], ...]
    """A plug-in is a concrete subclass of one of these."""
    package: str
    """The package with the plug-ins that come with gymfleet: a module or folder for each, under the plug-in's name."""
    module: str = ""
    """The module with the class in each folder of that package; empty if each plug-in is a module."""
    extra: str = ""
    """The installation extra with the imports of a plug-in that comes with gymfleet; `{}` stands for its name."""
    family: Callable[[str], str] = str
    """Returns what replaces `{}` for a plug-in's name, if several plug-ins share an extra."""

    @property
    def export(self) -> str:
        """Return the name of the variable by which a module with several classes exports one of them."""
        return self.name.upper()

    @property
    def group(self) -> str:
        """Return the group of entry points in which packages declare plug-ins of this kind."""
        return f"gymfleet.{self.plural}"

    @property
    def plural(self) -> str:
        """Return the name in the plural."""
        return plural_of(self.name)

    def included(self) -> list[str]:
        """Return the names of the plug-ins that come with gymfleet, sorted, without importing them."""
        return included(self.package, self.module)

    def names(self) -> list[str]:
        """Return the names of all plug-ins here, sorted, without importing them. Raises `PluginError`."""
        return sorted({*self.included(), *self._installed()})

    def find(self, reference: str) -> type[Base]:
        """Return the class that a reference names. Raises `PluginError`."""
        if is_path(reference):
            return self._exported(self._from_file(Path(reference)), reference)
        if ":" in reference:
            module_name, _, class_name = reference.partition(":")
            module = self._imported(module_name, reference)
            return self._checked(getattr(module, class_name, None), reference, class_name)
        if _NAME.fullmatch(reference) is None:
            raise PluginError(f"{reference!r} names no {self.name}; {self._hint()}")
        if (installed := self._installed().get(reference)) is not None:
            module = self._imported(installed.module, reference)
            return self._checked(getattr(module, installed.attr, None), installed.value, installed.attr)
        if reference not in self.included():
            raise PluginError(f"there is no {self.name} {reference!r}; {self._hint()}")
        return self._exported(self._imported(self._module_of(reference), reference), reference)

    def offered(self, reference: str, more: Collection[str]) -> type[Base]:
        """Return the class of a name, or of a reference that is in `more`. Raises `PluginError` for any other.

        For references that come over the wire: the sender of a request must not choose the code that is imported.
        """
        if _NAME.fullmatch(reference) is None and reference not in more:
            raise PluginError(
                f"this service was not given the {self.name} {reference[:_SHOWN]!r}: its operator lists those in its "
                f"setting PLUGINS; known without that: {', '.join(self.names())}"
            )
        return self.find(reference)

    def _hint(self) -> str:
        return f"known: {', '.join(self.names())}; or give package.module:Class or the path of a .py file"

    def _module_of(self, name: str) -> str:
        return ".".join(part for part in (self.package, name, self.module) if part)

    def _installed(self) -> dict[str, EntryPoint]:
        """Return the entry points by name. Raises `PluginError` if two packages, or one and gymfleet, share a name."""
        found: dict[str, EntryPoint] = {}
        included = self.included()
        for point in declared(self.group):
            if point.name in found or point.name in included:
                other = found[point.name].value if point.name in found else self._module_of(point.name)
                raise PluginError(
                    f"two {self.plural} are called {point.name!r}, {other} and {point.value}: uninstall one of the "
                    "packages, or have it renamed"
                )
            found[point.name] = point
        return found

    def _imported(self, module_name: str, reference: str) -> ModuleType:
        try:
            return importlib.import_module(module_name)
        except ImportError as error:
            missing = error.name or str(error)
            if missing == module_name or module_name.startswith(f"{missing}."):
                raise PluginError(f"there is no module {missing!r}; {self._hint()}") from None
            remedy = self.extra.format(self.family(reference)) if self.extra and _NAME.fullmatch(reference) else ""
            install = f"; install gymfleet[{remedy}]" if remedy else ""
            raise PluginError(f"{self.name} {reference} needs the package {missing!r}{install}") from None
        except (Exception, SystemExit) as error:
            raise PluginError(_told(module_name, error)) from error

    def _from_file(self, path: Path) -> ModuleType:
        if not path.is_file():
            raise PluginError(f"there is no file {path}")
        # By path and content, so that files of one name do not collide, and a file is imported once.
        identity = hashlib.sha256(f"{path.resolve()}\0{hash_of(path)}".encode()).hexdigest()[:12]
        module_name = f"gymfleet_local_{path.stem}_{identity}"
        if (known := sys.modules.get(module_name)) is not None:
            return known
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise PluginError(f"{path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module  # dataclasses and pickle look classes up by their module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[module_name]
            raise PluginError(_told(str(path), error)) from error
        return module

    def _exported(self, module: ModuleType, reference: str) -> type[Base]:
        """Return the class that the module exports explicitly, else the only plug-in that it defines."""
        found = getattr(module, self.export, None)
        if found is None:
            own = [
                value
                for value in vars(module).values()
                if inspect.isclass(value)
                and issubclass(value, self.bases)
                and not inspect.isabstract(value)
                and value.__module__ == module.__name__
            ]
            if len(own) != 1:
                base = self.bases[0].__name__
                raise PluginError(f"{reference} must say {self.export} = <its {base} subclass>")
            found = own[0]
        return self._checked(found, reference, self.export)

    def _checked(self, found: Any, reference: str, what: str) -> type[Base]:
        if not (inspect.isclass(found) and issubclass(found, self.bases)):
            base = self.bases[0]
            raise PluginError(f"{reference}: {what} is not a subclass of {base.__module__}.{base.__qualname__}")
        if inspect.isabstract(found):
            missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
            raise PluginError(f"{reference}: {what} must define {missing}")
        return found


def declared(group: str) -> EntryPoints:
    """Return the entry points of a group that installed packages declare."""
    return _entry_points(group, tuple(map(_place_of, sys.path)))


# Looking at all installed packages is slow; installing one changes the modification time of its directory.
@lru_cache(maxsize=32)
def _entry_points(group: str, places: tuple[tuple[str, int], ...]) -> EntryPoints:  # noqa: ARG001 - where it looks
    return entry_points(group=group)


def _place_of(directory: str) -> tuple[str, int]:
    """Return a directory, and the time at which an entry was last added to it or removed."""
    try:
        return directory, Path(directory or ".").stat().st_mtime_ns
    except OSError:
        return directory, 0


class PluginDescription(BaseModel):
    """The facts that others need about a plug-in without importing it, which may take seconds."""

    kind: str
    reference: str
    summary: str
    """The first line of its docstring."""
    options: dict[str, JsonValue]
    """The JSON Schema of its options."""
    facts: dict[str, JsonValue]
    """Its requirements on the rest of a recipe."""
    sources: dict[str, str]
    """The files from which this was read, with their hashes: the description holds until one of them changes."""

    @property
    def current(self) -> bool:
        """Return whether the files are still the same."""
        return self.sources == {path: hash_of(Path(path)) for path in self.sources}


class NoOptions(BaseModel):
    """The options of a plug-in that has none."""

    model_config = ConfigDict(extra="forbid")


def options_of(found: type) -> type[BaseModel]:
    """Return the model of a plug-in's options. Raises `PluginError` if `Options` is not a pydantic model.

    The class of an environment holds the options themselves, as `options`: they are the same for all its sessions.
    """
    options = getattr(found, "Options", type(getattr(found, "options", NoOptions())))
    if not (inspect.isclass(options) and issubclass(options, BaseModel)):
        raise PluginError(f"{found.__module__}.{found.__qualname__}: Options is not a pydantic model")
    return options


def described(kind: str, reference: str, found: type) -> PluginDescription:
    """Describe a plug-in whose class was found; the class is not kept. Raises `PluginError`."""
    options, facts = options_of(found), getattr(found, "facts", NoOptions())
    files = {file for owner in (*found.__mro__, *options.__mro__, type(facts)) for file in _files_of(owner)}
    return PluginDescription(
        kind=kind,
        reference=reference,
        summary=next(iter(inspect.cleandoc(found.__doc__ or "").splitlines()), ""),
        options=options.model_json_schema(),
        facts=facts.model_dump(mode="json"),
        sources={str(path): hash_of(path) for path in sorted(files)},
    )


def hash_of(path: Path) -> str:
    """Return a hash of a file's content; empty if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def plural_of(name: str) -> str:
    """Return the name in the plural."""
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"


def is_path(reference: str) -> bool:
    """Return whether a reference is the path of a file, rather than a name or `package.module:Class`."""
    return reference.endswith(".py") or "/" in reference


def source_of(kind: str, reference: str) -> Path | None:
    """Return the file of a plug-in without importing its module; its kind may belong to another service.

    None for a plug-in that comes with gymfleet, and if the module cannot be found here.
    """
    if is_path(reference):
        return Path(reference).resolve()
    installed = next(
        (point.value for point in declared(f"gymfleet.{plural_of(kind)}") if point.name == reference), reference
    )
    module, colon, _ = installed.partition(":")
    try:
        spec = importlib.util.find_spec(module) if colon else None
    except Exception:  # noqa: BLE001 - the packages above it are imported, and may raise anything
        spec = None
    return Path(spec.origin).resolve() if spec is not None and spec.origin is not None else None


def _files_of(owner: type) -> list[Path]:
    """Return the files that a class depends on: its module, or every module of its package if that is gymfleet's."""
    package = owner.__module__.partition(".")[0]
    file = getattr(sys.modules.get(owner.__module__), "__file__", None)
    if file is None or package in sys.stdlib_module_names or package == "pydantic":
        return []
    root = getattr(sys.modules[package], "__file__", None)
    if not package.startswith("gymfleet_") or root is None or not root.endswith("__init__.py"):
        return [Path(file).resolve()]
    return sorted(Path(root).resolve().parent.rglob("*.py"))


def checked_options(model: type[OptionsT], given: Mapping[str, Any], *, table: str, owner: str) -> OptionsT:
    """Return a plug-in's options. Raises `PluginError` with the key's place in the recipe and `owner`'s options."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        told = faults(error, within=table)
        unknown = any(fault["type"] == "extra_forbidden" for fault in error.errors(include_url=False))
        known = f" (the options of {owner}: {', '.join(model.model_fields) or 'none'})" if unknown else ""
        raise PluginError(told + known) from None


def included(package: str, module: str = "") -> list[str]:
    """Return the names of the plug-ins in a package of gymfleet, sorted, without importing any of them.

    They are the names of its modules; with `module`, of its folders that have a module of this name.
    """
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    names = [info.name for info in pkgutil.iter_modules(places) if info.ispkg is bool(module)]
    if module:
        names = [name for name in names if any((Path(place) / name / f"{module}.py").is_file() for place in places)]
    return sorted(name for name in names if not name.startswith("_"))


def _told(where: str, error: BaseException) -> str:
    """Return one line about a module that raised while it was imported."""
    reason = " ".join(str(error).split()) or "no reason given"
    return f"{where} cannot be imported: {type(error).__name__}: {reason}"
