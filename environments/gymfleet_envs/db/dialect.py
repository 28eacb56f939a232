"""MySQL's dialect on SQLite: the spellings and comparison rules that DBBench's statements rely on."""

from collections.abc import Sequence
from typing import Final

from gymfleet_envs.sql_text import Token, closing

_COMPARISONS: Final = frozenset({"=", "<", ">", "<=", ">=", "<>", "!="})
_RENAMED: Final = {"left": "mysql_left", "right": "mysql_right", "if": "mysql_if", "format": "mysql_format"}
"""Functions whose names SQLite's grammar keeps for itself, or gives another meaning."""
_TYPES: Final = {"unsigned": "INTEGER", "signed": "INTEGER", "double": "REAL", "char": "TEXT"}
_OPERATORS: Final = {"&&": " AND ", "||": " OR ", "<=>": " IS ", "/": "*1.0/"}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "", "b": "\b", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_NOT_OPERANDS: Final = frozenset(
    [
        "where",
        "and",
        "or",
        "not",
        "on",
        "having",
        "when",
        "then",
        "else",
        "case",
        "select",
        "set",
        "by",
        "in",
        "between",
        "like",
        "limit",
        "offset",
        "values",
        "return",
    ]
)


def to_sqlite(pieces: Sequence[Token]) -> str:
    """A statement of MySQL's dialect, without space and comments, in SQLite's.

    A column of text that is compared with a number is compared as a number: MySQL takes the number at the text's
    beginning, and SQLite would compare the two as texts.
    """
    out = [_spelled(pieces, place) for place in range(len(pieces))]
    assignments = _assignments(pieces)
    for place, piece in enumerate(pieces):
        if piece.text in _COMPARISONS and place not in assignments:
            if _is_number(pieces, place + 1):
                _as_number(pieces, out, _operand(pieces, place - 1), place - 1)
            elif _is_number(pieces, place - 1):
                _as_number(pieces, out, place + 1, _operand_end(pieces, place + 1))
        elif piece.kind == "word" and piece.name in ("between", "in"):
            number = place + (1 if piece.name == "between" else 2)
            last = place - 2 if pieces[place - 1].name == "not" else place - 1
            if last >= 0 and _is_number(pieces, number):
                _as_number(pieces, out, _operand(pieces, last), last)
    return " ".join(out)


def literal(text: str) -> str:
    """A string literal of SQLite."""
    return "'" + text.replace("'", "''") + "'"


def _spelled(pieces: Sequence[Token], place: int) -> str:
    piece = pieces[place]
    if piece.kind in ("string", "double"):
        return literal(_unescaped(piece.text))
    if piece.kind == "other":
        return _OPERATORS.get(piece.text, piece.text)
    if piece.kind == "word":
        following = pieces[place + 1].text if place + 1 < len(pieces) else ""
        if piece.name in _RENAMED and following == "(":
            return _RENAMED[piece.name]
        if piece.name in _TYPES and place and pieces[place - 1].name == "as":
            return _TYPES[piece.name]
        if piece.text[0].isdigit() or "$" in piece.text:  # a name in MySQL, a number or nothing at all in SQLite
            return f"`{piece.text}`"
    return piece.text


def _unescaped(quoted: str) -> str:
    mark, text = quoted[0], quoted[1:-1].replace(quoted[0] * 2, quoted[0])
    if "\\" not in text:
        return text
    out: list[str] = []
    characters = iter(quoted[1:-1])
    for character in characters:
        if character == "\\":
            escaped = next(characters, "")
            out.append(_ESCAPES.get(escaped, escaped))
        else:
            out.append(character)
            if character == mark:
                next(characters, None)  # a doubled quote
    return "".join(out)


def _assignments(pieces: Sequence[Token]) -> set[int]:
    """Places of `=` that assign: those of an UPDATE's SET, outside of parentheses."""
    found: set[int] = set()
    depth, assigning = 0, False
    for place, piece in enumerate(pieces):
        depth += {"(": 1, ")": -1}.get(piece.text, 0)
        if depth == 0 and piece.kind == "word":
            assigning = piece.name == "set" or (assigning and piece.name not in ("where", "order", "limit"))
        if assigning and depth == 0 and piece.text == "=" and pieces[place - 1].kind in ("word", "quoted"):
            found.add(place)
    return found


def _is_number(pieces: Sequence[Token], place: int) -> bool:
    if 0 <= place < len(pieces) and pieces[place].text in ("-", "+"):
        place += 1
    return 0 <= place < len(pieces) and pieces[place].kind == "number"


def _operand(pieces: Sequence[Token], last: int) -> int:
    """Where the operand begins that ends at `last`: a name, a call, or an expression in parentheses; -1: none."""
    first = last
    if last >= 0 and pieces[last].text == ")":
        depth = 0
        while first >= 0:
            depth += {")": 1, "(": -1}.get(pieces[first].text, 0)
            if depth == 0:
                break
            first -= 1
        called = first > 0 and pieces[first - 1].kind == "word" and pieces[first - 1].name not in _NOT_OPERANDS
        return first - 1 if called else first
    if last < 0 or pieces[last].kind not in ("word", "quoted") or pieces[last].name in _NOT_OPERANDS:
        return -1
    while first >= 2 and pieces[first - 1].text == "." and pieces[first - 2].kind in ("word", "quoted"):
        first -= 2
    return first


def _operand_end(pieces: Sequence[Token], first: int) -> int:
    """Where the operand ends that begins at `first`; -1: none."""
    last = first
    if first >= len(pieces) or pieces[first].kind not in ("word", "quoted"):
        return -1
    while last + 2 < len(pieces) and pieces[last + 1].text == ".":
        last += 2
    if last + 1 < len(pieces) and pieces[last + 1].text == "(":
        last = closing(pieces, last + 1)
    return min(last, len(pieces) - 1)


def _as_number(pieces: Sequence[Token], out: list[str], first: int, last: int) -> None:
    if 0 <= first <= last < len(pieces):
        out[first] = f"CAST({out[first]}"
        out[last] = f"{out[last]} AS REAL)"
