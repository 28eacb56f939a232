"""MySQL statements as trees: sqlglot's parser, restricted to what MySQL itself accepts.

sqlglot is made to translate and not to check: by itself, it reads the syntax of any database (`a::int`, ILIKE, a comma
before FROM) and writes it in the words of another. Here it has only MySQL's keywords, and functions keep their names.
"""

from collections.abc import Callable, Collection
from typing import Any, ClassVar, Final, TypeVar

from sqlglot import exp
from sqlglot.dialects.mysql import MySQL
from sqlglot.errors import ErrorLevel, ParseError, TokenError
from sqlglot.parsers.mysql import MySQLParser
from sqlglot.tokenizer_core import TokenType

from gymfleet_envs.db.grammar import foreign_part
from gymfleet_envs.sqlite.guard import StatementFailed

_T = TypeVar("_T")
_MAX_CHARS: Final = 64 * 1024
_NODES_PER_CHAR: Final = 4
"""More than any statement has, unless the parser rereads its parts again and again."""
_STUMBLES: Final = (AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""Errors that sqlglot's parser raises on some nonsense, such as `SELECT { , : 1 }`."""
_SYNTAX: Final = "1064 (42000): You have an error in your SQL syntax near '{}'"
_KEYWORDS: Final = frozenset(
    (
        "ALL", "AND", "ANY", "AS", "ASC", "BETWEEN", "CASE", "COLLATE", "CROSS", "CURRENT_DATE", "CURRENT_TIME",
        "CURRENT_TIMESTAMP", "DEFAULT", "DELETE", "DESC", "DISTINCT", "DISTINCTROW", "DIV", "ELSE", "END", "ESCAPE",
        "EXCEPT", "EXISTS", "FALSE", "FOR", "FORCE", "FROM", "FULL", "GROUP BY", "HAVING", "IGNORE", "IN", "INDEX",
        "INNER", "INSERT", "INTERSECT", "INTERVAL", "INTO", "IS", "JOIN", "LEFT", "LIKE", "LIMIT", "LOCK", "MOD",
        "NATURAL", "NOT", "NULL", "OFFSET", "ON", "OR", "ORDER BY", "OUTER", "OVER", "PARTITION BY", "RANGE",
        "RECURSIVE", "REGEXP", "REPLACE", "RIGHT", "RLIKE", "ROLLUP", "ROW", "ROWS", "SELECT", "SEPARATOR", "SET",
        "SOME", "STRAIGHT_JOIN", "THEN", "TRUE", "UNION", "UPDATE", "USE", "USING", "VALUES", "WHEN", "WHERE",
        "WINDOW", "WITH", "XOR",
        "BINARY", "CHAR", "CHARACTER", "DATE", "DATETIME", "DEC", "DECIMAL", "DOUBLE", "FLOAT", "JSON", "NCHAR", "REAL",
        "SIGNED", "SIGNED INTEGER", "TIME", "UNSIGNED", "UNSIGNED INTEGER", "YEAR",
        "!=", "&&", ":=", "<=", "<=>", "<>", ">=", "||",
    )
)  # fmt: skip
"""The keywords of statements about rows, and the types that CAST supports."""


def _closed(parse_arguments: Callable[[Any], exp.Expr | None]) -> Callable[[Any], exp.Expr | None]:
    """Require the parenthesis after a call's arguments."""

    def parse_call(parser: Any) -> exp.Expr | None:
        found = parse_arguments(parser)
        if not parser._match(TokenType.R_PAREN, advance=False):  # noqa: SLF001 - called by its own class
            parser.raise_error("Expected )")
        return found

    return parse_call


class _Parser(MySQLParser):
    OPTIONAL_ALIAS_TOKEN_CTE = False
    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: _closed(MySQLParser.FUNCTION_PARSERS[name])
        for name in ("CAST", "CONVERT", "EXTRACT", "GROUP_CONCAT", "POSITION", "SUBSTR", "SUBSTRING", "TRIM", "VALUES")
    }
    NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {"CASE": MySQLParser.NO_PAREN_FUNCTION_PARSERS["CASE"]}
    RANGE_PARSERS: ClassVar[dict[TokenType, Any]] = MySQLParser.RANGE_PARSERS | {
        TokenType.IS: lambda self, this: self._parse_is(this)
    }
    STATEMENT_PARSERS: ClassVar[dict[TokenType, Any]] = {
        TokenType.DELETE: lambda self: self._parse_delete(),
        TokenType.INSERT: lambda self: self._parse_insert(),
        TokenType.REPLACE: lambda self: self._parse_insert(),  # no table has a key, by which it would replace
        TokenType.UPDATE: lambda self: self._parse_update(),
    }

    def _parse_csv(self, parse_method: Callable[[], _T | None], sep: TokenType = TokenType.COMMA) -> list[_T]:
        def parse_item() -> _T | None:
            item = parse_method()
            if item is None and sep in (self._prev.token_type, self._curr.token_type):
                self.raise_error("Expected an expression")
            return item

        return super()._parse_csv(parse_item, sep)

    def _parse_from(
        self, joins: bool = False, skip_from_token: bool = False, consume_pipe: bool = False
    ) -> exp.From | None:
        if consume_pipe:  # it is read where a query begins, as one may in DuckDB
            self.raise_error("Expected SELECT")
        return super()._parse_from(joins, skip_from_token)

    def _parse_is(self, this: exp.Expr | None) -> exp.Expr | None:
        negated = self._match(TokenType.NOT)
        value = exp.Null() if self._match_text_seq("UNKNOWN") else self._parse_null() or self._parse_boolean()
        if value is None:
            self.raise_error("Expected NULL, TRUE, FALSE or UNKNOWN")
        found = self.expression(exp.Is(this=this, expression=value))
        return self.expression(exp.Not(this=found)) if negated else found

    def _parse_join(
        self,
        skip_join_token: bool = False,
        parse_bracket: bool = False,
        alias_tokens: Collection[TokenType] | None = None,
    ) -> exp.Join | None:
        join = super()._parse_join(skip_join_token, parse_bracket, alias_tokens)
        if join is None and self._prev.token_type == TokenType.COMMA:
            self.raise_error("Expected a table")
        return join

    def _parse_limit_by(self) -> list[exp.Expr] | None:
        return None

    def _parse_ordered(self, parse_method: Callable[[], exp.Expr | None] | None = None) -> exp.Ordered | None:
        ordered = super()._parse_ordered(parse_method)
        nulls = self._tokens[self._index - 2]
        if nulls.text.upper() == "NULLS" and self._prev.text.upper() in ("FIRST", "LAST"):
            self.raise_error("Unexpected NULLS", nulls)
        return ordered

    def _parse_star_ops(self) -> exp.Expr | None:
        return self.expression(exp.Star())

    def _parse_table_alias(self, alias_tokens: Collection[TokenType] | None = None) -> exp.TableAlias | None:
        named = self._next if self._curr.token_type == TokenType.ALIAS else self._curr
        return None if named.token_type == TokenType.STRING else super()._parse_table_alias(alias_tokens)

    def _parse_table_part(self, schema: bool = False) -> exp.Expr | None:
        if self._curr.token_type == TokenType.STRING:
            self.raise_error("Expected a name")
        return super()._parse_table_part(schema)

    def _parse_types(
        self,
        check_func: bool = False,
        schema: bool = False,
        allow_identifiers: bool = True,
        with_collation: bool = False,
    ) -> exp.Expr | None:
        # Where an expression may stand, `CHAR(` begins a call. Trying a type first doubles the time at each level.
        if check_func and self._next.token_type == TokenType.L_PAREN:
            return None
        return super()._parse_types(check_func, schema, allow_identifiers, with_collation)

    def _parse_update(self) -> exp.Update:
        self._match(TokenType.IGNORE)  # of rows whose key is there already: no table has one
        return super()._parse_update()

    def _parse_value(self, values: bool = True) -> exp.Tuple | None:
        if self._curr.token_type != TokenType.L_PAREN:
            self.raise_error("Expected (")
        return super()._parse_value(values)


class StrictMySQL(MySQL):
    """The dialect; sqlglot registers it under its name."""

    UNESCAPED_SEQUENCES = MySQL.UNESCAPED_SEQUENCES | {"\\0": ""}  # SQLite takes no NUL

    class Tokenizer(MySQL.Tokenizer):
        """MySQL's tokenizer with fewer keywords."""

        KEYWORDS: ClassVar[dict[str, TokenType]] = {
            **{word: kind for word, kind in MySQL.Tokenizer.KEYWORDS.items() if word in _KEYWORDS},
            "SIGNED INT": TokenType.BIGINT,
            "UNSIGNED INT": TokenType.UBIGINT,
        }
        COMMANDS: ClassVar[set[TokenType]] = set()  # whose text would be left as it is

    Parser = _Parser


_DIALECT: Final = StrictMySQL()


def parse(sql: str) -> exp.Expr:
    """Return a statement's tree. Raises `StatementFailed`, with MySQL's number and wording, and `RecursionError`.

    Where the parser was wrong, it goes back and reads again; it is stopped if it does so excessively.
    """
    if len(sql) > _MAX_CHARS:
        raise StatementFailed("query string is too large")
    try:
        trees = _DIALECT.parse(sql, max_nodes=1000 + _NODES_PER_CHAR * len(sql))
    except ParseError as error:
        found = error.errors[0] if error.errors else {}
        raise _syntax_error(f"{found.get('highlight') or ''}{found.get('end_context') or ''}") from None
    except TokenError:  # a string or a name that does not end
        raise _syntax_error("") from None
    except _STUMBLES:
        raise _syntax_error(sql) from None
    if len(trees) != 1 or trees[0] is None:
        raise _syntax_error(sql)
    if (foreign := foreign_part(trees[0])) is not None:
        raise _syntax_error(foreign.name or foreign.sql(MySQL, unsupported_level=ErrorLevel.IGNORE))
    return trees[0]


def _syntax_error(near: str) -> StatementFailed:
    return StatementFailed(_SYNTAX.format(near[:80]))
