"""Cells: values, how a number format shows them, and A1 notation."""

import re
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Value: TypeAlias = str | float | bool | None
_A1: Final = re.compile(r"([A-Za-z]{1,3})([1-9][0-9]{0,6})")
_FORMAT: Final = re.compile(r"([#,]*)(0+)(?:\.(0+))?(%?)")
_GENERAL: Final = "General"
_LETTERS: Final = 26


@dataclass(frozen=True, slots=True)
class Cell:
    """The content of a cell; `shown_as` is a spreadsheet's number format, such as `#,##0.00`."""

    value: Value = None
    shown_as: str = _GENERAL

    @property
    def text(self) -> str:
        """The text that the cell shows."""
        if self.value is None:
            return ""
        if isinstance(self.value, bool):
            return str(self.value).upper()
        if isinstance(self.value, str):
            return self.value
        return _number(self.value, self.shown_as)


EMPTY: Final = Cell()


def _number(value: float, shown_as: str) -> str:
    found = _FORMAT.fullmatch(shown_as)
    if found is None:
        return f"{value:.10g}"
    grouping, _, decimals, percent = found.groups()
    scaled = value * 100 if percent else value
    digits = len(decimals or "")
    return f"{scaled:{',' if ',' in grouping else ''}.{digits}f}{percent}"


def entered(value: Any) -> Value:
    """Return a value as the tools take it: text that looks like a number becomes one."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return bounded(float(value))
    text = str(value)
    try:
        return bounded(float(text)) if text.strip().lower().lstrip("+-") not in ("nan", "inf", "infinity") else text
    except ValueError:
        return text


def bounded(value: float) -> float:
    """Return a number that a cell can hold. Raises ValueError."""
    if not abs(value) < 1e15:
        raise ValueError(f"{value!r} is too large for a cell")
    return value


def position(text: Any) -> tuple[int, int]:
    """Return the row and column of an A1 address, from 0 on. Raises ValueError."""
    found = _A1.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"{str(text)[:40]!r} is no cell such as B2")
    column = 0
    for letter in found[1].upper():
        column = column * _LETTERS + ord(letter) - ord("A") + 1
    return int(found[2]) - 1, column - 1


def address(row: int, column: int) -> str:
    """Return the A1 address of a row and column, from 0 on."""
    letters, rest = "", column + 1
    while rest:
        rest, letter = divmod(rest - 1, _LETTERS)
        letters = chr(ord("A") + letter) + letters
    return f"{letters}{row + 1}"
