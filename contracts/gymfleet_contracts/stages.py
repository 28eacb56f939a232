"""The `[[stages]]` of a recipe: the phases of a run, in order, as they are written and as they are carried out."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import PurePath
from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, PositiveInt, model_validator

from gymfleet_contracts._model import WireModel

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
INITIAL: Final = "initial"
"""The name by which `start_from` refers to the model that the run began with."""
_MAX_STAGES: Final = 1000
_RESERVED: Final = frozenset({"starting", "done", "failed", "interrupted"})
"""The phases that a run's progress reports when it is in no stage."""
_MAX_NAME: Final = 80
"""Maximum length of a full name: the ids of a stage's groups begin with it, and have at most 128 characters."""

StageName = Annotated[str, Field(pattern=rf"^{_NAME.pattern}$")]


class StagesError(ValueError):
    """The list of stages makes no sense; the message names the stage."""


class StageSection(WireModel):
    """One phase: a `kind` with its options, which it checks, or a `repeat` of stages of its own."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)

    kind: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """sft, preference, reinforce, measure, collect, filter, augment, bradley_terry, process_reward, generative_judge,
    or one of your own: a name that an installed package declares, `package.module:Class`, or the path of a .py file."""
    name: StageName | None = None
    """The name of the stage and of what it leaves: in later stages, in the run directory and in figures. By default it
    is the name of its kind."""
    repeat: PositiveInt | None = None
    """How often the `[[stages.stages]]` below it are carried out, one after the other. They are called NAME1.STAGE,
    NAME2.STAGE and so on; NAME is `repeat` unless a name is given."""
    stages: "tuple[StageSection, ...]" = ()

    @model_validator(mode="after")
    def one_of_two(self) -> Self:
        """Require either a kind, or stages to repeat."""
        if (self.kind is None) == (self.repeat is None):
            raise ValueError("give exactly one of kind and repeat")
        if bool(self.stages) != (self.repeat is not None):
            raise ValueError("repeat needs [[stages.stages]], and a kind has none")
        if self.repeat is not None and self.model_extra:
            raise ValueError(f"{', '.join(self.model_extra)}: unknown; beside repeat stand name and stages")
        return self

    @property
    def title(self) -> str:
        """The name of the stage."""
        if self.name in _RESERVED:
            raise StagesError(f"stages: a stage cannot be called {self.name}: that is what a run's progress says")
        if self.name is not None:
            return self.name
        kind = "repeat" if self.kind is None else self.kind
        name = PurePath(kind).stem if kind.endswith(".py") else kind
        if _NAME.fullmatch(name) is None:
            raise StagesError(f'stages: {kind} needs a name: name = "...", of a-z, 0-9, _ and -')
        return name


class StageFacts(WireModel):
    """What other parts of gymfleet must know about a kind of stage."""

    reads: bool = False
    """Its option `data` names the episodes that it works with: one or several earlier stages, or a file."""
    starts: bool = False
    """Its option `start_from` names an earlier stage, whose model it continues with; or the run's model, as
    `initial`."""
    leaves: tuple[Literal["episodes", "model", "reward_model", "process_reward_model", "judge"], ...] = ()
    """What it leaves under its name: episodes; the policy, which it trains; a judge; or a model for the reward
    component of that name."""
    plugins: Mapping[str, str] = {}
    """Its options that name a plug-in, with the kind of the plug-in. If the option is a table, `use` names the plug-in;
    each entry of a list names one in either way."""
    passes_on: str = ""
    """The one of these options whose plug-in takes the keys that the stage itself does not know."""


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage as it is carried out; a repeated stage is there once for each round."""

    name: str
    """The unique name: `NAME`, or `REPEAT2.NAME` in the second round of a repeat."""
    kind: str
    table: str
    """The stage's place in the recipe, for messages."""
    options: Mapping[str, Any]
    before: Mapping[str, str]
    """The full names that the names of stages stand for here: of the earlier stages, the last one of each name."""
    earlier: "tuple[PlannedStage, ...]" = ()
    """The same stage in the rounds before this one, first to last, each with an empty `earlier`."""

    @property
    def title(self) -> str:
        """The stage's name in its list of stages, the same in every round."""
        return self.name.rpartition(".")[2]

    def data(self) -> list[str]:
        """Return the references that it reads: full names of stages, and paths. Raises `StagesError`."""
        given = self.options.get("data")
        references = [given] if isinstance(given, str) else given
        if not isinstance(references, Sequence) or not references:
            raise StagesError(f"{self.table}: data is missing: give the name of a stage before it, or a .jsonl file")
        return [self._meant(str(reference)) for reference in references]

    def start(self) -> str | None:
        """Return the full name of the stage whose model it continues with, or `INITIAL`; None for the policy as it is.

        Raises `StagesError`.
        """
        reference = self.options.get("start_from")
        if reference is None or reference == INITIAL:
            return reference
        if not isinstance(reference, str) or reference not in self.before:
            known = ", ".join((INITIAL, *self.before))
            raise StagesError(f"{self.table}: start_from = {reference!r}: there is no such stage before it ({known})")
        return self.before[reference]

    def _meant(self, reference: str) -> str:
        if is_path(reference):
            return reference
        if reference not in self.before:
            known = ", ".join(self.before) or "none"
            raise StagesError(
                f"{self.table}: data = {reference!r}: there is no such stage before it ({known}); a file's name "
                "ends in .jsonl, .json or .parquet"
            )
        return self.before[reference]


def is_path(reference: str) -> bool:
    """Return whether a reference to data is the path of a file, and not the name of a stage."""
    return reference.endswith((".jsonl", ".json", ".parquet")) or "/" in reference


def planned(sections: Sequence[StageSection]) -> list[PlannedStage]:
    """Return the stages in the order in which they are carried out. Raises `StagesError`."""
    plan = list(islice(_planned(sections, "", "stages", {}), _MAX_STAGES + 1))
    if len(plan) > _MAX_STAGES:
        raise StagesError(f"stages: more than {_MAX_STAGES}, repeats counted; at most {_MAX_STAGES} can be")
    names = [stage.name for stage in plan]
    _all_different(names)
    known = set(names)
    if mixed := sorted((name, above) for name in names for above in _above(name) if above in known):
        name, above = mixed[0]
        raise StagesError(f"stages: {name} is no part of the stage {above}: rename that")
    if len(longest := max(names, key=len, default="")) > _MAX_NAME:
        raise StagesError(f"stages: {longest} is longer than {_MAX_NAME} characters: give shorter names")
    return list(_with_earlier(plan))


def _with_earlier(plan: Sequence[PlannedStage]) -> Iterator[PlannedStage]:
    rounds: dict[str, tuple[PlannedStage, ...]] = {}
    for stage in plan:
        earlier = rounds.get(stage.table, ())
        yield replace(stage, earlier=earlier)
        rounds[stage.table] = (*earlier, stage)


def _above(name: str) -> list[str]:
    """Return the beginnings of a full name, up to each of its dots."""
    return [name[:place] for place, letter in enumerate(name) if letter == "."]


def _planned(
    sections: Sequence[StageSection], prefix: str, place: str, before: dict[str, str]
) -> Iterator[PlannedStage]:
    _all_different(section.title for section in sections)
    for section in sections:
        table = f"{place}.{section.title}"
        for number in range(1, (section.repeat or 0) + 1):
            yield from _planned(section.stages, f"{prefix}{section.title}{number}.", f"{table}.stages", before)
        if section.kind is not None:
            name = f"{prefix}{section.title}"
            yield PlannedStage(name, section.kind, table, dict(section.model_extra or {}), dict(before))
            before |= {section.title: name, name: name}


def _all_different(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise StagesError(f'stages: two are called {name}: give one of them another name, as name = "..."')
        seen.add(name)


def check_stages(plan: Sequence[PlannedStage], facts: Mapping[str, StageFacts]) -> None:
    """Check that every stage finds what it reads. `facts` are by kind. Raises `StagesError`."""
    left = {stage.name: facts[stage.kind].leaves for stage in plan}
    for stage in plan:
        start = stage.start() if facts[stage.kind].starts else None
        if start not in (None, INITIAL) and "model" not in left[start]:
            raise StagesError(f"{stage.table}: start_from = {start!r}: that stage leaves no model")
        if not facts[stage.kind].reads:
            continue
        for name in stage.data():
            if not is_path(name) and "episodes" not in left[name]:
                raise StagesError(f"{stage.table}: data = {name!r}: that stage leaves no episodes")
