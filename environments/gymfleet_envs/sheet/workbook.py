"""A workbook in memory. Sheets are immutable: each change returns another one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from gymfleet_envs.sheet.cells import EMPTY, Cell, Value

Rows: TypeAlias = tuple[tuple[Cell, ...], ...]
Area: TypeAlias = tuple[int, int, int, int]
"""First row, first column, last row, last column, from 0 on."""
MAX_ROWS: Final = 400
MAX_COLUMNS: Final = 60
_ORDER: Final = {float: 0, str: 1, bool: 2}


class TooLarge(ValueError):
    """The sheet would have more rows or columns than a sheet may have."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table. `rows` may have different lengths: missing cells are empty."""

    name: str
    rows: Rows
    notes: tuple[tuple[int, int, str], ...] = ()
    """Row, column and text."""
    merged: tuple[Area, ...] = ()
    frozen_rows: int = 0

    def cell(self, row: int, column: int) -> Cell:
        """Return a cell; a cell outside of the table is empty."""
        if 0 <= row < len(self.rows) and 0 <= column < len(self.rows[row]):
            return self.rows[row][column]
        return EMPTY

    def text(self, row: int, column: int) -> str:
        """Return the text that a cell shows: in a merged area, the text of the area's first cell."""
        for top, left, bottom, right in self.merged:
            if top <= row <= bottom and left <= column <= right:
                return self.cell(top, left).text
        return self.cell(row, column).text

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns up to the last that is not empty."""
        filled = [(i, j) for i, row in enumerate(self.rows) for j, cell in enumerate(row) if cell.text]
        return max((i + 1 for i, _ in filled), default=0), max((j + 1 for _, j in filled), default=0)

    def shown(self) -> list[list[str]]:
        """Return all texts of the area that `size` gives."""
        height, width = self.size
        return self.area((0, 0, height - 1, width - 1))

    def area(self, area: Area) -> list[list[str]]:
        """Return the texts of an area."""
        top, left, bottom, right = area
        return [[self.text(row, column) for column in range(left, right + 1)] for row in range(top, bottom + 1)]

    def note(self, row: int, column: int) -> str:
        """Return a cell's note, or an empty text."""
        return next((text for i, j, text in self.notes if (i, j) == (row, column)), "")

    def with_note(self, row: int, column: int, text: str) -> "Sheet":
        """Return the sheet with another note in a cell."""
        others = tuple(note for note in self.notes if note[:2] != (row, column))
        return replace(self, notes=(*others, (row, column, text)))

    def with_values(self, values: Iterable[tuple[int, int, Value]]) -> "Sheet":
        """Return the sheet with other values in cells, which keep their formats."""
        rows = [list(row) for row in self.rows]
        for row, column, value in values:
            if not (0 <= row < MAX_ROWS and 0 <= column < MAX_COLUMNS):
                raise TooLarge(f"a sheet has at most {MAX_ROWS} rows and {MAX_COLUMNS} columns")
            rows.extend([] for _ in range(row + 1 - len(rows)))
            rows[row].extend(EMPTY for _ in range(column + 1 - len(rows[row])))
            rows[row][column] = replace(rows[row][column], value=value)
        return replace(self, rows=tuple(map(tuple, rows)))

    def with_format(self, row: int, column: int, shown_as: str) -> "Sheet":
        """Return the sheet with another number format of an existing cell."""
        cells = list(self.rows[row])
        cells[column] = replace(cells[column], shown_as=shown_as)
        return replace(self, rows=(*self.rows[:row], tuple(cells), *self.rows[row + 1 :]))

    def with_rows(self, at: int, values: Sequence[Sequence[Value]]) -> "Sheet":
        """Return the sheet with rows inserted at an index, in the formats of the row that they push down or follow."""
        if max(at, len(self.rows)) + len(values) > MAX_ROWS or any(len(row) > MAX_COLUMNS for row in values):
            raise TooLarge(f"a sheet has at most {MAX_ROWS} rows and {MAX_COLUMNS} columns")
        like = self.rows[at] if at < len(self.rows) else self.rows[-1] if self.rows else ()
        formats = [cell.shown_as for cell in like] + [EMPTY.shown_as] * MAX_COLUMNS
        new = tuple(tuple(map(Cell, row, formats)) for row in values)
        padding = ((),) * (at - len(self.rows))
        moved = tuple((i + len(values) * (i >= at), j, text) for i, j, text in self.notes)
        merged = tuple(_moved(area, 0, at, len(values)) for area in self.merged)
        return replace(self, rows=(*self.rows[:at], *padding, *new, *self.rows[at:]), notes=moved, merged=merged)

    def without_row(self, at: int) -> "Sheet":
        """Return the sheet without a row."""
        notes = tuple((i - (i > at), j, text) for i, j, text in self.notes if i != at)
        merged = tuple(_shrunk(area, 0, at) for area in self.merged)
        frozen = self.frozen_rows - (at < self.frozen_rows)
        rows = self.rows[:at] + self.rows[at + 1 :]
        return replace(self, rows=rows, notes=notes, merged=_areas(merged), frozen_rows=frozen)

    def without_column(self, at: int) -> "Sheet":
        """Return the sheet without a column."""
        notes = tuple((i, j - (j > at), text) for i, j, text in self.notes if j != at)
        merged = tuple(_shrunk(area, 1, at) for area in self.merged)
        return replace(self, rows=tuple(row[:at] + row[at + 1 :] for row in self.rows), notes=notes,
                       merged=_areas(merged))  # fmt: skip

    def with_columns(self, at: int, values: Sequence[Sequence[Value]]) -> "Sheet":
        """Return the sheet with columns inserted at an index."""
        height = max([len(self.rows), *map(len, values)])
        if height > MAX_ROWS or max([at, *map(len, self.rows)]) + len(values) > MAX_COLUMNS:
            raise TooLarge(f"a sheet has at most {MAX_ROWS} rows and {MAX_COLUMNS} columns")
        rows = []
        for row in range(height):
            cells = list(self.rows[row]) if row < len(self.rows) else []
            cells.extend(EMPTY for _ in range(at - len(cells)))
            like = self.cell(row, at if at < len(cells) else at - 1)
            new = [replace(like, value=column[row] if row < len(column) else None) for column in values]
            rows.append((*cells[:at], *new, *cells[at:]))
        notes = tuple((i, j + len(values) * (j >= at), text) for i, j, text in self.notes)
        merged = tuple(_moved(area, 1, at, len(values)) for area in self.merged)
        return replace(self, rows=tuple(rows), notes=notes, merged=merged)

    def with_merged(self, area: Area) -> "Sheet":
        """Return the sheet with an area merged into one cell, which keeps the content of its first cell."""
        top, left, bottom, right = area
        inner = [(i, j) for i in range(top, bottom + 1) for j in range(left, right + 1) if (i, j) != (top, left)]
        emptied = self.with_values((i, j, None) for i, j in inner if self.cell(i, j) != EMPTY)
        apart = tuple(old for old in self.merged if not _overlap(old, area))
        return replace(emptied, merged=(*apart, area))

    def ordered(self, column: int, *, descending: bool) -> "Sheet":
        """Return the sheet with its rows, below the frozen ones, sorted by a column.

        Numbers come before texts, and texts before truth values; in descending order the other way round. Empty cells
        come last. Equal rows keep their order; notes move with their rows.
        """
        height, _ = self.size
        begin = min(self.frozen_rows, height)
        places = list(range(begin, height))
        empty = [place for place in places if self.cell(place, column).value in (None, "")]
        filled = [place for place in places if place not in set(empty)]
        filled.sort(key=lambda place: _rank(self.cell(place, column).value), reverse=descending)  # stable either way
        order = [*range(begin), *filled, *empty, *range(height, len(self.rows))]
        new = {old: place for place, old in enumerate(order)}
        notes = tuple((new[i], j, text) if i in new else (i, j, text) for i, j, text in self.notes)
        return replace(self, rows=tuple(self.rows[place] for place in order), notes=notes)


def _rank(value: Value) -> tuple[int, float, str]:
    kind = _ORDER[type(value)] if value is not None else len(_ORDER)
    number = float(value) if isinstance(value, float | bool) else 0.0
    return kind, number, value.lower() if isinstance(value, str) else ""


def _overlap(one: Area, other: Area) -> bool:
    return one[0] <= other[2] and other[0] <= one[2] and one[1] <= other[3] and other[1] <= one[3]


def _moved(area: Area, axis: int, at: int, by: int) -> Area:
    edges = list(area)
    for edge in (axis, axis + 2):
        edges[edge] += by * (edges[edge] >= at)
    return edges[0], edges[1], edges[2], edges[3]


def _shrunk(area: Area, axis: int, at: int) -> Area:
    edges = list(area)
    edges[axis] -= edges[axis] > at
    edges[axis + 2] -= edges[axis + 2] >= at
    return edges[0], edges[1], edges[2], edges[3]


def _areas(areas: Iterable[Area]) -> tuple[Area, ...]:
    """Return the areas that still have more than one cell."""
    return tuple(area for area in areas if area[2] >= area[0] and area[3] >= area[1] and area[:2] != area[2:])
