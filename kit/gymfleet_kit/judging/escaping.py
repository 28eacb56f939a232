"""JSON from which hostile text cannot escape: it holds no control token for a tokenizer and no hidden character."""

import json
import re
from typing import Any, Final

_BLANK: Final = (
    (0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2800, 0x2800), (0x3164, 0x3164),
    (0xFE00, 0xFE0F), (0xFF5C, 0xFF5C), (0xFFA0, 0xFFA0), (0xE0100, 0xE01EF),
)  # fmt: skip
"""Characters that count as printable but are invisible: fillers and variation selectors. Also the full-width bar, which
occurs in control tokens."""
_LOOKED_AT: Final = re.compile(r"[<\[\]]|[^\x20-\x7e]")
"""Control tokens of chat models begin with `<` or a bracket: `<|im_start|>`, `</s>`, `[INST]`, `]~b]`."""


def shown(data: Any) -> str:
    r"""Return one line of JSON in which every character that could act as more than text is written as `\uXXXX`.

    Nothing is lost: a JSON parser returns `data`. Outside strings there are only brackets, commas, colons and whole
    numbers.

    Args:
        data: strings, whole numbers, lists, and tables with strings as keys.
    """
    match data:
        case str():
            return _LOOKED_AT.sub(_escaped, json.dumps(data, ensure_ascii=False))
        case int():
            return str(data)
        case dict():
            return "{" + ", ".join(f"{shown(key)}: {shown(value)}" for key, value in data.items()) + "}"
        case _:
            return "[" + ", ".join(map(shown, data)) + "]"


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    if code < 0x80:
        return f"\\u{code:04x}"
    if character.isprintable() and not any(first <= code <= last for first, last in _BLANK):
        return character
    return json.dumps(character)[1:-1]
