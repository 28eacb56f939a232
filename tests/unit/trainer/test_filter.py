"""Which episodes a filter keeps, and in which order."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gymfleet_contracts.stages import PlannedStage
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.plugins import PluginError
from gymfleet_trainer.errors import NothingLeft, PluginFailed, RunDirectoryError
from gymfleet_trainer.run.plan import own_sources, stages_of
from gymfleet_trainer.stages.filter import Filter, FilterOptions

from tests.fixtures.scored import make_recipe, make_scored


def of_task(task: int, sample: int, total: float | None, **changes: str) -> ScoredTrajectory:
    """An episode of a task, solved where it gained more than 0; with None it has no reward."""
    scored = make_scored(f"collect.t{task:06d}", sample, total=total or 0.0, success=(total or 0) > 0)
    trajectory = scored.trajectory
    renamed = trajectory.model_copy(
        update={"task": trajectory.task.model_copy(update={"task_id": f"{task}", **changes})}
    )
    reward = None if total is None else scored.reward
    return scored.model_copy(update={"trajectory": renamed, "reward": reward})


GIVEN = [
    of_task(0, 0, 0.5), of_task(1, 0, -1.0), of_task(0, 1, 2.0), of_task(2, 0, None), of_task(0, 2, 2.0),
    of_task(1, 1, 0.0), of_task(1, 2, -2.0),
]  # fmt: skip
"""Three tasks, whose episodes came mixed up."""


class Thread:
    """The caller's own."""

    async def run(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)


def filtered(given: list[ScoredTrajectory], **options: Any) -> list[tuple[str, int]]:
    """What is left, as task and sample."""
    planned = PlannedStage("best", "filter", "stages.best", {"data": "collect"}, {"collect": "round1.collect"})
    left: list[ScoredTrajectory] = []
    state = SimpleNamespace(counts={})
    run: Any = SimpleNamespace(records=lambda _: given, leave=left.extend, state=state, worker=Thread())
    asyncio.run(Filter(planned, FilterOptions(data="collect", **options)).run(run))
    return [(scored.trajectory.task.task_id, scored.trajectory.sample) for scored in left]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        pytest.param({}, [("0", 0), ("1", 0), ("0", 1), ("2", 0), ("0", 2), ("1", 1), ("1", 2)], id="all as they came"),
        pytest.param({"success": True}, [("0", 0), ("0", 1), ("0", 2)], id="those that solved their task"),
        pytest.param({"success": False}, [("1", 0), ("2", 0), ("1", 1), ("1", 2)], id="those that did not"),
        pytest.param({"min_reward": 0.5}, [("0", 0), ("0", 1), ("0", 2)], id="at least so much"),
        pytest.param({"above_reward": 0.5}, [("0", 1), ("0", 2)], id="more than so much"),
        pytest.param(
            {"min_reward": -1.0}, [("0", 0), ("1", 0), ("0", 1), ("0", 2), ("1", 1)],
            id="without a reward it is not enough, however little is asked for",
        ),
        pytest.param(
            {"best_of_task": 1}, [("0", 1), ("2", 0), ("1", 1)],
            id="the best of each task; of two that are as good the first",
        ),
        pytest.param(
            {"best_of_task": 2}, [("1", 0), ("0", 1), ("2", 0), ("0", 2), ("1", 1)], id="the best two, as they came",
        ),
        pytest.param({"success": False, "min_reward": -1.0}, [("1", 0), ("1", 1)], id="all that is given holds"),
        pytest.param({"success": False, "best_of_task": 1}, [("2", 0), ("1", 1)], id="the best of those that are left"),
        pytest.param({"filters": ({"use": "length", "min_replies": 1}, "duplicates")}, [("0", 0)],
                     id="filters one after the other: all say the same"),
        pytest.param({"filters": ("duplicates",), "min_reward": 1.0, "best_of_task": 1}, [("0", 1)],
                     id="filters see what the reward has left"),
    ],
)  # fmt: skip
def test_what_is_kept(options: dict[str, Any], kept: list[tuple[str, int]]) -> None:
    assert filtered(GIVEN, **options) == kept


@pytest.mark.parametrize("changes", [{"env": "babyai"}, {"level": "hard"}])
def test_tasks_of_two_environments_or_levels_are_two_even_with_one_id(changes: dict[str, str]) -> None:
    assert len(filtered([of_task(0, 0, 1.0), of_task(0, 1, 2.0, **changes)], best_of_task=1)) == 2


def test_a_filter_that_keeps_nothing_ends_the_run_with_a_reason() -> None:
    with pytest.raises(NothingLeft) as caught:
        filtered(GIVEN, min_reward=9.0)

    assert str(caught.value) == (
        "stages.best: none of 7 records of round1.collect is kept; loosen the filter, or collect more"
    )


def test_a_filter_that_keeps_nothing_lets_the_run_go_on_if_the_recipe_says_so() -> None:
    given = {"data": "collect", "min_reward": 9.0, "if_nothing": "go_on"}
    told: list[str] = []
    left: list[list[Any]] = []
    run: Any = SimpleNamespace(
        records=lambda _: GIVEN, leave=left.append, worker=Thread(),
        go_on_without=lambda nothing: told.append(str(nothing)),
    )  # fmt: skip
    planned = PlannedStage("best", "filter", "stages.best", given, {"collect": "collect"})

    asyncio.run(Filter(planned, FilterOptions.model_validate(given)).run(run))

    assert left == [[]]
    assert told == ["stages.best: none of 7 records of collect is kept; loosen the filter, or collect more"]


def test_no_task_has_its_best_none() -> None:
    stages: list[dict[str, Any]] = [{"kind": "collect"}, {"kind": "filter", "data": "collect", "best_of_task": 0}]

    with pytest.raises(PluginError, match=r"stages\.filter\.best_of_task: .*greater than 0"):
        stages_of(make_recipe(stages=stages))


def test_how_many_each_filter_left_out_is_counted_once() -> None:
    given = {"data": "collect", "filters": ({"use": "length"}, "duplicates")}
    planned = PlannedStage("best", "filter", "stages.best", given, {"collect": "collect"})
    run: Any = SimpleNamespace(
        records=lambda _: GIVEN, leave=lambda _: None, state=SimpleNamespace(counts={}), worker=Thread()
    )

    for _ in range(2):
        asyncio.run(Filter(planned, FilterOptions.model_validate(given)).run(run))

    assert run.state.counts == {"left_out.best.0.length": 0, "left_out.best.1.duplicates": 6}


def test_a_filter_that_fails_is_a_plug_in_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "fails.py"
    path.write_text(
        "from gymfleet_kit.data.filter import Filter\n\n\nclass Fails(Filter):\n"
        "    def keep(self, record):\n        raise RuntimeError('not\\nyet')\n"
    )

    with pytest.raises(
        PluginFailed, match=r"^the filter fails failed in keep for run-1/\S+: RuntimeError: not yet; its"
    ):
        filtered(GIVEN, filters=(str(path),))


def test_records_that_a_filter_refuses_end_the_run_with_its_line() -> None:
    leakage = {"use": "leakage", "splits": ["train"], "action": "refuse"}

    with pytest.raises(
        RunDirectoryError, match=r"^the filter leakage: test tasks are in the training data: run-1/\S+, "
    ):
        filtered(GIVEN, filters=(leakage,))


@pytest.mark.parametrize(
    ("filters", "told"),
    [
        (["lenght"], "there is no filter 'lenght'; known: duplicates, format, hallucinated_tools, leakage, length,"),
        (
            ["duplicates", {"use": "length", "max": 3}],
            r"stages\.filter\.filters\.1\.max: Extra inputs are not permitted",
        ),
        ("length", r"stages\.filter\.filters: Input should be a valid tuple"),
    ],
)
def test_filters_are_made_before_anything_is_started(filters: Any, told: str) -> None:
    with pytest.raises(PluginError, match=f"^{told}"):
        stages_of(make_recipe(stages=[{"kind": "collect"}, {"kind": "filter", "data": "collect", "filters": filters}]))


def test_the_files_of_filters_are_pinned(tmp_path: Path) -> None:
    stages: list[dict[str, Any]] = [
        {"kind": "filter", "data": "x.jsonl", "filters": ["length", f"{tmp_path}/a.py", {"use": f"{tmp_path}/b.py"}]}
    ]

    assert [*own_sources(make_recipe(stages=stages))] == [f"{tmp_path}/a.py", f"{tmp_path}/b.py"]
