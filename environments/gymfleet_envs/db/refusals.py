"""Refuses what MySQL refuses and SQLite would run: an agent that learned it here would fail on a MySQL database."""

from typing import Final

from sqlglot import exp

from gymfleet_envs.sqlite.guard import StatementFailed

_ROW_NUMBERS: Final = frozenset(("rowid", "_rowid_", "oid"))


def refuse_what_mysql_refuses(statement: exp.Expr, columns: frozenset[str]) -> None:
    """Raise `StatementFailed`, with MySQL's number and wording, for a statement that MySQL refuses.

    Args:
        statement: its tree, of MySQL's own parts.
        columns: the names of all tables' columns, in lower case.
    """
    for node in statement.find_all(exp.Column, exp.In, exp.Any, exp.All):
        if isinstance(node, exp.Column):
            if node.name.lower() in _ROW_NUMBERS - columns:
                raise StatementFailed(f"1054 (42S22): Unknown column '{node.name}'")
        elif _limits(node.args.get("query") or node.this):
            raise StatementFailed(
                "1235 (42000): This version of MySQL doesn't yet support 'LIMIT & IN/ALL/ANY/SOME subquery'"
            )
    if isinstance(statement, exp.Update | exp.Delete):
        _refuse_own_target(statement)


def _limits(subquery: exp.Expr) -> bool:
    """Whether a subquery has its own LIMIT."""
    query = subquery.unnest()
    return isinstance(query, exp.Query) and query.args.get("limit") is not None


def _refuse_own_target(statement: exp.Update | exp.Delete) -> None:
    """Refuse a statement that reads the table it changes, unless through a table derived from it."""
    target = statement.this.name.lower()
    for table in statement.find_all(exp.Table):
        query = table.find_ancestor(exp.Select)
        if table.name.lower() == target and query is not None and query.find_ancestor(exp.From, exp.Join) is None:
            raise StatementFailed(
                f"1093 (HY000): You can't specify target table '{table.name}' for update in FROM clause"
            )
