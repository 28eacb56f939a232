"""Making a data plug-in from its place in a recipe."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, TypeVar

from gymfleet_kit.plugins import PluginError, PluginKind, checked_options, options_of

Base = TypeVar("Base")


def made(kind: PluginKind[Base], given: str | Mapping[str, Any], *, table: str) -> tuple[str, Base]:
    """Return a plug-in, and its name in messages, from a name, or from a table with `use` and options.

    Raises `PluginError` if it does not exist, cannot be made, or does not take the options.
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
    """Return one line about an error raised by a plug-in."""
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no reason given'}"
