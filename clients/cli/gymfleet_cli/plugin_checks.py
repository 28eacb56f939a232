"""Checks of the plug-ins that a recipe names, before any process of a run starts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gymfleet_contracts.recipe import Recipe, RecipeError
from gymfleet_contracts.recipe_sections import AlgorithmFacts, StrategyFacts
from gymfleet_contracts.stages import PlannedStage, StageFacts, StagesError, check_stages
from gymfleet_kit.plugins import ASCENDING, PluginDescription

from gymfleet_cli.plugins import KINDS, Plugin, UnusablePlugin, descriptions

Known = Mapping[Plugin, PluginDescription]


@dataclass(frozen=True, slots=True)
class _Use:
    """A plug-in at the place where a recipe names it, with its options there."""

    plugin: Plugin
    key: str
    """The key that names it."""
    table: str
    options: Mapping[str, Any]
    beside: str = ""
    """A note on the table's own keys, which are allowed as well."""


def check_plugins(recipe: Recipe) -> None:
    """Check the plug-ins that a recipe names. Raises `RecipeError`, with the key and the known names."""
    plan = recipe.plan()
    # The rounds of a repeat are equal.
    stages = list({(stage.table, stage.kind, repr(stage.options)): stage for stage in plan}.values())
    kinds = [_Use(("stage", stage.kind), f"{stage.table}.kind", stage.table, stage.options) for stage in stages]
    others = list(_outside_of_stages(recipe))
    known = _described([*others, *kinds])
    facts = {stage.kind: StageFacts.model_validate(known["stage", stage.kind].facts) for stage in stages}
    _check_options([*others, *(_with_its_own(use, known[use.plugin], facts[use.plugin[1]]) for use in kinds)], known)
    named = {stage.name: list(_named_by(stage, known["stage", stage.kind], facts[stage.kind])) for stage in stages}
    named_by_any = [use for uses in named.values() for use in uses]
    known |= _described(named_by_any)
    _check_options(named_by_any, known)
    for stage in stages:
        for use in named[stage.name]:
            _check_suits(recipe, stage, use, known)
    try:
        check_stages(plan, facts)
    except StagesError as error:
        raise RecipeError(str(error)) from None


def _outside_of_stages(recipe: Recipe) -> Iterator[_Use]:
    for table, chosen in recipe.formats().items():
        yield _Use(("format", chosen.use), table, table, chosen.options)
    inference, known = recipe.inference, ", ".join(type(recipe.inference).model_fields)
    yield _Use(
        ("backend", inference.backend), "inference.backend", "inference", inference.options,
        beside=f"[inference] knows: {known}",
    )  # fmt: skip
    strategy = recipe.rollout.strategy
    yield _Use(("strategy", strategy.use), "rollout.strategy", "rollout.strategy", strategy.options)
    for table, reward in recipe.rewards().items():
        for label, component in reward.components.items():
            place = f"{table}.{label}"
            yield _Use(("component", component.use or label), place, place, component.options)


def _described(uses: Sequence[_Use]) -> dict[Plugin, PluginDescription]:
    try:
        return descriptions(use.plugin for use in uses)
    except UnusablePlugin as error:
        key = next(use.key for use in uses if use.plugin == error.plugin)
        raise RecipeError(f"{key}: {error}") from None


def _with_its_own(stage: _Use, described: PluginDescription, facts: StageFacts) -> _Use:
    """Return a stage without the options that it passes on."""
    passed = _passed_on(stage.options, described) if facts.passes_on else {}
    return replace(stage, options={key: value for key, value in stage.options.items() if key not in passed})


def _passed_on(options: Mapping[str, Any], described: PluginDescription) -> dict[str, Any]:
    """Return the options that are not the stage's own."""
    properties: Any = described.options.get("properties", {})
    return {key: value for key, value in options.items() if key not in properties}


def _named_by(stage: PlannedStage, described: PluginDescription, facts: StageFacts) -> Iterator[_Use]:
    """Yield the plug-ins named by the options of a stage, or by their defaults."""
    for option, kind in facts.plugins.items():
        default = _default(described, option)
        given, key = stage.options.get(option, default), f"{stage.table}.{option}"
        if isinstance(given, list):
            yield from (_chosen(kind, f"{key}.{place}", one) for place, one in enumerate(given))
        elif given is not None:
            use = _chosen(kind, key, {"use": default, **given} if isinstance(given, dict) else given)
            if option == facts.passes_on:
                options = {**use.options, **_passed_on(stage.options, described)}
                use = replace(use, table=stage.table, options=options, beside=_knows(described, described.options))
            yield use


def _chosen(kind: str, key: str, given: Any) -> _Use:
    """Return the plug-in at a key, given by name, or as a table with `use` and its options."""
    options = dict(given) if isinstance(given, dict) else {"use": given}
    reference = options.pop("use", None)
    if kind not in KINDS or not isinstance(reference, str):
        raise RecipeError(f"{key}: {reference!r} is no name of a plug-in of kind {kind!r}")
    return _Use((kind, reference), key, key, options)


def _default(described: PluginDescription, option: str) -> Any:
    properties: Any = described.options.get("properties", {})
    return properties.get(option, {}).get("default")


def _check_suits(recipe: Recipe, stage: PlannedStage, use: _Use, known: Known) -> None:
    """Check that an algorithm can learn from the episodes played for it, and that a strategy can play them."""
    kind, reference = use.plugin
    if kind == "strategy":
        plays = StrategyFacts.model_validate(known[use.plugin].facts)
        recipe.evaluates_for(plays, use.key, reference)
        if stage.kind == "measure":
            recipe.measures_by(plays, use.key, reference)
        if stage.options.get("rejected"):
            recipe.rejects_for(plays, stage.table, reference)
    if kind != "algorithm":
        return
    facts = AlgorithmFacts.model_validate(known[use.plugin].facts)
    default = _default(known["stage", stage.kind], "group_size")
    group_size = stage.options.get("group_size", facts.min_group_size if default is None else default)
    recipe.suits(stage, reference, group_size, facts)
    played = StrategyFacts.model_validate(known["strategy", recipe.rollout.strategy.use].facts)
    recipe.plays_by(played, stage)
    recipe.values_for(stage, reference, facts, played)


def _check_options(uses: Iterable[_Use], known: Known) -> None:
    told = [fault for use in uses for fault in _faults(use, known[use.plugin])]
    if told:
        raise RecipeError("; ".join(dict.fromkeys(told)))


def _faults(use: _Use, described: PluginDescription) -> Iterator[str]:
    from jsonschema import Draft202012Validator, validators  # noqa: PLC0415 - most commands do not need it

    validator = validators.extend(Draft202012Validator, {ASCENDING: _not_ascending})
    faults = [cause for fault in validator(described.options).iter_errors(use.options) for cause in _causes(fault)]
    for fault in sorted(faults, key=lambda fault: [str(part) for part in fault.absolute_path]):
        path = [str(part) for part in fault.absolute_path]
        place = ".".join([use.table, *path])
        if fault.validator == "additionalProperties":
            unknown = sorted(fault.instance.keys() - fault.schema.get("properties", {}).keys())
            told = [_knows(described, fault.schema)]
            if use.beside and not path:
                told.append(use.beside)
            yield f"{', '.join(f'{place}.{name}' for name in unknown)}: unknown; {'; '.join(told)}"
        else:
            yield f"{place}: {fault.schema.get('$comment', fault.message)}"


def _causes(fault: Any) -> list[Any]:
    """Return the faults of an optional table, without the useless one that it is not null."""
    if fault.validator != "anyOf":
        return [fault]
    options: dict[int, list[Any]] = {}
    for cause in fault.context:
        options.setdefault(cause.relative_schema_path[0], []).append(cause)
    of_its_type = [
        causes for causes in options.values() if not any(one.validator == "type" and not one.path for one in causes)
    ]
    return [one for cause in of_its_type[0] for one in _causes(cause)] if len(of_its_type) == 1 else [fault]


def _knows(described: PluginDescription, schema: Mapping[str, Any]) -> str:
    return f"{described.reference} knows: {', '.join(schema.get('properties', {})) or 'no options'}"


def _not_ascending(_: Any, names: Sequence[str], given: Any, schema: dict[str, Any]) -> Iterator[Exception]:
    from jsonschema import ValidationError as Fault  # noqa: PLC0415

    values = [given.get(name, schema["properties"][name].get("default")) for name in names]
    if all(isinstance(value, int | float) for value in values) and values != sorted(values):
        yield Fault(f"{' <= '.join(names)} does not hold: {', '.join(map(str, values))}")
