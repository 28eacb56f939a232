"""MySQL's comparisons on SQLite: text against numbers by its value, text against text without case and accents."""

from typing import Final

from sqlglot import exp

from gymfleet_envs.db.collation import COLLATION

_NUMERIC: Final = frozenset(
    (
        "abs", "avg", "ceil", "ceiling", "char_length", "character_length", "count", "datediff", "day", "dense_rank",
        "exp", "field", "floor", "instr", "isnull", "length", "ln", "locate", "log", "log10", "log2", "mod", "month",
        "ntile", "pow", "power", "rank", "round", "row_number", "sign", "sqrt", "strcmp", "sum", "truncate", "year",
    )
)  # fmt: skip
"""Functions that return numbers."""
_CHOOSING: Final = {"coalesce": 0, "greatest": 0, "if": 1, "ifnull": 0, "least": 0, "max": 0, "min": 0, "nullif": 0}
"""Functions that return one of their arguments, and how many leading arguments they only look at."""
_NUMBERS: Final = (
    exp.Add, exp.BitwiseAnd, exp.BitwiseNot, exp.BitwiseOr, exp.BitwiseXor, exp.Boolean, exp.Connector, exp.Div,
    exp.Extract, exp.IntDiv, exp.Mod, exp.Mul, exp.Neg, exp.Not, exp.Predicate, exp.StrPosition, exp.Sub,
)  # fmt: skip
_NUMBER_TYPES: Final = (
    exp.DType.BIGINT, exp.DType.UBIGINT, exp.DType.DECIMAL, exp.DType.DOUBLE, exp.DType.FLOAT,
)  # fmt: skip
_UNCAST: Final = (exp.Null, exp.Tuple, exp.All, exp.Any)
_COLLATED: Final = (exp.Column, exp.Collate, *_UNCAST)
"""Expressions that have their own collation, such as each column of a table, or need none."""


def compare_two(node: exp.Expr) -> None:
    """Rewrite `=` and similar comparisons."""
    if isinstance(node.parent, exp.Update):  # it assigns
        return
    one, other = node.this, node.expression
    if is_number(one) and not is_number(other):
        as_number(other)
    elif is_number(other) and not is_number(one):
        as_number(one)
    elif not is_number(one) and not _has_collation(other):
        _collate(node)


def compare_range(node: exp.Expr) -> None:
    """Rewrite BETWEEN, which compares as numbers if one of its three operands is a number."""
    parts = [node.this, node.args["low"], node.args["high"]]
    numbers = [is_number(part) for part in parts]
    if not any(numbers):
        _collate(node)
    for part, number in zip(parts, numbers, strict=True):
        if any(numbers) and not number:
            as_number(part)


def compare_members(node: exp.Expr) -> None:
    """Rewrite IN."""
    members = node.expressions or [node.args["query"]]
    if is_number(node.this):
        for member in node.expressions:
            if not is_number(member):
                as_number(member)
    elif all(map(is_number, members)):
        as_number(node.this)
    else:
        _collate(node)


def collated(node: exp.Expr, collation: str) -> exp.Expr:
    """Return an expression with a collation."""
    return exp.Collate(this=exp.Paren(this=node), expression=exp.Var(this=collation))


def is_number(node: exp.Expr | None) -> bool:
    """Whether an expression yields a number, whatever the rows hold."""
    found = isinstance(node, _NUMBERS) and not isinstance(node, _UNCAST)
    match node:
        case exp.Literal():
            found = not node.is_string
        case exp.Paren() | exp.Window():
            found = is_number(node.this)
        case exp.Cast():
            found = node.to.this in _NUMBER_TYPES
        case exp.Anonymous():
            name = node.name.lower()
            values = node.expressions[_CHOOSING[name] :] if name in _CHOOSING else []
            found = name in _NUMERIC or (bool(values) and all(map(is_number, values)))
        case exp.Case():
            values = [branch.args["true"] for branch in node.args["ifs"]]
            found = all(map(is_number, (*values, node.args.get("default") or values[0])))
        case exp.Subquery():
            query = node.unnest()
            selected = query.selects if isinstance(query, exp.Select) else []
            found = len(selected) == 1 and is_number(selected[0].unalias())
    return found


def _collate(node: exp.Expr) -> None:
    if not _has_collation(node.this):
        node.set("this", collated(node.this, COLLATION))


def _has_collation(node: exp.Expr) -> bool:
    return isinstance(node, _COLLATED) or (isinstance(node, exp.Cast) and node.to.this == exp.DType.BINARY)


def as_number(node: exp.Expr) -> None:
    """Rewrite a text as the number that it begins with."""
    if not isinstance(node, _UNCAST):
        cast = exp.Cast(to=exp.DataType(this=exp.DType.DOUBLE))
        node.replace(cast)
        cast.set("this", node)
