"""MySQL's dialect on SQLite: a statement's tree is rewritten where SQLite differs, then sqlglot writes it as text."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.sqlite import SQLite
from sqlglot.errors import ErrorLevel, UnsupportedError
from sqlglot.generator import Generator
from sqlglot.generators.sqlite import SQLiteGenerator

from gymfleet_envs.db.collation import COLLATION
from gymfleet_envs.db.comparisons import (
    as_number,
    collated,
    compare_members,
    compare_range,
    compare_two,
    is_number,
)
from gymfleet_envs.db.database import DATABASE
from gymfleet_envs.sqlite.guard import StatementFailed

_RENAMED: Final = frozenset(("left", "right", "if", "format", "isnull"))
"""Functions whose names SQLite's grammar reserves, or gives another meaning."""
_OF_NUMBERS: Final = frozenset(
    ("ceil", "ceiling", "exp", "floor", "ln", "log", "log10", "log2", "mod", "pow", "power", "sign", "sqrt")
)
"""Functions that give NULL in SQLite for a text that is more than a number, such as `1,200`."""
_TYPES: Final = {
    exp.DType.BIGINT: exp.DType.BIGINT,
    exp.DType.UBIGINT: exp.DType.BIGINT,
    exp.DType.DOUBLE: exp.DType.DOUBLE,
    exp.DType.FLOAT: exp.DType.DOUBLE,
    exp.DType.CHAR: exp.DType.CHAR,
    exp.DType.NCHAR: exp.DType.CHAR,
    exp.DType.CHARACTER_SET: exp.DType.CHAR,
}


class _Generator(SQLiteGenerator):
    def cast_sql(self, expression: exp.Cast, safe_prefix: str | None = None) -> str:
        # Not SQLite's version: it looks for types that are already rewritten, and parses each type's name to do so.
        return Generator.cast_sql(self, expression, safe_prefix)


class OnSQLite(SQLite):
    """The dialect; sqlglot registers it under its name."""

    class Tokenizer(SQLite.Tokenizer):
        """Puts names in backticks: in double quotes, SQLite takes a name that is not a column for a text."""

        IDENTIFIERS: ClassVar[list[str | tuple[str, str]]] = ["`"]

    Generator = _Generator


_DIALECT: Final = OnSQLite()
_OPTIONS: Final[dict[str, Any]] = {
    "identify": True,  # a name of MySQL's may be a word of SQLite's
    "normalize_functions": False,
    "comments": False,
    "unsupported_level": ErrorLevel.RAISE,
}


def to_sqlite(tree: exp.Expr) -> str:
    """Return a statement in SQLite's dialect; its tree is used up.

    Raises `StatementFailed` if SQLite has no equivalent, and `RecursionError`.
    """
    for node in list(tree.walk()):
        if (rewrite := _REWRITES.get(type(node))) is not None:
            rewrite(node)
    while isinstance(tree, exp.Subquery) and not _is_modified(tree):
        tree = tree.this
    try:
        return _DIALECT.generate(tree, copy=False, **_OPTIONS)
    except UnsupportedError as error:
        raise StatementFailed(str(error)) from None


def _call(node: exp.Anonymous) -> None:
    name, arguments = node.name.lower(), list(node.expressions)
    # SQLite's ROUND takes a negative number of places for 0.
    rounds = name == "round" and len(arguments) == 2 and not _is_plain(arguments[1])
    if rounds or name in _RENAMED:
        node.set("this", f"mysql_{name}")
    if rounds or name in _OF_NUMBERS:
        for argument in arguments:
            if not is_number(argument):
                as_number(argument)


def _is_plain(node: exp.Expr) -> bool:
    """Whether an expression is a number without a sign."""
    return isinstance(node, exp.Literal) and not node.is_string


def _substring(node: exp.Substring) -> None:
    """Rewrite a part of a text that may begin at 0 or before the text, where SQLite differs."""
    start: exp.Expr = node.args["start"]
    if not _is_plain(start) or start.name == "0":
        parts = [part for part in (node.this, start, node.args.get("length")) if part is not None]
        node.replace(exp.Anonymous(this="MID", expressions=parts))


def _cast(node: exp.Cast) -> None:
    kind = node.to.this
    if kind in _TYPES:
        if _TYPES[kind] == exp.DType.BIGINT and is_number(node.this):  # a number is rounded, a text is cut
            node.set("this", exp.Anonymous(this="ROUND", expressions=[node.this]))
        node.set("to", exp.DataType(this=_TYPES[kind]))
    elif kind == exp.DType.DECIMAL:
        sizes = node.to.expressions
        places = sizes[1].this if len(sizes) > 1 else exp.Literal.number(0)
        number = exp.Cast(this=node.this, to=exp.DataType(this=exp.DType.DOUBLE))
        node.replace(exp.Anonymous(this="ROUND", expressions=[number, places]))
    elif kind == exp.DType.DATE:
        node.replace(exp.Anonymous(this="DATE", expressions=[node.this]))
    elif kind == exp.DType.BINARY:
        node.replace(collated(node.this, "BINARY"))
    else:
        raise StatementFailed(f"CAST ... AS {kind.value} is not there; use functions such as DATE(...)")


def _collation(node: exp.Collate) -> None:
    name = node.expression.name.lower()
    if name not in (COLLATION, "binary"):
        node.set("expression", exp.Var(this="BINARY" if name.endswith("_bin") else COLLATION))


def _extract(node: exp.Extract) -> None:
    node.replace(exp.Anonymous(this=node.this.name, expressions=[node.expression]))


def _position(node: exp.StrPosition) -> None:
    node.replace(exp.Anonymous(this="LOCATE", expressions=[node.args["substr"], node.this]))


def _xor(node: exp.Xor) -> None:
    one, other = (
        exp.NEQ(this=exp.Paren(this=part), expression=exp.Literal.number(0)) for part in node.unnest_operands()
    )
    node.replace(exp.Paren(this=exp.NEQ(this=exp.Paren(this=one), expression=exp.Paren(this=other))))


def _default(node: exp.Var) -> None:
    if node.name == "DEFAULT":
        node.replace(exp.Null())


def _place(node: exp.Table | exp.Column) -> None:
    """Drop the database's name from a table or column, since there is only one database."""
    node.set("hints", None)
    if node.text("db").lower() == DATABASE:
        node.set("db", None)


def _select(node: exp.Select) -> None:
    """Drop locks, and advice on how to find the rows."""
    node.set("locks", None)
    node.set("operation_modifiers", None)
    source = node.args.get("from_")
    if source is not None and source.this.name.upper() == "DUAL":
        node.set("from_", None)


def _join(node: exp.Join) -> None:
    if node.kind == "STRAIGHT_JOIN":  # an order in which to read the tables
        node.set("kind", None)


def _set_operation(node: exp.SetOperation) -> None:
    """Remove the parentheses around operands of UNION, which SQLite does not have."""
    for key in ("this", "expression"):
        if isinstance(operand := node.args[key], exp.Subquery):
            bare = isinstance(operand.this, exp.Select) and not (_is_modified(operand) or _is_modified(operand.this))
            node.set(key, operand.this if bare else exp.select("*").from_(operand, copy=False))


def _is_modified(query: exp.Expr) -> bool:
    return any(query.args.get(part) for part in ("with_", "order", "limit", "offset"))


def _insert(node: exp.Insert) -> None:
    """Drop conflict clauses: no table has a key, so no row ever exists already."""
    node.set("conflict", None)
    if isinstance(node.this, exp.Schema) and not node.this.expressions:
        node.set("this", node.this.this)
    values = node.expression
    if isinstance(values, exp.Select):
        for selected in list(values.expressions):
            _store(selected.unalias())
    if isinstance(values, exp.Values):
        for value in [value for row in values.expressions for value in row.expressions]:
            _store(value)
        values.set("alias", None)
        if not values.expressions[0].expressions:
            node.set("expression", None)
            node.set("default", True)


def _update(node: exp.Update) -> None:
    """Drop table names in assignments: SQLite assigns only to the one table's columns and takes no table name there."""
    for assignment in node.expressions:
        assignment.this.set("table", None)
        _store(assignment.expression)


def _store(value: exp.Expr) -> None:
    """Rewrite a number that becomes the text of a column: MySQL keeps 1.50 as it is written.

    What it computes from texts is a double, which it writes as 7 and not as 7.0.
    """
    digits = value.this if isinstance(value, exp.Neg) else value
    if isinstance(digits, exp.Literal) and not digits.is_string and digits.name.replace(".", "", 1).isdecimal():
        sign = "-" if isinstance(value, exp.Neg) else ""
        value.replace(exp.Literal.string(f"{sign}{Decimal(digits.name):f}"))
    elif is_number(value) and any(map(_is_approximate, value.walk())):
        call = exp.Anonymous(this="MYSQL_STORED")
        value.replace(call)
        call.set("expressions", [value])


def _is_approximate(part: exp.Expr) -> bool:
    """Whether what is computed from this is a double and no decimal: it is a text, or has an exponent."""
    return isinstance(part, exp.Column) or (
        isinstance(part, exp.Literal) and (part.is_string or "e" in part.name.lower())
    )


def _delete(node: exp.Delete) -> None:
    """Drop `a` from `DELETE a FROM t AS a`: it names the one table that the statement reads."""
    tables = node.args.get("tables") or []
    if [table.name.lower() for table in tables] == [node.this.alias_or_name.lower()]:
        node.set("tables", None)


_REWRITES: Final[dict[type[exp.Expr], Callable[[Any], None]]] = {
    **dict.fromkeys((exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.GT, exp.GTE, exp.LT, exp.LTE), compare_two),
    **dict.fromkeys((exp.Table, exp.Column), _place),
    **dict.fromkeys((exp.Union, exp.Intersect, exp.Except), _set_operation),
    exp.Anonymous: _call,
    exp.Between: compare_range,
    exp.Cast: _cast,
    exp.Collate: _collation,
    exp.Delete: _delete,
    exp.Extract: _extract,
    exp.In: compare_members,
    exp.Insert: _insert,
    exp.Join: _join,
    exp.Select: _select,
    exp.StrPosition: _position,
    exp.Substring: _substring,
    exp.Update: _update,
    exp.Var: _default,
    exp.Xor: _xor,
}
