"""Keep the episodes that are worth learning from."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, ClassVar

from gymfleet_contracts.conversation import Conversation, Record
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.stages import PlannedStage, StageFacts
from gymfleet_kit.data.filter import Refused, task_of
from gymfleet_kit.data.filtering import CheckedFilter, FilterFailed, filter_of
from pydantic import JsonValue, PositiveInt

from gymfleet_trainer.errors import NothingLeft, PluginFailed, RunDirectoryError
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.run.records import converter_in
from gymfleet_trainer.stage import IfNothing, Stage, StageOptions


class FilterOptions(StageOptions):
    """Keep an episode, or a conversation, if all of the given conditions hold."""

    data: str | tuple[str, ...]
    """The episodes: of a stage, of several, or of a .jsonl file."""
    converter: str | dict[str, JsonValue] | None = None
    """The converter that reads the files that `data` names, as for `sft`; conversations are kept then."""
    success: bool | None = None
    """Keep those that solved their task; with `false`, those that did not."""
    min_reward: float | None = None
    """Keep those whose reward is at least this."""
    above_reward: float | None = None
    """Keep those whose reward is more than this, as ReST and AgentEvol do."""
    filters: tuple[str | dict[str, JsonValue], ...] = ()
    """Then apply these filters, one after the other: `length`, `duplicates`, `near_duplicates`, `leakage` and so on,
    one of your own, or a table with `use` and its options."""
    best_of_task: PositiveInt | None = None
    """Then keep at most this many of each task, those with the highest rewards."""
    if_nothing: IfNothing = "end"
    """What happens if none is kept: the run ends with exit code 9, or it continues with the other data that later
    stages read besides this stage's."""


class Filter(Stage[FilterOptions]):
    """Keep the episodes that are worth learning from, as rejection sampling and ReST do."""

    Options = FilterOptions
    facts: ClassVar[StageFacts] = StageFacts(
        reads=True, leaves=("episodes",), plugins={"converter": "converter", "filters": "filter"}
    )
    small: ClassVar[Mapping[str, Any]] = {"success": True}

    def check(self, recipe: Recipe, planned: PlannedStage) -> None:  # noqa: ARG002 - what every stage is given
        """Make the plug-ins before anything is started."""
        converter_in(self.options.converter, self)
        self._filters()

    async def run(self, run: RunContext) -> None:
        """Filter once."""
        try:
            kept = await self._kept(run)
        except NothingLeft as error:
            if self.options.if_nothing == "end":
                raise
            run.go_on_without(error)
            kept = []
        run.leave(kept)

    async def _kept(self, run: RunContext) -> list[Record]:
        given = await run.worker.run(run.records, converter_in(self.options.converter, self))
        kept = [record for record in given if self._keeps(record)]
        for place, one in enumerate(self._filters()):
            before, kept = len(kept), await run.worker.run(_kept, one, kept)
            # Set, not added up: a resumed stage filters again.
            run.state.counts[f"left_out.{self.name}.{place}.{one.name}"] = before - len(kept)
        if self.options.best_of_task is not None:
            kept = _best(kept, self.options.best_of_task)
        if not kept:
            raise NothingLeft(
                f"{self.table}: none of {len(given)} records of {', '.join(self.data)} is kept; loosen the filter, "
                "or collect more"
            )
        return kept

    def _filters(self) -> list[CheckedFilter]:
        """Return the filters that the options name, created anew each time, because each of them filters one list."""
        table = f"{self.table}.filters"
        return [filter_of(given, table=f"{table}.{place}") for place, given in enumerate(self.options.filters)]

    def _keeps(self, record: Record) -> bool:
        options = self.options
        if options.success is not None and _success(record) is not options.success:
            return False
        if options.above_reward is not None and not _reward(record) > options.above_reward:
            return False
        return options.min_reward is None or _reward(record) >= options.min_reward


def _kept(one: CheckedFilter, records: list[Record]) -> list[Record]:
    try:
        return one.kept(records)
    except Refused as error:
        raise RunDirectoryError(str(error)) from None
    except FilterFailed as error:
        raise PluginFailed(f"{error}; its traceback is in the log") from error


def _best(records: list[Record], count: int) -> list[Record]:
    """Return the records with the highest rewards of each task, in their original order."""
    by_task: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for place, record in enumerate(records):
        by_task[task_of(record) or f"#{place}"].append((-_reward(record), place))
    kept = {place for ranked in by_task.values() for _, place in sorted(ranked)[:count]}
    return [record for place, record in enumerate(records) if place in kept]


def _success(record: Record) -> bool | None:
    return record.success if isinstance(record, Conversation) else record.trajectory.success


def _reward(record: Record) -> float:
    if isinstance(record, Conversation):
        return float("-inf") if record.reward is None else record.reward
    return record.reward.total if record.reward is not None else float("-inf")
