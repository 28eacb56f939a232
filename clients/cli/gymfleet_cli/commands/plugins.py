"""`gymfleet plugins list` and `show`: the plug-ins that a recipe can name, and their options."""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import typer
from gymfleet_kit.plugins import PluginDescription
from rich.table import Table

from gymfleet_cli.console import UsageProblem, err, out, plain
from gymfleet_cli.plugins import KINDS, description, installed

app: Final = typer.Typer(help="Plug-ins: algorithms, environments and the rest.", no_args_is_help=True)

Kind = Annotated[str | None, typer.Argument(help=f"One of {', '.join(KINDS)}. Default: all.")]


@app.command("list")
def list_plugins(kind: Kind = None) -> None:
    """List the plug-ins that a recipe can name: gymfleet's own, and those that installed packages declare."""
    kinds = KINDS if kind is None else (_known(kind),)
    table = Table()
    for column in ("kind", "name", "summary"):
        table.add_column(column, overflow="fold")
    with err.status("asking the services"):
        found = installed(kinds)
    for each, plugins in found.items():
        if isinstance(plugins, str):
            err.print(plain(f"not here: {plugins}", "yellow"), soft_wrap=True)
            continue
        for plugin in plugins:
            table.add_row(each, plain(plugin.reference), plain(plugin.summary))
    out.print(table)


@app.command()
def show(
    kind: Annotated[str, typer.Argument(help=f"One of {', '.join(KINDS)}.")],
    reference: Annotated[str, typer.Argument(metavar="NAME", help="A name, package.module:Class or a .py file.")],
) -> None:
    """Describe a plug-in, and its options with their defaults."""
    plugin = description(_known(kind), reference)
    out.print(plain(f"{kind} {reference}", "bold"))
    out.print(plain(plugin.summary))
    table = Table()
    for column in ("option", "what", "default", "meaning"):
        table.add_column(column, overflow="fold")
    for row in _options(plugin):
        table.add_row(*map(plain, row))
    out.print(table if table.row_count else "no options")
    if passes_on := plugin.facts.get("passes_on"):
        out.print(plain(f"further keys are options of what {passes_on} names"))


def _known(kind: str) -> str:
    if kind not in KINDS:
        raise UsageProblem(f"{kind!r} is no kind of plug-in; known: {', '.join(KINDS)}")
    return kind


def _options(plugin: PluginDescription) -> Iterator[tuple[str, str, str, str]]:
    yield from _rows(plugin.options, plugin.options, "")


def _rows(schema: Mapping[str, Any], root: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    required = schema.get("required", ())
    for name, given in schema.get("properties", {}).items():
        option = _resolved(given, root)
        if "properties" in option:
            yield from _rows(option, root, f"{prefix}{name}.")
            continue
        default = "required" if name in required else json.dumps(given.get("default"))
        meaning = " ".join(str(given.get("description", option.get("description", ""))).split())
        yield f"{prefix}{name}", _type(option, root), default, meaning


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a reference to the schema's own definitions."""
    reference = schema.get("$ref")
    return schema if reference is None else root["$defs"][reference.rpartition("/")[2]]


def _type(schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(map(json.dumps, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(_type(_resolved(each, root), root) for each in schema["anyOf"])
    if "const" in schema:
        return json.dumps(schema["const"])
    return str(schema.get("type", "any"))
