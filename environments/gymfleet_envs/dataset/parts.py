"""Find scorers and tools: each is a module of a package, or somebody's own class."""

import importlib
import inspect
import pkgutil
from typing import Any, TypeVar

PartT = TypeVar("PartT")


class UnknownPart(LookupError):
    """There is no such scorer or tool. The message lists those that exist."""


def names_in(package: str) -> tuple[str, ...]:
    """Return the names of the parts that come with gymfleet."""
    found = importlib.import_module(package)
    return tuple(sorted(module.name for module in pkgutil.iter_modules(found.__path__)))


def find_part(reference: str, package: str, base: type[PartT], what: str) -> type[PartT]:
    """Return the class for a name, or for `package.module:Class`. Raises `UnknownPart`."""
    module, colon, name = reference.partition(":")
    if not colon:
        if reference not in names_in(package):
            known = ", ".join(names_in(package))
            raise UnknownPart(f"unknown {what} {reference!r}; known: {known}, or package.module:Class")
        return _class_of(importlib.import_module(f"{package}.{reference}"), base)
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownPart(f"{what} {reference!r} cannot be imported: {error}") from None
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise UnknownPart(f"{what} {reference!r} is no subclass of {base.__module__}.{base.__name__}")
    return found


def _class_of(module: Any, base: type[PartT]) -> type[PartT]:
    """Return the class that one of gymfleet's modules defines."""
    return next(
        kind
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, base) and kind.__module__ == module.__name__ and not inspect.isabstract(kind)
    )
