"""A recipe with the changes that the command line asks for."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gymfleet_contracts.faults import faults
from gymfleet_contracts.recipe import Recipe, RecipeError, load_recipe
from pydantic import ValidationError

from gymfleet_cli.console import UsageProblem
from gymfleet_cli.plugins import check_plugins

_RESERVED_NAMES: Final = frozenset({".", ".."})


def load_with_overrides(path: Path, overrides: Sequence[str]) -> Recipe:
    """Load `path`, then set each `key=value`. Raises `RecipeError` or `UsageProblem`, which name the key."""
    recipe = load_recipe(path)
    if recipe.name in _RESERVED_NAMES:
        raise RecipeError(f"{path}: name: {recipe.name!r} cannot name a run directory")
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
    recipe = load_with_overrides(path, overrides)
    try:
        check_plugins(recipe)
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from None
    return recipe


def _set(document: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise UsageProblem(f"--set {override!r}: write key=value, for example rl.steps=20")
    table = document
    for part in parts[:-1]:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise UsageProblem(f"--set {override!r}: {part} holds a value, not a table")
        table = inner
    table[parts[-1]] = _value(text.strip())


def _value(text: str) -> Any:
    """Read a TOML value; a word that is not one is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except tomllib.TOMLDecodeError:
        return text


def to_toml(recipe: Recipe) -> str:
    """Return the recipe as TOML that loads to an equal recipe."""
    lines: list[str] = []
    _write_table(lines, [], recipe.model_dump(mode="json", exclude_none=True))
    return "\n".join(lines) + "\n"


def _write_table(lines: list[str], path: list[str], table: dict[str, Any]) -> None:
    inner = {key: value for key, value in table.items() if isinstance(value, dict)}
    if path:
        lines.append(f"\n[{'.'.join(path)}]")
    lines += [f"{key} = {_literal(value)}" for key, value in table.items() if key not in inner]
    for key, value in inner.items():
        _write_table(lines, [*path, key], value)


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    if isinstance(value, str):
        # JSON's escapes are valid in TOML; only DEL must be escaped in TOML and is not escaped in JSON.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    return repr(value) if isinstance(value, float) else json.dumps(value)
