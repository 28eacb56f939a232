"""Write the tables of settings and recipe keys in docs/ from the fields of the models and the docstrings below them."""

import ast
import inspect
import json
import re
import textwrap
import types
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from gymfleet_contracts.recipe import Recipe
from gymfleet_env_gateway.settings import GatewaySettings
from gymfleet_env_server.settings import EnvServerSettings
from gymfleet_kit.data.augmenting import AUGMENTERS
from gymfleet_kit.data.converting import CONVERTERS
from gymfleet_kit.data.filtering import FILTERS
from gymfleet_kit.formats import FORMATS
from gymfleet_kit.plugins import PluginKind, options_of
from gymfleet_reward.plugins import COMPONENTS
from gymfleet_reward.settings import RewardSettings
from gymfleet_rollout.backend import BACKENDS
from gymfleet_rollout.settings import RolloutSettings
from gymfleet_rollout.strategy import STRATEGIES
from gymfleet_trainer.learning.plugins import ALGORITHMS
from gymfleet_trainer.run.plan import STAGES
from gymfleet_trainer.settings import TrainerSettings
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from scripts import models_page

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
SETTINGS: Final[tuple[type[Any], ...]] = (
    EnvServerSettings, GatewaySettings, RolloutSettings, RewardSettings, TrainerSettings,
)  # fmt: skip
MADE_AT_THE_START: Final = {"consumer"}
"""Settings whose default is another one in each process."""
_HEADING: Final = re.compile(
    r"^#{2,3} (?:`\[{1,2}(?P<table>[^\[\]]+)\]{1,2}`(?P<of> of `\w+`)?|Options of `(?P<plugin>\w+)`|(?P<top>Top level)"
    r"|.+: `(?P<prefix>GYMFLEET_\w+_)\*`)$"
)


def recipe_page() -> str:
    """docs/recipes.md, with its tables as the models have them."""
    tables = recipe_tables()

    def rows_of(found: dict[str, str | None]) -> list[str] | None:
        return tables.get(_named(found))

    return _with_rows(DOCS / "recipes.md", rows_of)


def tables_on(page: str) -> set[str]:
    """The tables of keys for which a page has a heading, as `recipe_tables` names them."""
    return {_named(found.groupdict()) for line in page.splitlines() if (found := _HEADING.match(line))}


def _named(found: dict[str, str | None]) -> str:
    if found["plugin"]:
        return f"options of {found['plugin']}"
    return (found["table"] or "") + (found["of"] or "").replace("`", "")


def recipe_tables() -> dict[str, list[str]]:
    """The rows of every table of a recipe, by its name; "" is the top level."""
    tables = dict(_recipe_tables(Recipe))
    kinds: tuple[tuple[PluginKind[Any], str], ...] = (
        (ALGORITHMS, "stages"), (FORMATS, "rollout.format"), (BACKENDS, "inference"),
        (STRATEGIES, "rollout.strategy"),
        (CONVERTERS, "stages.converter"), (FILTERS, "stages.filters"), (AUGMENTERS, "stages.augmenter"),
    )  # fmt: skip
    for kind, table in kinds:
        for name in kind.included():
            options = options_of(kind.find(name))
            # A table that several know has the defaults of most; the page says which plug-in begins with others.
            tables = dict(_recipe_tables(options, tuple(table.split(".")), own=f"options of {name}")) | tables

    for name in COMPONENTS.included():
        tables |= dict(_recipe_tables(COMPONENTS.find(name).Options, ("reward", name)))
    for name in STAGES.included():
        own = _recipe_tables(STAGES.find(name).Options, ("stages",), own=f"options of {name}")
        tables |= {table if table.startswith("options") else f"{table} of {name}": rows for table, rows in own}
    return {table: rows for table, rows in tables.items() if rows}


def settings_page() -> str:
    """docs/reference.md, likewise."""
    tables = {settings.model_config["env_prefix"]: _setting_rows(settings) for settings in SETTINGS}
    return _with_rows(DOCS / "reference.md", lambda found: tables.get(found["prefix"] or ""))


def _with_rows(page: Path, rows_of: Any) -> str:
    """The page with the first table below each heading that `rows_of` knows rewritten."""
    lines: list[str] = []
    pending: list[str] | None = None
    inside = False
    for line in page.read_text(encoding="utf-8").splitlines():
        if found := _HEADING.match(line):
            pending = rows_of(found.groupdict())
        if inside and line.startswith("|"):
            continue
        inside = False
        lines.append(line)
        if pending is not None and line.startswith("|---"):
            lines += pending
            pending, inside = None, True
    return "\n".join(lines) + "\n"


def _recipe_tables(
    model: type[BaseModel], path: tuple[str, ...] = (), *, own: str = ""
) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of each table by its name; `own` is another name for that of the model itself."""
    model.model_rebuild()  # until then a field may name a model that stands further down in its module
    rows = []
    for name, field in model.model_fields.items():
        if (inner := _inner_model(field)) is model:  # stages that are repeated have the keys of stages
            continue
        if inner is not None:
            yield from _recipe_tables(inner, (*path, name))
        else:
            default = f'`"{field.default}"`' if isinstance(field.default, str) else shown(field)
            rows.append(f"| `{name}` | {default} | {meaning(model, name)} |")
    yield own or ".".join(path), rows


def _setting_rows(settings: type[Any]) -> list[str]:
    prefix = settings.model_config["env_prefix"]
    return [
        f"| `{prefix}{name.upper()}` | {'made at the start' if name in MADE_AT_THE_START else shown(field)} "
        f"| {meaning(settings, name)} |"
        for name, field in settings.model_fields.items()
    ]


def shown(field: FieldInfo) -> str:
    """A default as the pages write it."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "`none`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple | dict):
        return f"`{json.dumps(value, default=BaseModel.model_dump)}`"
    return f"`{value}`"


def meaning(model: type[Any], name: str) -> str:
    """The docstring below a field, on one line. Raises `LookupError` where there is none."""
    for owner in model.__mro__:
        if name in inspect.get_annotations(owner):
            if name not in (told := _docstrings(owner)):
                raise LookupError(f"{owner.__name__}.{name} has no docstring below it")
            return told[name]
    raise LookupError(f"{model.__name__} has no field {name}")


@cache
def _docstrings(owner: type[Any]) -> dict[str, str]:
    """By field. Read from the source: pydantic would do so each time that the model is imported."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(definition, ast.ClassDef)
    told = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            text = ast.literal_eval(below.value)
            told[field.target.id] = " ".join(str(text).split())
    return told


def _inner_model(field: FieldInfo) -> type[BaseModel] | None:
    inside = typing.get_args(field.annotation)
    models = [kind for kind in (field.annotation, *inside) if isinstance(kind, type) and issubclass(kind, BaseModel)]
    if typing.get_origin(field.annotation) in (typing.Union, types.UnionType):
        others = [kind for kind in inside if kind not in (*models, type(None))]
        return None if others else next(iter(models), None)  # a number that may be a table instead is a key
    return next(iter(models), None)


def main() -> None:
    """Write all pages."""
    for page, text in ((DOCS / "recipes.md", recipe_page()), (DOCS / "reference.md", settings_page())):
        page.write_text(text, encoding="utf-8")
    models_page.main()


if __name__ == "__main__":
    main()
