"""MySQL's functions that SQLite lacks, so that statements written for DBBench run on it."""

import hashlib
import math
import re
import sqlite3
from collections.abc import Callable
from datetime import date, datetime
from decimal import ROUND_HALF_UP, Decimal
from functools import cache, wraps
from typing import Any, Final

from gymfleet_envs.db.collation import compare, fold
from gymfleet_envs.sqlite.guard import PURE_FUNCTIONS

_MONTHS_FIRST: Final = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d")
_CODES: Final = {
    "Y": "%Y", "y": "%y", "m": "%m", "c": "%m", "d": "%d", "e": "%d", "M": "%B", "b": "%b", "H": "%H", "i": "%M",
    "s": "%S", "S": "%S", "W": "%A", "a": "%a", "p": "%p", "h": "%I", "j": "%j", "T": "%H:%M:%S", "%": "%%",
}  # fmt: skip
"""MySQL's date codes, translated to Python's."""
_LEADING_NUMBER: Final = re.compile(r"\s*[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.IGNORECASE)
"""The part of a text that counts where MySQL takes it for a number."""
_WHOLE: Final = 2**31
_MOST_PLAIN: Final = 1e15
"""The number from which on MySQL writes an exponent."""
_UNPADDED: Final = {"e": "day", "c": "month"}

Value = str | int | float | bytes | None


def install(connection: sqlite3.Connection, max_chars: int) -> None:
    """Add the functions; those that lengthen texts return NULL beyond `max_chars`, as MySQL's do."""
    for name, function in _functions(max_chars).items():
        for count in _REPLACED.get(name, (-1,)):  # SQLite's own goes first where it says how many arguments it takes
            connection.create_function(name, count, function, deterministic=True)


@cache
def _functions(max_chars: int) -> dict[str, Callable[..., Value]]:
    bounded: dict[str, Callable[..., Any]] = {
        "repeat": lambda text, count: _text(text) * _within(count, len(_text(text)), max_chars),
        "space": lambda count: " " * _within(count, 1, max_chars),
        "lpad": lambda text, count, fill: _pad(_text(text), _within(count, 1, max_chars), _text(fill), left=True),
        "rpad": lambda text, count, fill: _pad(_text(text), _within(count, 1, max_chars), _text(fill), left=False),
    }
    strict = {name: _null_if_any_is(function) for name, function in (_STRICT | bounded).items()}
    return strict | {name: _null_if_wrong(function) for name, function in _LENIENT.items()}


def _null_if_wrong(function: Callable[..., Any]) -> Callable[..., Value]:
    """Return NULL for arguments that make no sense, where MySQL warns."""

    @wraps(function)
    def call(*values: Value) -> Value:
        try:
            result: Value = function(*values)
        except (ValueError, ArithmeticError, IndexError):
            return None
        return result

    return call


def _null_if_any_is(function: Callable[..., Any]) -> Callable[..., Value]:
    guarded = _null_if_wrong(function)

    @wraps(function)
    def call(*values: Value) -> Value:
        return None if any(value is None for value in values) else guarded(*values)

    return call


def _text(value: Value) -> str:
    """Return a value as a text, as MySQL writes it: 7 where Python writes 7.0."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < _MOST_PLAIN else repr(value).replace("e+", "e")
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _within(count: Value, size: int, limit: int) -> int:
    number = max(0, int(float(_text(count))))
    if number * size > limit:
        raise ValueError("too long")
    return number


def _pad(text: str, count: int, fill: str, *, left: bool) -> str:
    missing = count - len(text)
    if missing <= 0:
        return text[:count]
    if not fill:
        raise ValueError("nothing to fill with")
    filling = (fill * (missing // len(fill) + 1))[:missing]
    return filling + text if left else text + filling


def _concat_ws(separator: Value, *values: Value) -> Value:
    return None if separator is None else _text(separator).join(_text(value) for value in values if value is not None)


def _substring_index(text: Value, mark: Value, count: Value) -> str:
    number, delimiter = int(_text(count)), _text(mark)
    if not delimiter or number == 0:
        return ""
    parts = _text(text).split(delimiter)
    return delimiter.join(parts[:number] if number > 0 else parts[number:])


def _locate(part: Value, text: Value, start: Value = 1) -> int:
    # MySQL compares as many bytes here as `part` has, so a letter is not found by its form without an accent.
    return _text(text).lower().find(_text(part).lower(), max(0, int(_text(start)) - 1)) + 1


def _right(text: Value, count: Value) -> str:
    number = int(float(_text(count)))
    return _text(text)[-number:] if number > 0 else ""


def _mid(text: str, start: int, count: int) -> str:
    """Return `count` characters from `start` on, counted from 1, or from the end if negative; nothing from 0 on."""
    begin = start - 1 if start > 0 else len(text) + start
    return "" if start == 0 or begin < 0 else text[begin:][: max(0, count)]


def _round(number: float, places: int) -> float:
    unit = Decimal(1).scaleb(-min(30, max(-30, places)))
    return float((Decimal(repr(number)) / unit).quantize(Decimal(1), ROUND_HALF_UP) * unit)


def _truncate(number: Value, places: Value) -> float:
    scale = 10.0 ** min(15, max(-15, int(_text(places))))
    return int(float(_text(number)) * scale) / scale


def _grouped(number: Value, places: Value) -> str:
    return f"{float(_text(number)):,.{min(30, max(0, int(_text(places))))}f}"


def _field(value: Value, *values: Value) -> int:
    names = [None if item is None else fold(_text(item)) for item in values]
    return 0 if value is None or fold(_text(value)) not in names else names.index(fold(_text(value))) + 1


def _if(condition: Value, yes: Value, no: Value) -> Value:
    if isinstance(condition, str):
        found = _LEADING_NUMBER.match(condition)
        return yes if found and float(found[0]) else no
    return yes if condition else no


def _day(value: Value) -> datetime:
    text = _text(value).strip()[:19]
    for form in _MONTHS_FIRST:
        try:
            return datetime.strptime(text, form)  # noqa: DTZ007 - MySQL's dates have no zone
        except ValueError:
            continue
    raise ValueError(text)


def _str_to_date(text: Value, form: Value) -> str:
    given = _text(form)[:100]
    moment = datetime.strptime(_text(text).strip()[:100], _python_form(given))  # noqa: DTZ007
    whole_day = not any(f"%{code}" in given for code in "HhisSTp")
    return moment.date().isoformat() if whole_day else moment.isoformat(" ")


def _date_format(value: Value, form: Value) -> str:
    moment, given = _day(value), _text(form)[:100]
    for code, part in _UNPADDED.items():
        given = given.replace(f"%{code}", str(getattr(moment, part)))
    return moment.strftime(_python_form(given))


def _python_form(form: str) -> str:
    characters = iter(form)
    return "".join(_CODES.get(next(characters, ""), "") if one == "%" else one for one in characters)


def _least(values: tuple[Value, ...], *, greatest: bool) -> Value:
    if all(isinstance(value, int | float) for value in values):
        return (max if greatest else min)(value for value in values if isinstance(value, int | float))
    return (max if greatest else min)(values, key=_text)


_STRICT: Final[dict[str, Callable[..., Any]]] = {
    "concat": lambda *values: "".join(_text(value) for value in values),
    "md5": lambda text: hashlib.md5(_text(text).encode(), usedforsecurity=False).hexdigest(),
    "mysql_left": lambda text, count: _text(text)[: max(0, int(float(_text(count))))],
    "mysql_right": _right,
    "mysql_format": _grouped,
    "mid": lambda text, start, count=_WHOLE: _mid(_text(text), int(float(_text(start))), int(float(_text(count)))),
    "mysql_round": lambda number, places: _round(float(_text(number)), int(float(_text(places)))),
    "char_length": lambda text: len(_text(text)),
    "character_length": lambda text: len(_text(text)),
    "ucase": lambda text: _text(text).upper(),
    "lcase": lambda text: _text(text).lower(),
    "reverse": lambda text: _text(text)[::-1],
    "locate": _locate,
    "substring_index": _substring_index,
    "truncate": _truncate,
    "strcmp": lambda one, two: compare(_text(one), _text(two)),
    "instr": lambda text, part: _locate(part, text),
    "length": lambda text: len(text) if isinstance(text, bytes) else len(_text(text).encode()),
    "log": lambda *values: _log(*(float(_text(value)) for value in values)),
    "hex": lambda value: f"{round(value):X}" if isinstance(value, int | float) else _bytes(value).hex().upper(),
    "greatest": lambda *values: _least(values, greatest=True),
    "least": lambda *values: _least(values, greatest=False),
    "str_to_date": _str_to_date,
    "date_format": _date_format,
    "date": lambda value: _day(value).date().isoformat(),
    "year": lambda value: _day(value).year,
    "month": lambda value: _day(value).month,
    "day": lambda value: _day(value).day,
    "monthname": lambda value: f"{_day(value):%B}",
    "datediff": lambda one, two: (_day(one).date() - _day(two).date()).days,
    "last_day": lambda value: _last_day(_day(value).date()).isoformat(),
}
_LENIENT: Final[dict[str, Callable[..., Any]]] = {
    "concat_ws": _concat_ws,
    "field": _field,
    "mysql_stored": lambda value: _text(value) if isinstance(value, float) else value,
    "mysql_isnull": lambda value: int(value is None),
    "mysql_if": _if,
}


def _log(base: float, number: float | None = None) -> float:
    """Return the natural logarithm, or that to a base; SQLite's own function has base 10."""
    return math.log(base) if number is None else math.log(number) / math.log(base)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _last_day(day: date) -> date:
    following = date(day.year + day.month // 12, day.month % 12 + 1, 1)
    return date.fromordinal(following.toordinal() - 1)


_REPLACED: Final = {"instr": (2,), "length": (1,), "log": (1, 2), "hex": (1,)}
"""SQLite's own functions with the same name but another meaning, and their numbers of arguments."""
_NOT_MYSQL: Final = frozenset(
    ("acosh", "asinh", "atanh", "cosh", "sinh", "tanh", "glob", "iif", "printf", "total", "trunc", "typeof", "unicode")
)
FUNCTIONS: Final = (PURE_FUNCTIONS - _NOT_MYSQL) | frozenset(_functions(1))
"""Those of SQLite's functions and ours that MySQL has."""
