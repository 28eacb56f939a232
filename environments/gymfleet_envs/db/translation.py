"""Translation of MySQL statements for SQLite."""

from functools import lru_cache
from typing import Final

from gymfleet_envs.db.database import VERBS
from gymfleet_envs.db.dialect import to_sqlite
from gymfleet_envs.db.mysql import parse
from gymfleet_envs.db.refusals import refuse_what_mysql_refuses
from gymfleet_envs.sql_text import UnfitStatement, one_statement, tokens
from gymfleet_envs.sqlite.guard import StatementFailed

_KEPT: Final = 2048
_MAX_KEPT_CHARS: Final = 1000


def translated(sql: str, columns: frozenset[str]) -> str:
    """Translate a statement from MySQL's dialect to SQLite's. Raises `StatementFailed`, also for what MySQL refuses.

    Args:
        sql: the statement.
        columns: the names of all tables' columns, in lower case.
    """
    translate = _kept_translation if len(sql) <= _MAX_KEPT_CHARS else _translation
    statement, fault = translate(sql, columns)
    if fault:
        raise StatementFailed(fault)
    return statement


def _translation(sql: str, columns: frozenset[str]) -> tuple[str, str]:
    """Return the translated statement, or its fault."""
    try:
        tree = parse(sql)
        refuse_what_mysql_refuses(tree, columns)
        statement = to_sqlite(tree)
        one_statement(tokens(statement), VERBS)  # once more, for these are the words that SQLite reads
    except (StatementFailed, UnfitStatement) as error:
        return "", str(error)
    except RecursionError:
        return "", "the statement is nested too deeply"
    return statement, ""


_kept_translation: Final = lru_cache(_KEPT)(_translation)
"""A cache: translating a statement takes longer than executing it, and episodes of a group write the same ones."""
