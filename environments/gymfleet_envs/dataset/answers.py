r"""Find the answer in a reply: only one, wherever it stands, so that a second guess is worth nothing."""

import re
from typing import Final, Literal, TypeAlias

AnswerMark: TypeAlias = Literal["auto", "tag", "boxed", "hash", "line", "whole"]
_CLOSING_THOUGHT: Final = "</think>"
_LINE: Final = re.compile(r"answer[ \t]{0,8}:([^\n]*)", re.IGNORECASE)
_BOX: Final = re.compile(r"\\(?:boxed|fbox) ?(?:\{|([-+]?[0-9]+(?:[.,/][0-9]+)*))")
"""The beginning of a box, or a whole one without braces: MATH has `\\fbox{5}` and `\\boxed 2` too."""


def spoken(reply: str) -> str:
    """Return a reply without its reasoning: the text after the last `</think>`, up to another `<think>`.

    A reply that ends within its reasoning has said nothing.
    """
    return reply.rpartition(_CLOSING_THOUGHT)[2].partition("<think>")[0].strip()


def answer_of(said: str, mark: AnswerMark) -> str | None:
    r"""Return the answer of a reply without its reasoning; None if there is none.

    Args:
        said: the result of `spoken`.
        mark: `tag`, the last `<answer>...</answer>`; `boxed`, the last `\boxed{...}`, `\fbox{...}` or `\boxed 5`;
            `hash`, the text after the last `####` on its line; `line`, the text after the last `Answer:` on its line,
            as in DAPO's data; `whole`, all of `said`; `auto`, the later of tag and box, or all of `said` without
            either.
    """
    match mark:
        case "tag":
            found: str | None = _tagged(said)[1]
        case "boxed":
            found = _boxed(said)[1]
        case "hash":
            found = said.rpartition("####")[2].partition("\n")[0] if "####" in said else None
        case "line":
            found = lines[-1] if (lines := _LINE.findall(said)) else None
        case "whole":
            found = said
        case "auto":
            place, found = max(_tagged(said), _boxed(said), key=lambda marked: marked[0])
            found = said if place < 0 else found
    return (found or "").strip() or None


def _tagged(said: str) -> tuple[int, str | None]:
    begin = said.rfind("<answer>")
    inside, closed, _ = said[begin + len("<answer>") :].partition("</answer>")
    return begin, inside if begin >= 0 and closed else None


def _boxed(said: str) -> tuple[int, str | None]:
    if not (boxes := list(_BOX.finditer(said))):
        return -1, None
    box = boxes[-1]
    if box[1] is not None:
        return box.start(), box[1]
    start, depth = box.end(), 1
    for place in range(start, len(said)):
        depth += (said[place] == "{") - (said[place] == "}")
        if not depth:
            return box.start(), said[start:place]
    return box.start(), None
