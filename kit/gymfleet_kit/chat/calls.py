"""The syntax of function calls in a chat template: learned from its renderings, and read back from replies.

Published templates write calls in a dozen forms: JSON between tags, JSON alone, a name and JSON arguments, each
argument in its own tags, Python. Instead of a table of models there are four shapes here; their literal parts come from
renderings of calls with known names and values. A shape counts only if it reads back the template's own output.
"""

import ast
import html
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gymfleet_contracts.session import TOOL_NAME, Tool, ToolCall
from gymfleet_contracts.strict_json import MAX_OBJECT_CHARS, read_object

from gymfleet_kit.chat.template import UnusableTemplate

CALL_ID: Final = "call00001"
"""The id of calls that templates render: nine letters and digits, as Mistral's templates require."""
NAME: Final = "sentinel_name"
_OTHER_NAME: Final = "another_one"
KEYS: Final = ("akey", "bkey")
VALUES: Final = ("valueone", "valuetwo")
_OTHER_VALUES: Final = (7081, True, [VALUES[0]], {"inner": 7081})
_NASTY: Final = "a \"b\" 'c' \\ <d> {e} [f] & é\nline, two"
_MAX_ARGUMENTS: Final = 64
_MAX_TRIES: Final = 64
_IS_NAME: Final = re.compile(TOOL_NAME)
_SPACE: Final = re.compile(r"\s+|(?<=[>\]])(?=[<\[])")
"""Places in a literal that may have whitespace: those that have it, and between two tags."""
_WORD: Final = re.compile(r"\s*+[\w-]{1,64}")
_PYTHON: Final = {"True": True, "False": False}
"""The texts that templates make of values with Jinja's `string`."""
_CDATA: Final = re.compile(r"<!\[CDATA\[(.*)\]\]>", re.DOTALL)

Written = Callable[[ToolCall], str]
"""Returns the text that a template writes for a call, from the start of the reply to the token that ends it."""


class Found(NamedTuple):
    """A call in a reply."""

    start: int
    end: int
    call: ToolCall


class CallSyntax(ABC):
    """One way to write calls."""

    before: "_Literal"
    """The beginning of every call; it may be empty."""

    @abstractmethod
    def read(self, text: str, tools: Mapping[str, Tool]) -> Found | None:
        """Return the last call in a text, or None. The text is a model's and may contain anything."""

    def begins(self, text: str) -> bool:
        """Return whether a call, complete or not, begins somewhere in the text.

        Without a literal in front, an incomplete call cannot be distinguished from text.
        """
        return self.read(text, {}) is not None if self.before.empty else bool(self.before.places(text))


def learned(written: Written) -> CallSyntax | None:
    """Return the syntax that reads a template's calls, or None if none of the shapes does.

    Raises whatever `written` raises.
    """
    one = written(ToolCall(name=NAME, arguments={KEYS[0]: VALUES[0]}))
    for shape in (_WholeJson, _JsonArguments, _Python, _Tagged):
        syntax = shape.of(one, written)
        if syntax is not None and _reads_back(syntax, written):
            return syntax
    return None


def _reads_back(syntax: CallSyntax, written: Written) -> bool:
    names = (NAME, _OTHER_NAME)
    tools = {name: Tool(name=name, description="", parameters={"type": "object"}) for name in names}
    several = ({KEYS[0]: VALUES[0]}, dict(zip(KEYS, VALUES, strict=True)), {KEYS[0]: _NASTY})
    for name, arguments in (*((NAME, one) for one in several), (_OTHER_NAME, several[0])):
        call = ToolCall(name=name, arguments=dict(arguments))
        found = syntax.read(written(call), tools)
        if found is None or found.call != call:
            return False
    return True


@dataclass(frozen=True, slots=True)
class _WholeJson(CallSyntax):
    """An object with name and arguments, possibly in a list, between two literals that may be empty."""

    before: "_Literal"
    after: "_Literal"
    path: tuple[str, ...]
    """Keys that lead to the object with the two keys below."""
    name_key: str
    arguments_key: str

    @classmethod
    def of(cls, one: str, _: Written) -> "_WholeJson | None":
        for start, end, value in _json_values(one):
            item = value[0] if isinstance(value, list) and len(value) == 1 else value
            place = _place_of_name(item)
            if place is None:
                continue
            path, holder = place
            name_key = next(key for key, found in holder.items() if found == NAME)
            wanted = {KEYS[0]: VALUES[0]}
            keys = [key for key, found in holder.items() if found == wanted or _decoded(found) == wanted]
            if keys:
                return cls(_Literal(one[:start]), _Literal(one[end:]), path, name_key, keys[0])
        return None

    def read(self, text: str, tools: Mapping[str, Tool]) -> Found | None:  # noqa: ARG002 - JSON tells types
        for start, begin in self._starts(text):
            value, end = _json_at(text, begin)
            item = value[0] if isinstance(value, list) and len(value) == 1 else value
            after = None if end < 0 else self.after.match(text, end)
            if after is None or (call := self._call(item)) is None:
                continue
            return Found(start, after, call)
        return None

    def _starts(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the places where a call and its JSON may begin, the last one first."""
        yield from _at_lines(text, r"[{\[]") if self.before.empty else self.before.places(text)

    def _call(self, item: Any) -> ToolCall | None:
        for key in self.path:
            item = item.get(key) if isinstance(item, dict) else None
        if not isinstance(item, dict):
            return None
        arguments = item.get(self.arguments_key, {})
        return _call(item.get(self.name_key), _decoded(arguments) if isinstance(arguments, str) else arguments)


@dataclass(frozen=True, slots=True)
class _JsonArguments(CallSyntax):
    """A name, followed by the arguments as a JSON object."""

    before: "_Literal"
    between: "_Literal"
    after: "_Literal"

    @classmethod
    def of(cls, one: str, _: Written) -> "_JsonArguments | None":
        for start, end, value in _json_values(one):
            at = one.rfind(NAME, 0, start)
            if value == {KEYS[0]: VALUES[0]} and at >= 0:
                return cls(_Literal(one[:at]), _Literal(one[at + len(NAME) : start]), _Literal(one[end:]))
        return None

    def read(self, text: str, tools: Mapping[str, Tool]) -> Found | None:  # noqa: ARG002 - JSON tells types
        for start, begin in [(0, 0)] if self.before.empty else self.before.places(text):
            if self.between.empty:
                word = _WORD.match(text, begin)
                named = None if word is None else (word.end(), word.end())
            else:
                named = self.between.search(text, begin)
            if named is None:
                continue
            value, end = _json_at(text, named[1])
            after = None if end < 0 else self.after.match(text, end)
            call = _call(text[begin : named[0]].strip(), value)
            if after is not None and call is not None:
                return Found(start, after, call)
        return None


@dataclass(frozen=True, slots=True)
class _Python(CallSyntax):
    """A list of one Python call with constants as keyword arguments."""

    before: "_Literal"
    after: "_Literal"

    @classmethod
    def of(cls, one: str, _: Written) -> "_Python | None":
        at = one.find(f"{NAME}(")
        if at < 0:
            return None
        start = at - 1 if one[at - 1 : at] == "[" else at
        for end in range(len(one), at, -1):
            if _python_call(one[start:end]) is not None and one[end - 1 : end] in (")", "]"):
                return cls(_Literal(one[:start]), _Literal(one[end:]))
        return None

    def read(self, text: str, tools: Mapping[str, Tool]) -> Found | None:  # noqa: ARG002 - Python tells types
        for start, begin in _at_lines(text, r"\[\w") if self.before.empty else self.before.places(text):
            end = self.after.search(text, begin)
            if end is not None and (call := _python_call(text[begin : end[0]])) is not None:
                return Found(start, end[1], call)
        return None


@dataclass(frozen=True, slots=True)
class _Tagged(CallSyntax):
    """A name, and each argument between tags of its own; `{key}` in a literal repeats the argument's name."""

    before: "_Literal"
    named: "_Literal"
    """The literal between the name and the first argument's name."""
    alone: "_Literal"
    """The literal after the name of a call without arguments."""
    texts: tuple[str, str]
    """The texts before and after a string argument, without the rest between arguments."""
    others: frozenset[tuple[str, str]]
    """The same for other arguments; they may state the type."""
    between: str
    """The text between the end of one argument and the name of the next."""
    close: str
    """The text after the end of the last argument."""
    escapes: bool
    """Whether string arguments with special characters are written as XML writes them."""

    @classmethod
    def of(cls, one: str, written: Written) -> "_Tagged | None":
        two = written(ToolCall(name=NAME, arguments=dict(zip(KEYS, VALUES, strict=True))))
        none = written(ToolCall(name=NAME, arguments={}))
        first = _split(one, [NAME, KEYS[0], VALUES[0]])
        both = _split(two, [NAME, KEYS[0], VALUES[0], KEYS[1], VALUES[1]])
        bare = _split(none, [NAME])
        if first is None or both is None or bare is None or not first[0].strip():
            return None
        before, named, lead, tail = first
        middle = both[3].replace(KEYS[0], "{key}")
        behind = common_start(middle, tail.replace(KEYS[0], "{key}"))
        close = tail.replace(KEYS[0], "{key}")[len(behind) :]
        others = [form for value in _OTHER_VALUES if (form := _form_of(value, written, close)) is not None]
        if not others or not close:
            return None
        texts, between = (lead, behind), middle[len(behind) :]
        escapes = lead + _NASTY not in written(ToolCall(name=NAME, arguments={KEYS[0]: _NASTY}))
        literals = _Literal(before), _Literal(named), _Literal(bare[1])
        return cls(*literals, texts, frozenset(others), between, close, escapes)

    def read(self, text: str, tools: Mapping[str, Tool]) -> Found | None:
        for start, begin in self.before.places(text):
            if (found := self._read(text, begin, tools)) is not None:
                return Found(start, *found)
        return None

    def _read(self, text: str, begin: int, tools: Mapping[str, Tool]) -> tuple[int, ToolCall] | None:
        named, alone = self.named.search(text, begin), self.alone.search(text, begin)
        if alone is not None and (named is None or alone[0] <= named[0]):
            call = _call(text[begin : alone[0]].strip(), {})
            return None if call is None else (alone[1], call)
        if named is None:
            return None
        name, place = text[begin : named[0]].strip(), named[1]
        arguments: dict[str, Any] = {}
        schema = tools[name].parameters.get("properties") if name in tools else None
        kinds = schema if isinstance(schema, dict) else {}
        for _ in range(_MAX_ARGUMENTS):
            found = self._argument(text, place, kinds)
            if found is None:
                return None
            key, value, place, is_last = found
            if key in arguments:
                return None
            arguments[key] = value
            if is_last:
                call = _call(name, arguments)
                return None if call is None else (place, call)
        return None

    def _argument(self, text: str, place: int, kinds: Mapping[str, Any]) -> tuple[str, Any, int, bool] | None:
        """Return the argument that begins here: its name, its value, where it ends, and whether it is the last."""
        forms = sorted({self.texts, *self.others}, key=lambda form: (-len(form[0]), form))
        leads = [(form, found) for form in forms if (found := _Literal(form[0], value_after=True).search(text, place))]
        if not leads:
            return None
        form, (key_end, begin) = min(leads, key=lambda lead: lead[1][0])
        key = text[place:key_end].strip()
        kind = kinds.get(key) if self.texts in self.others else {"type": "string"} if form == self.texts else {}
        valued = self._value(text, begin, form[1].replace("{key}", key), _types(kind)) if key else None
        return None if valued is None else (key, *valued)

    def _value(self, text: str, begin: int, behind: str, types: frozenset[str]) -> tuple[Any, int, bool] | None:
        """Return a value of one of these types of JSON Schema, where it ends, and whether it is the last one."""
        literals = ((behind + self.between, False), (behind + self.close, True))
        place = begin
        for _ in range(_MAX_TRIES):
            ends = [
                (*found, is_last)
                for literal, is_last in literals
                if (found := _Literal(literal, value_before=True).search(text, place))
            ]
            if not ends:
                return None
            stop, after, is_last = min(ends, key=lambda end: (end[0], -end[1]))
            raw = _unescaped(text[begin:stop]) if self.escapes else text[begin:stop]
            if types == {"string"}:
                return raw, after, is_last
            value = _PYTHON.get(raw.strip(), _decoded(raw))
            if value is not None or raw.strip() in ("null", "None"):
                return raw if "string" in types and not types & _types_of(value) else value, after, is_last
            if behind:
                return raw, after, is_last
            place = after  # a comma inside of a list
        return None


class _Literal:
    """A text between names and values. Whitespace in it may differ, as may ids and numbers of calls, and the function's
    name where it is repeated.

    Whitespace next to a value belongs to the literal as far as the template wrote it, else to the value.
    """

    def __init__(self, text: str, *, value_before: bool = False, value_after: bool = False) -> None:
        stripped = text.strip()
        self.empty: Final = not stripped
        middle = r"\s*".join(re.escape(part) for part in _SPACE.split(stripped))
        middle = re.sub(r"(?<![\w\\])\d+(?!\w)", r"\\d+", middle.replace(re.escape(CALL_ID), r"[\w-]*"))
        middle = middle.replace(NAME, r"[\w.-]{1,64}")
        before = re.escape(text[: text.index(stripped)]) if value_before else ""
        behind = re.escape(text[text.index(stripped) + len(stripped) :]) if value_after else ""
        # The pattern has no unbounded whitespace in front: searching for that from each place of a long run would take
        # time quadratic in its length.
        self._pattern: Final = re.compile(
            (f"(?:{before})?" if before else "")
            + middle
            + ((f"(?:{behind})?" if behind else "") if value_after else r"\s*")
        )

    def match(self, text: str, place: int) -> int | None:
        """Return the end of the literal if it stands here, after any whitespace, or None."""
        while place < len(text) and text[place].isspace():
            place += 1
        found = self._pattern.match(text, place)
        return None if found is None else found.end()

    def search(self, text: str, place: int) -> tuple[int, int] | None:
        """Return the start and end of the first match from here on; an empty literal matches at the end."""
        if self.empty:
            return len(text), len(text)
        found = self._pattern.search(text, place)
        return None if found is None else found.span()

    def places(self, text: str) -> list[tuple[int, int]]:
        """Return the start and end of each match, the last one first."""
        return [] if self.empty else [match.span() for match in self._pattern.finditer(text)][::-1][:_MAX_TRIES]


def _at_lines(text: str, first: str) -> list[tuple[int, int]]:
    """Return the starts of the first lines that begin with `first`, each as an empty span like `_Literal.places`."""
    starts = [match.start(1) for match in re.finditer(rf"(?:^|\n)[ \t]*({first})", text)]
    return [(place, place) for place in starts[:_MAX_TRIES]]


def common_start(one: str, other: str) -> str:
    """Return the common prefix of two texts."""
    place = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    return one[:place] if place is not None else min(one, other, key=len)


def _json_values(text: str) -> Iterator[tuple[int, int, Any]]:
    for match in re.finditer(r"[{\[]", text):
        value, end = _json_at(text, match.start())
        if end >= 0:
            yield match.start(), end, value


def _json_at(text: str, place: int) -> tuple[Any, int]:
    """Return the JSON object or list that begins here and its end; the end is -1 if none can be read."""
    while place < len(text) and text[place].isspace():
        place += 1
    part = text[place : place + MAX_OBJECT_CHARS + 1]
    try:
        _, length = json.JSONDecoder().raw_decode(part)
    except (ValueError, RecursionError):
        return None, -1
    if part.startswith("["):
        wrapped = read_object('{"list": ' + part[:length] + "}")
        return (None, -1) if wrapped is None else (wrapped["list"], place + length)
    value = read_object(part[:length])
    return (None, -1) if value is None else (value, place + length)


def _place_of_name(item: Any, path: tuple[str, ...] = ()) -> tuple[tuple[str, ...], dict[str, Any]] | None:
    if not isinstance(item, dict):
        return None
    if NAME in item.values():
        return path, item
    for key, value in item.items():
        if (found := _place_of_name(value, (*path, key))) is not None:
            return found
    return None


def _decoded(value: Any) -> Any:
    """Return a text's value as strict JSON; None if it is not JSON."""
    if not isinstance(value, str):
        return None
    wrapped = read_object('{"value": ' + value + "}") if len(value) <= MAX_OBJECT_CHARS else None
    return None if wrapped is None or wrapped.keys() != {"value"} else wrapped["value"]


def _call(name: Any, arguments: Any) -> ToolCall | None:
    if not (isinstance(name, str) and _IS_NAME.fullmatch(name) and isinstance(arguments, dict)):
        return None
    return ToolCall(name=name, arguments=arguments)


def _python_call(text: str) -> ToolCall | None:
    """Return the only call in Python text, which is parsed but never executed."""
    if len(text) > MAX_OBJECT_CHARS:
        return None
    try:
        node: ast.AST = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.List) and len(node.elts) == 1:
            node = node.elts[0]
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)) or node.args:
            return None
        arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
        if len(arguments) != len(node.keywords) or None in arguments:  # `**` has no name
            return None
        if read_object(json.dumps(arguments, allow_nan=False)) != arguments:  # tuples, keys that are no texts
            return None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return _call(node.func.id, arguments)


def _form_of(value: Any, written: Written, close: str) -> tuple[str, str] | None:
    """Return the texts that a template writes before and after a non-string argument, without `close`; None if it
    writes the value in no known way.
    """
    try:
        text = written(ToolCall(name=NAME, arguments={KEYS[0]: value}))
    except UnusableTemplate:
        return None
    for shown in (json.dumps(value), repr(value), json.dumps(value, separators=(",", ":"))):
        if (parts := _split(text, [NAME, KEYS[0], shown])) is not None:
            behind = parts[3].replace(KEYS[0], "{key}")
            return (parts[2], behind.removesuffix(close)) if behind.endswith(close) else None
    return None


def _split(text: str, parts: Sequence[str]) -> list[str] | None:
    """Return the texts around the parts, which come in this order, each found at its first place from the left."""
    found, place = [], 0
    for part in parts:
        at = text.find(part, place)
        if at < 0:
            return None
        found.append(text[place:at])
        place = at + len(part)
    return [*found, text[place:]]


def _types(schema: Any, depth: int = 4) -> frozenset[str]:
    """Return the types that an argument's schema allows; none if it does not say."""
    if not isinstance(schema, dict) or not depth:
        return frozenset()
    given = schema.get("type")
    if isinstance(given, str | list):
        return frozenset(one for one in ([given] if isinstance(given, str) else given) if isinstance(one, str))
    if isinstance(values := schema.get("enum", [schema["const"]] if "const" in schema else None), list):
        return frozenset().union(*(_types_of(value) for value in values))
    choices = schema.get("anyOf", schema.get("oneOf"))
    found = [_types(one, depth - 1) for one in choices] if isinstance(choices, list) else []
    return frozenset().union(*found) if all(found) else frozenset()


def _types_of(value: Any) -> frozenset[str]:
    """Return the types of JSON Schema that a value has."""
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return frozenset({"integer", "number"})
    names = {str: "string", float: "number", list: "array", dict: "object", type(None): "null"}
    return frozenset({names[type(value)]})


def _unescaped(raw: str) -> str:
    cdata = _CDATA.fullmatch(raw)
    return cdata[1] if cdata else html.unescape(raw) if "&" in raw and _is_escaped(raw) else raw


def _is_escaped(raw: str) -> bool:
    return re.fullmatch(r"(?:[^<>&]|&(?:amp|lt|gt|quot|#39|#34|#x27);)*", raw) is not None
