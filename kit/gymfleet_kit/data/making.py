"""A plug-in for data from where a recipe names it."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, TypeVar

from gymfleet_kit.plugins import PluginError, PluginKind, checked_options, options_of

Base = TypeVar("Base")


def made(kind: PluginKind[Base], given: str | Mapping[str, Any], *, table: str) -> tuple[str, Base]:
    """Return a plug-in, and what it is called in messages: of a name, or of a table with `use` and options.

    Raises `PluginError` for one that does not exist or cannot be made, and for options that it does not take.
    """
    options = {"use": given} if isinstance(given, str) else dict(given)
    use = options.pop("use", None)
    if not isinstance(use, str):
        raise PluginError(f'{table}: give the name of a {kind.name}, or a table as {{ use = "NAME", ... }}')
    name = PurePath(use).stem if use.endswith(".py") or "/" in use else use
    found: Any = kind.find(use)
    checked = checked_options(options_of(found), options, table=table, owner=use)
    try:
        plugin: Base = found(checked)
    except (Exception, SystemExit) as error:
        raise PluginError(f"the {kind.name} {name} cannot be made: {told(error)}") from error
    return name, plugin


def told(error: BaseException) -> str:
    """Return one line about what a plug-in raised."""
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no reason given'}"
