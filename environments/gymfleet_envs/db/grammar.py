"""The parts of MySQL statements about rows; sqlglot's parser also reads the words of other databases."""

from collections.abc import Callable
from typing import Any, Final

from sqlglot import exp
from sqlglot.generators.mysql import MySQLGenerator

_QUERY: Final = " with_ order limit offset"
_OPERATORS: Final = (
    "Add And BitwiseAnd BitwiseLeftShift BitwiseOr BitwiseRightShift BitwiseXor Collate EQ Escape GT GTE IntDiv Is LT "
    "LTE Mod Mul NEQ NullSafeEQ Or PropertyEQ Sub Xor"
)
_PARTS: Final = {
    "Select": "expressions from_ joins where group having distinct windows locks operation_modifiers" + _QUERY,
    "Union": "this expression distinct" + _QUERY,
    "Intersect": "this expression distinct" + _QUERY,
    "Except": "this expression distinct" + _QUERY,
    "Subquery": "this alias joins" + _QUERY,
    "Insert": "with_ this expression ignore conflict",
    "Update": "this expressions where" + _QUERY,
    "Delete": "this where tables using" + _QUERY,
    "OnConflict": "duplicate expressions action",
    "Values": "expressions alias",
    "Schema": "this expressions",
    "With": "expressions recursive",
    "CTE": "this alias",
    "From": "this",
    "Table": "this db alias joins hints",
    "TableAlias": "this columns",
    "IndexTableHint": "this expressions target",
    "Join": "this on using side kind method",
    "Where": "this",
    "Group": "expressions rollup",
    "Rollup": "",
    "Having": "this",
    "Order": "this expressions",
    "Ordered": "this desc nulls_first",
    "Limit": "expression",
    "Offset": "expression",
    "Lock": "update expressions wait key",
    "Distinct": "expressions",
    "Window": "this partition_by order spec alias over",
    "WindowSpec": "kind start start_side end end_side",
    "Alias": "this alias",
    "Column": "this table db",
    "Identifier": "this quoted",
    "Star": "",
    "Literal": "this is_string",
    "HexString": "this",
    "BitString": "this",
    "Null": "",
    "Boolean": "this",
    "Var": "this",
    "Parameter": "this",
    "Tuple": "expressions",
    "Paren": "this",
    "Not": "this",
    "Neg": "this",
    "BitwiseNot": "this",
    "Div": "this expression safe typed",
    "Between": "this low high",
    "In": "this expressions query",
    "Like": "this expression negate",
    "RegexpLike": "this expression negate",
    "Exists": "this",
    "Any": "this",
    "All": "this",
    "Case": "this ifs default",
    "If": "this true false",
    "Cast": "this to",
    "DataType": "this expressions kind nested",
    "DataTypeParam": "this",
    "Interval": "this unit",
    "Anonymous": "this expressions",
    "Concat": "expressions safe coalesce",
    "Extract": "this expression",
    "GroupConcat": "this separator",
    "Soundex": "this",
    "StrPosition": "this substr",
    "Substring": "this start length",
    "Trim": "this expression position",
    "CurrentDate": "",
    "CurrentTime": "",
    "CurrentTimestamp": "",
} | dict.fromkeys(_OPERATORS.split(), "this expression")
_KNOWN: Final[dict[Any, frozenset[str]]] = {
    getattr(exp, name): frozenset(parts.split()) for name, parts in _PARTS.items()
}
_RESERVED: Final = frozenset(MySQLGenerator.RESERVED_KEYWORDS)
_JOINS: Final = frozenset(("", "INNER", "CROSS", "OUTER", "STRAIGHT_JOIN"))


def foreign_part(tree: exp.Expr) -> exp.Expr | None:
    """Return the first part of a statement that MySQL does not have."""
    return next((node for node in tree.walk() if _is_foreign(node)), None)


def _is_foreign(node: exp.Expr) -> bool:
    known = _KNOWN.get(type(node))
    if known is None or any(value and part not in known for part, value in node.args.items()):
        return True
    is_known = _CHECKS.get(type(node))
    return is_known is not None and not is_known(node)


def _name(node: exp.Identifier) -> bool:
    """Whether a name is valid: in backticks, not reserved, reserved but after a dot, or DUAL, which is no table."""
    word = node.name.lower()
    if node.quoted or word not in _RESERVED:
        return True
    if not isinstance(node.parent, exp.Column | exp.Table):
        return False
    before = {"this": ("table", "db"), "table": ("db",)}.get(node.arg_key or "", ())
    return word == "dual" or any(node.parent.args.get(part) for part in before)


def _join(node: exp.Join) -> bool:
    side, kind = node.side, node.kind
    return (
        side in ("", "LEFT", "RIGHT")
        and kind in _JOINS
        and node.method in ("", "NATURAL")
        and bool(side or kind != "OUTER")
    )


def _select(node: exp.Select) -> bool:
    return bool(node.expressions) and (node.args.get("limit") is not None or node.args.get("offset") is None)


def _schema(node: exp.Schema) -> bool:
    return all(isinstance(column, exp.Identifier) for column in node.expressions)


def _call(node: exp.Anonymous) -> bool:
    return node.name.upper() not in ("MIN", "MAX") or len(node.expressions) == 1


def _update(node: exp.Update) -> bool:
    return all(isinstance(part, exp.EQ) and isinstance(part.this, exp.Column) for part in node.expressions)


_CHECKS: Final[dict[Any, Callable[[Any], bool]]] = {
    exp.Anonymous: _call,
    exp.Delete: lambda node: isinstance(node.this, exp.Table),
    exp.Identifier: _name,
    exp.In: lambda node: bool(node.expressions or node.args.get("query")),
    exp.Join: _join,
    exp.OnConflict: lambda node: bool(node.args.get("duplicate")),
    exp.Schema: _schema,
    exp.Select: _select,
    exp.Table: lambda node: isinstance(node.this, exp.Identifier),
    exp.Update: _update,
}
