"""The stages of a recipe with checked options, and the files of the plug-ins that the recipe names."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gymfleet_contracts.recipe import Recipe, RecipeError
from gymfleet_contracts.session import EnvironmentSpec
from gymfleet_contracts.stages import PlannedStage, StagesError, check_stages
from gymfleet_kit.formats import format_of
from gymfleet_kit.plugins import PluginKind, checked_options, hash_of, source_of

from gymfleet_trainer.stage import Stage

STAGES: Final = PluginKind[Stage[Any]]("stage", (Stage,), "gymfleet_trainer.stages")
_MAX_HELD: Final = 8_000


def stages_of(recipe: Recipe) -> list[Stage[Any]]:
    """Return the stages in the order in which they are carried out.

    Raises:
        PluginError: a plug-in does not exist, or does not take its options.
        RecipeError: the stages do not suit each other, or the rest of the recipe.
    """
    for section in recipe.formats().values():
        format_of(section)
    recipe.strategies()
    plan = recipe.plan()
    kinds = {stage.kind: STAGES.find(stage.kind) for stage in plan}
    try:
        check_stages(plan, {reference: kind.facts for reference, kind in kinds.items()})
        stages = [_stage(kinds[planned.kind], planned) for planned in plan]
    except StagesError as error:
        raise RecipeError(str(error)) from None
    for stage, planned in zip(stages, plan, strict=True):
        _require_dtype(recipe, planned)
        stage.check(recipe, planned)
        # Unacknowledged deliveries stay below the stream length at which producers wait.
        if (number := stage.held(recipe)) > _MAX_HELD:
            raise RecipeError(f"{stage.table}: {number} episodes would be open at once; at most {_MAX_HELD} can be")
    return stages


def require_held_out(recipe: Recipe, specs: Iterable[EnvironmentSpec], stages: Iterable[Stage[Any]]) -> None:
    """Raise `RecipeError` for a measurement of more tasks than there are: held-out tasks are never played twice.

    For levels other than an environment's default, the number of tasks is unknown.
    """
    by_name = {spec.name: spec for spec in specs}
    for plays, table in ((plays, stage.table) for stage in stages for plays in stage.plays().values()):
        for env in recipe.environments if plays.purpose == "eval" else ():
            spec = by_name[env.name]
            there = spec.splits.get(env.eval_split, 0)
            is_default = (plays.level or env.changed(None).level) in (None, spec.default_level)
            if is_default and plays.num_tasks > there:
                raise RecipeError(
                    f"{table} measures {plays.num_tasks} tasks, and {env.title} has {there} in its {env.eval_split} "
                    f"split: give num_tasks of at most {there}"
                )


def _require_dtype(recipe: Recipe, planned: PlannedStage) -> None:
    """Raise `RecipeError` if weights would be held in a lower precision than the trainer computes in."""
    if recipe.trainer_dtype == "bfloat16":
        return
    for table in _in_bfloat16(planned.options, planned.table):
        raise RecipeError(
            f'{table}.master_dtype = "bfloat16" and trainer_dtype = "{recipe.trainer_dtype}": weights that are held in '
            'bfloat16 are computed with in bfloat16; give trainer_dtype = "bfloat16"'
        )


def _in_bfloat16(options: Mapping[str, Any], table: str) -> Iterator[str]:
    """Yield the tables of optimisers whose weights are in bfloat16."""
    if options.get("master_dtype") == "bfloat16":
        yield table
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _in_bfloat16(value, f"{table}.{name}")


def _stage(kind: type[Stage[Any]], planned: PlannedStage) -> Stage[Any]:
    options = checked_options(kind.Options, planned.options, table=planned.table, owner=planned.kind)
    return kind(planned, options)


def own_sources(recipe: Recipe) -> dict[str, str]:
    """Return the files of the plug-ins that do not come with gymfleet, with the hashes of their contents."""
    named = [("backend", recipe.inference.backend)]
    named += [("format", section.use) for section in recipe.formats().values()]
    named += [("strategy", section.use) for section in recipe.strategies().values()]
    named += [("component", reference) for reward in recipe.rewards().values() for reference in reward.used.values()]
    for planned in recipe.plan():
        named.append(("stage", planned.kind))
        for option, kind in STAGES.find(planned.kind).facts.plugins.items():
            given = planned.options.get(option)
            for one in given if isinstance(given, list) else [given]:
                reference = one.get("use") if isinstance(one, dict) else one
                if isinstance(reference, str):
                    named.append((kind, reference))
    files = [source_of(kind, reference) for kind, reference in named]
    return {str(file): hash_of(file) for file in files if file is not None}
