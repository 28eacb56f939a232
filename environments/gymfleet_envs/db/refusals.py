"""What MySQL refuses and SQLite would run: an agent that learned it here would fail on the database it is told of."""

from collections.abc import Sequence
from typing import Final

from gymfleet_envs.sql_text import Token, closing
from gymfleet_envs.sqlite.guard import StatementFailed

_CAST_TYPES: Final = frozenset(
    ("char", "character", "nchar", "decimal", "dec", "double", "float", "real", "signed", "unsigned")
)
_NO_CASTS: Final = frozenset(("binary", "date", "datetime", "time", "year", "json"))
"""MySQL has them; SQLite would take the number at the text's beginning."""
_BEFORE: Final = {
    "insert": ("or",),
    "update": ("or",),
    "full": ("outer", "join"),
    "on": ("conflict",),
    "filter": ("(",),
    "nulls": ("first", "last"),
}
"""Words that have a meaning in SQLite that they have not in MySQL, and what stands after them then."""
_FOREIGN: Final = frozenset(("returning", "glob", "notnull", "isnull", "indexed", "materialized"))
"""Those that have one wherever they stand, unless a parenthesis follows."""
_AFTER_IS: Final = frozenset(("not", "null", "true", "false", "unknown", "("))
_ROW_NUMBERS: Final = frozenset(("rowid", "_rowid_", "oid"))
_TELLING: Final = frozenset(_BEFORE) | _FOREIGN | _ROW_NUMBERS | {"is", "in", "any", "all", "some", "cast", "delete"}
_SYNTAX: Final = "1064 (42000): You have an error in your SQL syntax near '{}'"


def refuse_what_mysql_refuses(statement: Sequence[Token], columns: frozenset[str]) -> None:
    """Raise `StatementFailed`, with MySQL's number and words.

    Args:
        statement: its tokens, without space and comments.
        columns: the names of all tables' columns, in lower case.
    """
    if _TELLING.isdisjoint([piece.name for piece in statement]) and all(piece.text != "==" for piece in statement):
        return  # most statements, and this is quick
    for place, piece in enumerate(statement):
        following = statement[place + 1] if place + 1 < len(statement) else Token("other", "")
        if piece.text == "==":
            raise StatementFailed(_SYNTAX.format("=="))
        if piece.kind != "word" or piece.name in columns:
            continue
        if _is_foreign(piece.name, following.name or following.text) or _type_of(statement, place) == "":
            raise StatementFailed(_SYNTAX.format(" ".join(one.text for one in statement[place : place + 4])[:80]))
        if (kind := _type_of(statement, place)) in _NO_CASTS:
            raise StatementFailed(f"CAST ... AS {kind.upper()} is not there; use functions such as DATE(...)")
        if piece.name in _ROW_NUMBERS:
            raise StatementFailed(f"1054 (42S22): Unknown column '{piece.text}'")
        if piece.name in ("in", "any", "all", "some") and _limits(statement, place + 1):
            raise StatementFailed(
                "1235 (42000): This version of MySQL doesn't yet support 'LIMIT & IN/ALL/ANY/SOME subquery'"
            )
    _refuse_own_target(statement)


def _is_foreign(name: str, following: str) -> bool:
    if name == "is":
        return following not in _AFTER_IS
    return following in _BEFORE.get(name, ()) or (name in _FOREIGN and following != "(")


def _type_of(statement: Sequence[Token], place: int) -> str | None:
    """The type that a CAST which begins here casts to; empty: one that MySQL does not know; None: there is no CAST."""
    if statement[place].name != "cast" or [piece.text for piece in statement[place + 1 : place + 2]] != ["("]:
        return None
    end = closing(statement, place + 1)
    types = [statement[at + 1].name for at in range(place, end - 1) if statement[at].name == "as"]
    return types[-1] if types and types[-1] in _CAST_TYPES | _NO_CASTS else ""


def _limits(statement: Sequence[Token], opening: int) -> bool:
    """Whether a subquery in these parentheses has a LIMIT of its own."""
    if [piece.name or piece.text for piece in statement[opening : opening + 2]] != ["(", "select"]:
        return False
    depth = 0
    for piece in statement[opening : closing(statement, opening)]:
        depth += {"(": 1, ")": -1}.get(piece.text, 0)
        if depth == 1 and piece.kind == "word" and piece.name == "limit":
            return True
    return False


def _refuse_own_target(statement: Sequence[Token]) -> None:
    """UPDATE and DELETE may not read the table that they change, unless through a table that is derived from it."""
    words = [piece.name for piece in statement[:3]]
    if words[0] == "update":
        target = words[1]
    elif words[:2] == ["delete", "from"]:
        target = words[2] if len(words) > 2 else ""
    else:
        return
    derived: list[bool] = []
    """For each parenthesis that is open, whether what it holds is a derived table, or stands in one."""
    for place, piece in enumerate(statement):
        before = statement[place - 1].name if place else ""
        if piece.text == "(":
            derived.append(before in ("from", "join") or bool(derived and derived[-1]))
        elif piece.text == ")" and derived:
            derived.pop()
        elif derived and not derived[-1] and before in ("from", "join") and piece.name == target:
            raise StatementFailed(
                f"1093 (HY000): You can't specify target table '{piece.name}' for update in FROM clause"
            )
