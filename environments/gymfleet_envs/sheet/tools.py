"""AgentGym's sheet tools on a workbook. Refusals have its server's words, for gspread's errors and its own."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import regex

from gymfleet_envs.agentgym_tools.base import Refused, taken
from gymfleet_envs.sheet.cells import EMPTY, Cell, Value, address, bounded, entered, position
from gymfleet_envs.sheet.workbook import Area, Sheet, TooLarge

NOT_OPEN: Final = "Please open a sheet before operating it"
_OPERATORS: Final = ("SUM", "AVERAGE", "COUNT", "MAX", "MIN", "MINUS", "PRODUCT")
_ALIKE: Final = ("SUM", "AVERAGE", "MAX", "MIN")
_UNKNOWN_OPERATOR: Final = (
    """the operator should be one of the ["SUM", "AVERAGE", "COUNT", "MAX", "MIN", "MINUS", "PRODUCT"]"""
)
_NOT_TWO_DIMENSIONAL: Final = "The values_list needs to be a 2D list, please check your parameter"
_WHOLE_DELETED: Final = "Warning: You cannot delete whole sheet at once, please try other functions"
_WHOLE_UPDATED: Final = "Warning: You cannot update whole sheet at once, please try other functions"
_FREEZES: Final = "Error: the dimension should be one of the rows/columns"
_DELETES: Final = "Wrong dimension, please choose from row/col"
_ORDERS: Final = "Either 'asc' or 'des' should be specified as sort order."
_MAX_PATTERN: Final = 400
_SEARCH_S: Final = 0.5
"""Time limit of a search of all cells: some patterns never end."""
_MAX_CELLS: Final = 24_000
_MAX_FREEZE: Final = 100


@dataclass(frozen=True, slots=True)
class Workbook:
    """Sheets by their names, and the one that is open."""

    sheets: tuple[Sheet, ...]
    opened: str | None = None

    def sheet(self, name: str) -> Sheet | None:
        """Return a sheet by its name."""
        return next((sheet for sheet in self.sheets if sheet.name == name), None)

    def use(self, tool: str, arguments: Any) -> tuple["Workbook", Any]:
        """Return the workbook after a call, and the call's result. Raises `Refused` and `Faulty`."""
        if tool == "open_sheet":
            name = taken(arguments, "name")
            if not isinstance(name, str) or self.sheet(name) is None:
                raise Refused(f"WorksheetNotFound({str(name)[:80]!r})")
            number = [sheet.name for sheet in self.sheets].index(name)
            return replace(self, opened=name), f"<Worksheet {name!r} id:{number}>"
        sheet = self.sheet(self.opened or "")
        if sheet is None:
            raise Refused(NOT_OPEN)
        try:
            changed, result = _TOOLS[tool](sheet, arguments)
        except (ValueError, OverflowError, TooLarge) as error:  # an integer may be too large for a float
            raise Refused(f"{type(error).__name__}({str(error)!r})") from None
        if changed is sheet:
            return self, result
        sheets = tuple(changed if one.name == changed.name else one for one in self.sheets)
        return replace(self, sheets=sheets), result


_Answer = tuple[Sheet, Any]


def _changed(sheet: Sheet) -> _Answer:
    return sheet, sheet.shown()


def _whole(value: Any) -> int:
    """Return the number of a row or column, or a count of them. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{str(value)[:40]!r} is no number")
    number = float(value)
    if not 0 <= number <= 10_000:
        raise ValueError(f"{str(value)[:40]} is outside of a sheet")
    return int(number)


def _index(value: Any) -> int:
    """Return an index, from 0 on. Raises ValueError."""
    if (number := _whole(value)) < 1:
        raise ValueError("rows and columns are counted from 1")
    return number - 1


def _table(values: Any) -> list[list[Value]]:
    if not isinstance(values, list) or not all(isinstance(row, list) for row in values):
        raise Refused(repr(_NOT_TWO_DIMENSIONAL))
    if sum(map(len, values)) > _MAX_CELLS:
        raise ValueError(f"more than {_MAX_CELLS} values")
    return [[entered(value) for value in row] for row in values]


def _area(arguments: Any) -> Area:
    begin, end = (position(taken(arguments, name)) for name in ("start_position", "end_position"))
    area = min(begin[0], end[0]), min(begin[1], end[1]), max(begin[0], end[0]), max(begin[1], end[1])
    if (area[2] - area[0] + 1) * (area[3] - area[1] + 1) > _MAX_CELLS:
        raise ValueError(f"the range has more than {_MAX_CELLS} cells")
    return area


def _freeze(sheet: Sheet, arguments: Any) -> _Answer:
    dimension, number = taken(arguments, "dimension"), min(_whole(taken(arguments, "num")), _MAX_FREEZE)
    if dimension not in ("rows", "columns"):
        raise Refused(repr(_FREEZES))
    frozen = replace(sheet, frozen_rows=number) if dimension == "rows" else sheet
    return frozen, f"You have successfully freeze the {dimension} {number}"


def _annotation(sheet: Sheet, arguments: Any) -> _Answer:
    return sheet, address(*(_index(taken(arguments, name)) for name in ("row", "col")))


def _insert_rows(sheet: Sheet, arguments: Any) -> _Answer:
    return _changed(sheet.with_rows(_index(taken(arguments, "row_idx")), _table(taken(arguments, "values_list"))))


def _insert_columns(sheet: Sheet, arguments: Any) -> _Answer:
    return _changed(sheet.with_columns(_index(taken(arguments, "col_idx")), _table(taken(arguments, "values_list"))))


def _delete(sheet: Sheet, arguments: Any) -> _Answer:
    dimension, listed = taken(arguments, "dimension"), taken(arguments, "index_list")
    if not isinstance(listed, list):
        raise ValueError("index_list is no list")
    chosen = sorted({_index(value) for value in listed}, reverse=True)
    if dimension not in ("row", "col"):
        raise Refused(repr(_DELETES))
    rows, columns = sheet.size
    if (dimension == "row" and len(listed) >= rows - 1) or (dimension == "col" and len(listed) == columns):
        raise Refused(repr(_WHOLE_DELETED))
    for index in chosen:
        sheet = sheet.without_row(index) if dimension == "row" else sheet.without_column(index)
    return _changed(sheet)


def _update_cell(sheet: Sheet, arguments: Any) -> _Answer:
    row, column = position(taken(arguments, "position"))
    return _changed(sheet.with_values([(row, column, entered(taken(arguments, "value")))]))


def _update_range(sheet: Sheet, arguments: Any) -> _Answer:
    area, values = _area(arguments), _table(taken(arguments, "values_list"))
    rows, columns = sheet.size
    if area == (0, 0, rows - 1, columns - 1):
        raise Refused(repr(_WHOLE_UPDATED))
    if len(values) > area[2] - area[0] + 1 or any(len(row) > area[3] - area[1] + 1 for row in values):
        raise ValueError("values_list has more rows or columns than the range")
    cells = [(area[0] + i, area[1] + j, value) for i, row in enumerate(values) for j, value in enumerate(row)]
    return _changed(sheet.with_values(cells))


def _sort(sheet: Sheet, arguments: Any) -> _Answer:
    column, order = _index(taken(arguments, "col_num")), taken(arguments, "order")
    if order not in ("asc", "des"):
        raise ValueError(_ORDERS)
    return _changed(sheet.ordered(column, descending=order == "des"))


def _merge(sheet: Sheet, arguments: Any) -> _Answer:
    return _changed(sheet.with_merged(_area(arguments)))


def _update_note(sheet: Sheet, arguments: Any) -> _Answer:
    where, content = taken(arguments, "position"), str(taken(arguments, "content"))
    changed = sheet.with_note(*position(where), content)
    return changed, f"Updated! the {where}'s note is {content}"


def _get_note(sheet: Sheet, arguments: Any) -> _Answer:
    return sheet, sheet.note(*position(taken(arguments, "position")))


def _all_values(sheet: Sheet, _: Any) -> _Answer:
    return _changed(sheet)


def _range_values(sheet: Sheet, arguments: Any) -> _Answer:
    return sheet, sheet.area(_area(arguments))


def _cell_value(sheet: Sheet, arguments: Any) -> _Answer:
    return sheet, sheet.text(*position(taken(arguments, "position"))) or None


def _value_by_formula(sheet: Sheet, arguments: Any) -> _Answer:
    return sheet, _calculated(sheet, arguments).text


def _update_by_formula(sheet: Sheet, arguments: Any) -> _Answer:
    row, column = position(taken(arguments, "result_position"))
    result = _calculated(sheet, arguments)
    before = sheet.cell(row, column)
    shown_as = result.shown_as if before.shown_as == EMPTY.shown_as else before.shown_as
    return _changed(sheet.with_values([(row, column, result.value)]).with_format(row, column, shown_as))


def _calculated(sheet: Sheet, arguments: Any) -> Cell:
    """Return the result of a formula, which stays the same when its cells change later. Raises ValueError.

    As in Google's sheets, a sum, a mean or an extreme is shown in the format of its first cell.
    """
    operator = taken(arguments, "operator")
    if operator not in _OPERATORS:
        raise Refused(repr(_UNKNOWN_OPERATOR))
    if isinstance(arguments, dict) and isinstance(listed := arguments.get("position_list"), list):
        places = [position(one) for one in listed]
    else:
        top, left, bottom, right = _area(arguments)
        places = [(row, column) for row in range(top, bottom + 1) for column in range(left, right + 1)]
    cells = [sheet.cell(*place) for place in places]
    result = _FORMULAS[operator]([cell.value for cell in cells if isinstance(cell.value, float)])
    return Cell(bounded(float(result)), cells[0].shown_as if cells and operator in _ALIKE else EMPTY.shown_as)


def _mean(numbers: Sequence[float]) -> float:
    if not numbers:
        raise ValueError("#DIV/0! no cell holds a number")
    return sum(numbers) / len(numbers)


def _minus(numbers: Sequence[float]) -> float:
    if len(numbers) != 2:
        raise ValueError("#N/A MINUS takes two numbers")
    return numbers[0] - numbers[1]


_FORMULAS: Final[dict[str, Callable[[Sequence[float]], float]]] = {
    "SUM": sum,
    "AVERAGE": _mean,
    "COUNT": len,
    "MAX": lambda numbers: max(numbers, default=0.0),
    "MIN": lambda numbers: min(numbers, default=0.0),
    "MINUS": _minus,
    "PRODUCT": lambda numbers: math.prod(numbers) if numbers else 0.0,
}


def _filter(sheet: Sheet, arguments: Any) -> _Answer:
    pattern = str(taken(arguments, "query"))
    if len(pattern) > _MAX_PATTERN:
        raise ValueError(f"a pattern has at most {_MAX_PATTERN} characters")
    in_row, in_column = (_optional(arguments, name) for name in ("in_row", "in_column"))
    until = time.monotonic() + _SEARCH_S
    try:
        compiled = regex.compile(pattern)
        found = [
            address(i, j)
            for i, row in enumerate(sheet.shown())
            for j, text in enumerate(row)
            if in_row in (None, i) and in_column in (None, j) and _fits(compiled, text, until)
        ]
    except regex.error as error:
        raise ValueError(str(error)) from None
    except (TimeoutError, RecursionError, MemoryError, OverflowError):
        raise ValueError("the pattern takes too long") from None
    return sheet, found


def _fits(pattern: regex.Pattern[str], text: str, until: float) -> bool:
    if (left := until - time.monotonic()) <= 0:
        raise TimeoutError
    return pattern.search(text, timeout=left) is not None


def _optional(arguments: Any, name: str) -> int | None:
    value = arguments.get(name)
    return None if value is None else _index(value)


def _delete_sheet(sheet: Sheet, arguments: Any) -> _Answer:
    """Refuse, as upstream always does: it gives gspread a name where gspread expects a worksheet."""
    taken(arguments, "name")
    del sheet
    raise Refused("AttributeError(\"'str' object has no attribute 'id'\")")


_TOOLS: Final[dict[str, Callable[[Sheet, Any], _Answer]]] = {
    "del_sheet": _delete_sheet,
    "freeze_data": _freeze,
    "get_A1_annotation": _annotation,
    "insert_cols": _insert_columns,
    "insert_rows": _insert_rows,
    "delete_batch_data": _delete,
    "update_cell": _update_cell,
    "update_cell_by_formula": _update_by_formula,
    "update_range": _update_range,
    "sort_sheet_by_col": _sort,
    "merge_cells": _merge,
    "update_note": _update_note,
    "get_all_values": _all_values,
    "get_range_values": _range_values,
    "get_cell_value": _cell_value,
    "get_value_by_formula": _value_by_formula,
    "filter_cells": _filter,
    "get_note": _get_note,
}
