"""Bounded replacements for the SQLite functions in which one call can spend hours.

Nothing interrupts SQLite within a function, so these first check the clock and the sizes of the arguments.
"""

import math
import re
import sqlite3
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from gymfleet_envs.sqlite.like import SQLITE_RULES, LikeRules, UnfitPattern, like

Value = str | int | float | bytes | None
_MAX_WORK: Final = 2**25
"""Limit on the size of one argument times that of the other: about a tenth of a second."""
_GROWING: Final = re.compile(r"\|\||printf|format|replace|hex|quote|group_concat|char|strftime", re.IGNORECASE)
_MAX_SHORT_CHARS: Final = 4096
_FIELD: Final = re.compile(r"%[^a-zA-Z%]*")
_LEADING_NUMBER: Final = re.compile(r"\s*[-+]?\d+(?:\.\d*)?(?:e\d+)?", re.IGNORECASE)
_MOST: Final = 2.0**31
_LOCAL: Final = threading.local()


def may_grow(sql: str) -> bool:
    """Return whether a statement may work with longer texts than the tables hold."""
    return len(sql) > _MAX_SHORT_CHARS or _GROWING.search(sql) is not None


class UnfitCall(Exception):
    """A function was called with arguments that it cannot work with; the message is for the caller."""


def install_bounded(
    connection: sqlite3.Connection,
    value_bytes: int,
    check: Callable[[], None],
    fail: Callable[[str], None],
    rules: LikeRules = SQLITE_RULES,
) -> None:
    """Replace SQLite's functions with the bounded ones.

    Args:
        connection: the connection on which the functions are called.
        value_bytes: the size of the longest value.
        check: runs before each call, and raises if the statement has no time left.
        fail: receives the reason why a call fails, because SQLite's own message lacks it.
        rules: the rules of LIKE.
    """

    def install(name: str, counts: Sequence[int], function: Callable[..., Value]) -> None:
        def call(*values: Value) -> Value:
            check()
            try:
                return function(*values)
            except (UnfitCall, UnfitPattern, sqlite3.Error) as error:
                fail(str(error))
                raise

        for count in counts:
            connection.create_function(name, count, call, deterministic=True)

    for name in ("printf", "format"):
        install(name, (-1,), partial(_formatted, value_bytes))
    for name, counts in _SEARCHING.items():
        install(name, counts, partial(_searched, name, value_bytes))
    install("like", (2, 3), partial(_like, rules))


_SEARCHING: Final = {"instr": (2,), "replace": (3,), "trim": (1, 2), "ltrim": (1, 2), "rtrim": (1, 2), "glob": (2,)}
"""Functions that compare each place of one text with another text, and the numbers of their arguments."""


def _formatted(value_bytes: int, *values: Value) -> Value:
    if values:
        _check_widths(values[0], values[1:], value_bytes)
    return _own("printf", values, value_bytes)


def _searched(name: str, value_bytes: int, *values: Value) -> Value:
    if len(values) > 1 and _size(values[0]) * _size(values[1]) > _MAX_WORK:
        raise UnfitCall(f"{name}: the texts are too long")
    return _own(name, values, value_bytes)


def _like(rules: LikeRules, pattern: Value, text: Value, *given: Value) -> Value:
    escape = given[0] if given else rules.escape
    if pattern is None or text is None or escape is None:
        return None
    if given and len(_text(escape)) != 1:
        raise UnfitCall("ESCAPE expression must be a single character")
    if isinstance(pattern, bytes) or isinstance(text, bytes):
        return 0  # as Debian's SQLite has it
    return int(like(_text(pattern), _text(text), _text(escape), rules.fold))


def _text(value: Value) -> str:
    """Return a value as SQLite reads it for LIKE: up to the first NUL."""
    if isinstance(value, float):
        value = _own("printf", ("%s", value), 1000)
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text.partition("\0")[0]


def _check_widths(form: Value, values: tuple[Value, ...], value_bytes: int) -> None:
    """Raise `UnfitCall` if the widths and precisions together exceed the size of a value."""
    fields = _FIELD.findall(_text(form)) if form is not None else []
    numbers = [min(int(digits), 2**31) for field in fields for digits in re.findall(r"\d+", field)]
    given = [abs(int(_number(value))) for value in values]
    starred = sum(field.count("*") for field in fields) * max(given, default=0)
    if sum(numbers) + starred > value_bytes:
        raise UnfitCall("string or blob too big")


def _number(value: Value) -> float:
    """Return the width that SQLite reads from a value, or more."""
    if isinstance(value, int | float):
        return 0.0 if math.isnan(value) else max(-_MOST, min(_MOST, value))
    found = _LEADING_NUMBER.match(_text(value)) if value is not None else None
    return min(_MOST, abs(float(found[0]))) if found else 0.0


def _size(value: Value) -> int:
    return len(value) if isinstance(value, str | bytes) else 24


def _own(name: str, values: tuple[Value, ...], value_bytes: int) -> Value:
    """Return the result of SQLite's own function, from a connection on which it is not replaced."""
    scratch: sqlite3.Connection | None = getattr(_LOCAL, "scratch", None)
    if scratch is None:
        scratch = _LOCAL.scratch = sqlite3.connect(":memory:", isolation_level=None)
    scratch.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, value_bytes)
    row = scratch.execute(f"SELECT {name}({', '.join('?' * len(values))})", values).fetchone()
    result: Value = row[0]
    return result
