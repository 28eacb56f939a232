"""SQL as text: its tokens, and the checks of a statement before a database sees it."""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

MAX_EXPANSION: Final = 1000
"""Limit on the subqueries into which a statement's `WITH` definitions may expand."""
_MAX_DEFINITIONS: Final = 50


class UnfitStatement(Exception):
    """The statement is not executed here; the message says why."""


class Token(NamedTuple):
    """A piece of SQL. Kinds: space (also comments), string, double ("x"), quoted (`x`, [x]), word, other."""

    kind: str
    text: str

    @property
    def name(self) -> str:
        """The token's identifier, in lower case; empty if the token is not one."""
        if self.kind == "word":
            return self.text.lower()
        return self.text[1:-1].lower() if self.kind in ("quoted", "double") else ""


_REST: Final = r"(?P<quoted>`(?:[^`]|``)*+`)|(?P<word>[\w$@]+)|(?P<other>.)"
_SQLITE: Final = re.compile(
    r"(?P<space>\s+|--[^\n]*|/\*.*?\*/)|(?P<string>'(?:[^']|'')*+')|(?P<double>\"(?:[^\"]|\"\")*+\")"
    rf"|(?P<quoted2>\[[^\]]*\])|{_REST}",
    re.DOTALL,
)
_MYSQL: Final = re.compile(
    r"(?P<space>\s+|--(?=\s|\Z)[^\n]*|\#[^\n]*|/\*(?!M?!).*?\*/)"
    r"|(?P<string>'(?:[^'\\]|\\.|'')*+')|(?P<double>\"(?:[^\"\\]|\\.|\"\")*+\")"
    rf"|{_REST}",
    re.DOTALL,
)


def tokens(sql: str, *, mysql: bool = False) -> list[Token]:
    """Split SQL into tokens; all tokens together are the text again.

    In MySQL's dialect strings have backslash escapes, `"x"` is a string and `#` begins a comment.
    """
    found = (_MYSQL if mysql else _SQLITE).finditer(sql)
    return [Token((match.lastgroup or "other").removesuffix("2"), match[0]) for match in found]


def one_statement(pieces: Sequence[Token], verbs: frozenset[str]) -> list[Token]:
    """Return the statement's tokens without space, comments and the semicolon at its end.

    Raises `UnfitStatement` if there are several statements or none, if the first word is not one of `verbs`, or if
    the definitions would be expanded without end.
    """
    telling = [piece for piece in pieces if piece.kind != "space"]
    while telling and telling[-1].text == ";":
        telling.pop()
    if any(piece.text == ";" for piece in telling):
        raise UnfitStatement("only one SQL statement can be executed at a time")
    first = next((piece for piece in telling if piece.text != "("), None)
    if first is None:
        raise UnfitStatement("there is no SQL statement")
    if first.kind != "word" or first.name not in verbs:
        raise UnfitStatement(f"a statement that begins with {first.text[:40]!r} cannot be executed here")
    if _expansion(telling) > MAX_EXPANSION:
        raise UnfitStatement("the WITH definitions are nested too deeply")
    return telling


def statements(pieces: Sequence[Token]) -> list[str]:
    """Return the statements that semicolons separate, each as text."""
    found = [""]
    for piece in pieces:
        if piece.text == ";":
            found.append("")
        else:
            found[-1] += piece.text
    return [text.strip() for text in found if text.strip()]


def _closing(pieces: Sequence[Token], opening: int) -> int:
    """Return where the parenthesis at `opening` is closed; the end if it is not."""
    depth = 0
    for place in range(opening, len(pieces)):
        depth += {"(": 1, ")": -1}.get(pieces[place].text, 0)
        if depth == 0:
            return place
    return len(pieces)


def _expansion(pieces: list[Token]) -> int:
    """Return how many subqueries the `WITH` definitions give: each is copied wherever its name appears."""
    definitions: dict[str, list[str]] = {}
    main = [piece.name for piece in pieces]
    for place, piece in enumerate(pieces):
        if piece.name != "as" or piece.kind != "word":
            continue
        body = place + 1
        while body < len(pieces) and pieces[body].name in ("not", "materialized"):
            body += 1
        if body >= len(pieces) or pieces[body].text != "(" or (name := _defined(pieces, place)) == "":
            continue
        end = _closing(pieces, body)
        definitions.setdefault(name, []).extend(piece.name for piece in pieces[body:end])
        main[place - 1 : end] = [""] * (end - place + 1)
    if len(definitions) > _MAX_DEFINITIONS:
        return MAX_EXPANSION + 1
    known: dict[str, int] = {}

    def weight(name: str, above: tuple[str, ...]) -> int:
        if name in above:
            return 0  # a recursive reference is not expanded
        if name not in known:
            parts = (weight(inner, (*above, name)) for inner in definitions[name] if inner in definitions)
            known[name] = 1 + sum(parts)
        return known[name]

    return sum(weight(name, ()) for name in main if name in definitions)


def _defined(pieces: list[Token], place: int) -> str:
    """Return the name before `AS`, with or without a list of columns in between."""
    before = place - 1
    if before >= 0 and pieces[before].text == ")":
        depth = 0
        while before >= 0:
            depth += {")": 1, "(": -1}.get(pieces[before].text, 0)
            before -= 1
            if depth == 0:
                break
    return pieces[before].name if before >= 0 else ""
