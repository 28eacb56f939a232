"""AgentGym's sheet."""

import ast
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gymfleet_env_server.catalogue import load_entry
from gymfleet_envs.environment import Outcome
from gymfleet_envs.sheet.cells import Cell, address, entered, position
from gymfleet_envs.sheet.environment import ENVIRONMENT, SheetEnvironment
from gymfleet_envs.sheet.scoring import exact, match
from gymfleet_envs.sheet.task import SheetTask
from gymfleet_envs.sheet.tools import Workbook
from gymfleet_envs.sheet.workbook import Sheet
from gymfleet_envs.tasks import TaskDataError

from tests.fixtures.paths import SHARED_DATA

PUBLISHED = SHARED_DATA / "tool_agentgym"
MONEY = "#,##0.00"
TABLE = Sheet("Sheet1", (
    (Cell("Product"), Cell("Price"), Cell("Sold")),
    (Cell("tea"), Cell(1200.5, MONEY), Cell(3.0)),
    (Cell("milk"), Cell(2.0, MONEY), Cell(9.0)),
    (Cell("bread"), Cell(30.25, MONEY), Cell(5.0)),
))  # fmt: skip
OTHER = Sheet("Sheet2", ((Cell("a"), Cell("b")),))
SHOWN = [["Product", "Price", "Sold"], ["tea", "1,200.50", "3"], ["milk", "2.00", "9"], ["bread", "30.25", "5"]]
SORTED = [SHOWN[0], SHOWN[2], SHOWN[3], SHOWN[1]]
TASK = SheetTask('Sort "Sheet1".', Workbook((TABLE, OTHER)), "Sheet1", json.dumps(SORTED), "exact", ())


def opened(task: SheetTask = TASK, name: str | None = "Sheet1") -> SheetEnvironment:
    environment = ENVIRONMENT()
    environment.reset(task, 0)
    if name is not None:
        call(environment, "open_sheet", name=name)
    return environment


def call(environment: SheetEnvironment, tool: str, **arguments: Any) -> Outcome:
    return environment.step(f"{tool} with Action Input: {json.dumps(arguments)}")


def result(outcome: Outcome) -> Any:
    text = outcome.observation.removeprefix("Observation: ").removesuffix("\nGive me one action.")
    return ast.literal_eval(text) if text.startswith("[") else text


@pytest.mark.parametrize(
    ("value", "shown_as", "text"),
    [(1200.5, MONEY, "1,200.50"), (0.05, "0%", "5%"), (4.25, "0.0", "4.2"), (3.0, "General", "3"), (None, MONEY, ""),
     (1 / 3, "General", "0.3333333333"), (True, "General", "TRUE"), ("tea", MONEY, "tea"), (-84.0, "0.00", "-84.00")],
)  # fmt: skip
def test_cells_show_numbers_by_their_formats(value: Any, shown_as: str, text: str) -> None:
    assert Cell(value, shown_as).text == text


@pytest.mark.parametrize(("row", "column", "name"), [(0, 0, "A1"), (11, 25, "Z12"), (0, 26, "AA1"), (4, 701, "ZZ5")])
def test_addresses(row: int, column: int, name: str) -> None:
    assert address(row, column) == name
    assert position(name) == (row, column)


def test_what_looks_like_a_number_is_one() -> None:
    assert [entered(value) for value in ("5", " 2.5 ", "1e3", "nan", "inf", "5 kg", True, None, 7)] == [
        5.0, 2.5, 1000.0, "nan", "inf", "5 kg", True, None, 7.0
    ]  # fmt: skip
    for text in ("A0", "1A", "AAAA1", "", None, 3):
        with pytest.raises(ValueError, match="is no cell such as B2"):
            position(text)


@pytest.mark.parametrize(
    ("tool", "arguments", "shown"),
    [
        ("get_all_values", {}, SHOWN),
        ("get_range_values", {"start_position": "B2", "end_position": "C3"}, [["1,200.50", "3"], ["2.00", "9"]]),
        ("get_cell_value", {"position": "B2"}, "1,200.50"),
        ("get_cell_value", {"position": "Z9"}, "None"),
        ("get_A1_annotation", {"row": 3, "col": 2}, "B3"),
        ("filter_cells", {"query": "^.....$"}, ["B1", "A4", "B4"]),
        ("filter_cells", {"query": "3", "in_column": 3}, ["C2"]),
        ("get_value_by_formula", {"start_position": "C2", "end_position": "C4", "operator": "SUM"}, "17"),
        ("get_value_by_formula", {"position_list": ["B2", "B3"], "operator": "AVERAGE"}, "601.25"),
        ("get_value_by_formula", {"position_list": ["C3", "C2"], "operator": "MINUS"}, "6"),
        ("get_value_by_formula", {"start_position": "A1", "end_position": "C4", "operator": "COUNT"}, "6"),
        ("freeze_data", {"dimension": "rows", "num": "1"}, "You have successfully freeze the rows 1"),
        ("update_note", {"position": "A1", "content": "hi"}, "Updated! the A1's note is hi"),
        ("get_note", {"position": "A1"}, ""),
        ("del_sheet", {"name": "Sheet2"}, "AttributeError(\"'str' object has no attribute 'id'\")"),
        ("delete_batch_data", {"dimension": "row", "index_list": [1, 2, 3]},
         "'Warning: You cannot delete whole sheet at once, please try other functions'"),
        ("update_range", {"start_position": "A1", "end_position": "C4", "values_list": [[1]]},
         "'Warning: You cannot update whole sheet at once, please try other functions'"),
        ("sort_sheet_by_col", {"col_num": 1, "order": "up"},
         """ValueError("Either 'asc' or 'des' should be specified as sort order.")"""),
        ("open_sheet", {"name": "Answer1"}, "WorksheetNotFound('Answer1')"),
    ],
)  # fmt: skip
def test_what_tools_show(tool: str, arguments: dict[str, Any], shown: Any) -> None:
    assert result(call(opened(), tool, **arguments)) == shown


@pytest.mark.parametrize(
    ("tool", "arguments", "rows"),
    [
        ("update_cell", {"position": "B3", "value": "7"}, {2: ["milk", "7.00", "9"]}),
        ("update_range", {"start_position": "C2", "end_position": "C3", "values_list": [[1], ["x"]]},
         {1: ["tea", "1,200.50", "1"], 2: ["milk", "2.00", "x"]}),
        ("update_cell_by_formula", {"position_list": ["B3", "C3"], "result_position": "C2", "operator": "PRODUCT"},
         {1: ["tea", "1,200.50", "18"]}),
    ],
)  # fmt: skip
def test_what_changes_keeps_its_format(tool: str, arguments: dict[str, Any], rows: dict[int, list[str]]) -> None:
    assert result(call(opened(), tool, **arguments)) == [rows.get(i, row) for i, row in enumerate(SHOWN)]


def test_rows_and_columns_come_and_go() -> None:
    environment = opened()

    inserted = result(call(environment, "insert_rows", values_list=[["jam", 4, 1]], row_idx=2))
    deleted = result(call(environment, "delete_batch_data", dimension="row", index_list=[2, 4]))
    columns = result(call(environment, "insert_cols", values_list=[["New", "1"]], col_idx=3))

    assert inserted[1] == ["jam", "4.00", "1"], "in the formats of the row that it pushes down"
    assert deleted == [SHOWN[0], SHOWN[1], SHOWN[3]]
    assert columns[:2] == [["Product", "Price", "New", "Sold"], ["tea", "1,200.50", "1", "3"]]


def test_sorting_leaves_frozen_rows_and_takes_notes_along() -> None:
    environment = opened()
    call(environment, "update_note", position="A2", content="hot")

    unfrozen = result(call(environment, "sort_sheet_by_col", col_num=2, order="des"))
    call(environment, "sort_sheet_by_col", col_num=1, order="des")
    frozen = opened()
    call(frozen, "freeze_data", dimension="rows", num=1)
    below = result(call(frozen, "sort_sheet_by_col", col_num=2, order="asc"))

    assert unfrozen == [SHOWN[0], SHOWN[1], SHOWN[3], SHOWN[2]], "a text is above numbers in descending order"
    assert result(call(environment, "get_note", position="A1")) == "hot"
    assert below == SORTED


def test_merged_cells_show_the_first() -> None:
    merged = result(call(opened(), "merge_cells", start_position="A2", end_position="A3"))

    assert [row[0] for row in merged] == ["Product", "tea", "tea", "bread"]


@pytest.mark.parametrize(
    ("shown", "gold", "share"),
    [
        pytest.param([["a", "b"], ["c", "d"]], [["a", "x"], ["c", "d"]], 0.75, id="three of four"),
        pytest.param([["a"]], [["a", "b"], ["c", "d"]], 1.0, id="what one lacks does not count"),
        pytest.param([[]], [["a"]], 0.0, id="nothing in common"),
    ],
)
def test_agentgyms_rule_is_the_share_of_common_cells(shown: Any, gold: Any, share: float) -> None:
    assert match(shown, gold) == share
    assert exact(shown, gold) == 0
    assert exact(gold, gold) == 1


def test_by_the_exact_rule_the_table_counts_at_the_end_and_others_must_not_change() -> None:
    right, unsorted, another = opened(), opened(), opened()
    for environment in (right, another):
        call(environment, "freeze_data", dimension="rows", num=1)
        assert call(environment, "sort_sheet_by_col", col_num=2, order="asc").score == 0
    call(another, "open_sheet", name="Sheet2")
    call(another, "update_cell", position="A1", value="x")

    ends = [call(environment, "finish") for environment in (right, unsorted, another)]

    assert [(end.terminated, end.reward, end.score) for end in ends] == [(True, 1, 1), (True, 0, 0), (True, 0, 0)]
    assert result(ends[0]) == SORTED


def test_by_agentgyms_rule_the_best_that_was_reached_counts() -> None:
    gold = json.dumps([["Product", "Price", "Sold"], ["x", "y", "z"]])
    environment = opened(replace(TASK, rule="agentgym", gold=gold), None)

    closed = call(environment, "get_all_values")
    first = call(environment, "open_sheet", name="Sheet1")
    worse = call(environment, "update_cell", position="A1", value="x")
    end = call(environment, "finish")

    assert result(closed) == "Please open a sheet before operating it"
    assert [outcome.score for outcome in (closed, first, worse, end)] == [0, 0.5, 0.5, 0.5]
    assert [outcome.reward for outcome in (closed, first, worse, end)] == [0, 0, 0, 0.5]


def test_a_closed_workbook_is_not_finished_well() -> None:
    environment = opened(replace(TASK, gold=json.dumps(SHOWN)), None)

    assert result(call(environment, "finish")) == "Please open a sheet before operating it"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("update_cell", {"position": "A400000", "value": 1}),
        ("update_cell", {"position": "ZZZ1", "value": 1}),
        ("update_cell", {"position": "A1", "value": 1e300}),
        ("update_cell", {"position": "A1", "value": 10**400}),
        ("freeze_data", {"dimension": "rows", "num": 10**400}),
        ("delete_batch_data", {"dimension": "row", "index_list": [10**400]}),
        ("insert_rows", {"values_list": [[1]] * 500, "row_idx": 1}),
        ("insert_cols", {"values_list": [[1] * 500], "col_idx": 1}),
        ("insert_rows", {"values_list": [[1]], "row_idx": 10_000}),
        ("insert_cols", {"values_list": [[1]], "col_idx": 10_000}),
        ("get_range_values", {"start_position": "A1", "end_position": "ZZZ9999999"}),
        ("filter_cells", {"query": "(" * 30}),
        ("filter_cells", {"query": "a" * 401}),
    ],
)
def test_what_is_too_large_is_refused(tool: str, arguments: dict[str, Any]) -> None:
    outcome = call(opened(), tool, **arguments)

    told = ("Observation: ValueError(", "Observation: OverflowError(", "Observation: TooLarge(")
    assert outcome.observation.startswith(told)
    assert len(outcome.observation) < 300


def test_a_search_of_all_cells_is_bounded() -> None:
    environment = opened()
    call(environment, "insert_rows", values_list=[["a" * 20] * 50] * 2, row_idx=1)

    outcome = call(environment, "filter_cells", query="(a|aa)+$b")

    assert result(outcome) == "ValueError('the pattern takes too long')"


needs_published = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="AgentGym's tasks are not here")


@needs_published
def test_gold_calls_of_all_published_tasks_score_1_and_answers_are_not_in_the_workbook() -> None:
    entry = load_entry("sheet", {"sheet": PUBLISHED})
    late = []
    for number in range(20):
        task = entry.tasks.by_id(f"sheet_{number}").data
        environment = opened(task, None)
        outcomes = [environment.step(move.action) for move in task.plan]
        assert outcomes[-1].score == 1, number
        late += [number] if len(outcomes) > ENVIRONMENT.max_turns else []
        assert not any(sheet.name.startswith("Answer") for sheet in task.workbook.sheets)
    assert late == [5], "whose sums and means need a formula each"


@needs_published
def test_an_imported_workbook_is_the_published_one(tmp_path: Path) -> None:
    SheetEnvironment.import_data(PUBLISHED, tmp_path)

    ours, theirs = (load_entry("sheet", {"sheet": path}).tasks.by_id("7").data for path in (tmp_path, PUBLISHED))

    assert ours == theirs
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sheet.jsonl", "workbook.json"]


@needs_published
@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("sheet.xlsx", b"PK\x03\x04", "it is no workbook"),
        ("workbook.json", b'[{"name": "Sheet1"}]', "it is no imported workbook"),
        ("workbook.json", b"[]", "its goal names no sheet of the workbook"),
        ("other.txt", b"", "has no start/sheet.xlsx"),
    ],
)
def test_damaged_workbooks_are_refused_by_name(tmp_path: Path, name: str, content: bytes, fault: str) -> None:
    shutil.copy(PUBLISHED / "sheet.jsonl", tmp_path)
    (tmp_path / name).write_bytes(content)

    with pytest.raises(TaskDataError, match=r"^sheet: ") as told:
        SheetEnvironment.task_source(tmp_path)

    assert fault in str(told.value)


@needs_published
def test_a_gold_table_has_rows_of_one_length(tmp_path: Path) -> None:
    first = json.loads((PUBLISHED / "sheet.jsonl").read_text().splitlines()[0])
    first["additional_info"]["answer"] = json.dumps([["a", "b"], ["c"]])
    (tmp_path / "sheet.jsonl").write_text(json.dumps(first))
    shutil.copy(PUBLISHED / "start" / "sheet.xlsx", tmp_path)

    with pytest.raises(TaskDataError, match=r"task 0: answer is a table with rows of different lengths"):
        SheetEnvironment.task_source(tmp_path)
