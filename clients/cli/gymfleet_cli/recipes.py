"""A recipe with the changes from the command line."""

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any, Final

from gymfleet_contracts.faults import faults
from gymfleet_contracts.recipe import Recipe, RecipeError, load_recipe
from pydantic import ValidationError

from gymfleet_cli.console import UsageProblem
from gymfleet_cli.plugin_checks import check_plugins

_RESERVED_NAMES: Final = frozenset({".", ".."})
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


def load_with_overrides(path: Path, overrides: Sequence[str]) -> Recipe:
    """Load `path`, then set each `key=value`. Raises `RecipeError` or `UsageProblem`, which name the key."""
    recipe = load_recipe(path)
    if recipe.name in _RESERVED_NAMES:
        raise RecipeError(f"{path}: name: {recipe.name!r} cannot name a run directory")
    return _with_overrides(recipe, overrides)


def _with_overrides(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    if not overrides:
        return recipe
    document = recipe.model_dump(mode="json", exclude_unset=True)
    for override in overrides:
        _set(document, override)
    try:
        return Recipe.model_validate(document)
    except ValidationError as error:
        raise UsageProblem(f"--set: {faults(error, whole='recipe')}") from None


def load_checked(path: Path, overrides: Sequence[str]) -> Recipe:
    """Do as `load_with_overrides`, and check the plug-ins that the recipe names."""
    return checked(load_with_overrides(path, overrides), (), where=str(path))


def checked(recipe: Recipe, overrides: Sequence[str], *, where: str) -> Recipe:
    """Set each `key=value`, check the plug-ins, and return the recipe. Raises `RecipeError`, `UsageProblem`."""
    changed = _with_overrides(recipe, overrides)
    try:
        check_plugins(changed)
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from None
    return changed


def _set(document: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise UsageProblem(f"--set {override!r}: write key=value, for example stages.reinforce.steps=20")
    place: Any = document
    for depth, part in enumerate(parts[:-1], start=1):
        if isinstance(place, list):
            place = _called(part, place, parts[: depth - 1], override)
            continue
        named = _has_named_tables(parts[:depth])
        place = place.setdefault(part, [] if named else {})
        if not (isinstance(place, dict) or (named and _are_tables(place))):
            raise UsageProblem(f"--set {override!r}: {part} holds a value, not a table")
    if isinstance(place, list):
        _called(parts[-1], place, parts[:-1], override)
        raise UsageProblem(f"--set {override!r}: {parts[-1]} is a table; set a key of it: {'.'.join(parts)}.KEY=value")
    place[parts[-1]] = toml_value(text.strip())


def _has_named_tables(place: Sequence[str]) -> bool:
    """Return whether a place is `environments`, `stages` or `stages.NAME.stages`: tables there are found by name."""
    return list(place) == ["environments"] or (len(place) % 2 == 1 and set(place[::2]) == {"stages"})


def _called(name: str, tables: list[dict[str, Any]], place: Sequence[str], override: str) -> dict[str, Any]:
    """Return the stage or environment called `name`."""
    titles = [_title(table, place[-1]) for table in tables]
    if name not in titles:
        raise UsageProblem(
            f"--set {override!r}: {'.'.join(place)} has no {name}; it has: {', '.join(titles) or 'none'}"
        )
    return tables[titles.index(name)]


def _title(table: dict[str, Any], key: str) -> str:
    """Return the name of a table. Another override may have made it; whether it is valid is checked later."""
    if key == "environments":
        return str(table.get("label") or table.get("name"))
    kind = str(table.get("kind", "repeat"))
    return str(table.get("name") or (PurePath(kind).stem if kind.endswith(".py") else kind))


def toml_value(text: str) -> Any:
    """Read a TOML value; any other text is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except tomllib.TOMLDecodeError:
        return text


def to_toml(recipe: Recipe) -> str:
    """Return the recipe as TOML that loads to an equal recipe: the given values, without the defaults."""
    lines: list[str] = []
    _write_table(lines, [], recipe.model_dump(mode="json", exclude_unset=True, exclude_none=True))
    return "\n".join(lines) + "\n"


def _write_table(lines: list[str], path: list[str], table: dict[str, Any]) -> None:
    """Write a table's values before its inner tables, because everything after a header belongs to it."""
    inner = {key: value for key, value in table.items() if isinstance(value, dict) or (value and _are_tables(value))}
    lines += [f"{_key(key)} = {_literal(value)}" for key, value in table.items() if key not in inner]
    for key, value in inner.items():
        place = [*path, _key(key)]
        header = f"[{'.'.join(place)}]"
        for each in value if isinstance(value, list) else [value]:
            lines.append(f"\n[{header}]" if isinstance(value, list) else f"\n{header}")
            _write_table(lines, place, each)


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _literal(name)


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_literal(each)}" for key, each in value.items()) + "}"
    if isinstance(value, str):
        # JSON's escapes are valid in TOML; only DEL must be escaped in TOML and is not escaped in JSON.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    return repr(value) if isinstance(value, float) else json.dumps(value)
