"""Inform 7's substitutions in TextWorld's descriptions: `[if c_0 is open]...[end if]`, `[a list of things in the c_0]`.

A description is parsed once for a game, and rendered for a state. Markup that the package's grammars do not write is
refused, so that no game shows brackets to an agent.
"""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

_TOKEN: Final = re.compile(r"\[([^\[\]]{1,200})\]")
_LIST: Final = re.compile(
    r"(?P<verb>is-are )?(?:(?P<article>an? )?list of )things (?:in|on) the (?P<thing>\S+)", re.IGNORECASE
)
_BREAKS: Final = {"line break": "\n", "paragraph break": "\n\n"}
_QUOTES: Final = re.compile(r"(?<![^\W_])'|'(?![^\W_])")
_HEADS: Final[Mapping[str, str | None]] = {"end if": None, "otherwise": ""}
_MOST_PARTS: Final = 2_000
_DEEPEST: Final = 8


class NotUnderstood(ValueError):
    """A substitution that the package's grammars do not write."""


class View(Protocol):
    """The interface of a state for descriptions."""

    def holds(self, state: str, thing: str) -> bool:
        """Return whether a thing is `open`, `closed` or `locked`."""

    def contents(self, thing: str) -> Sequence[str]:
        """Return the ids of the things in or on a thing, in the order in which they are listed."""

    def listed(self, things: Sequence[str], *, articles: bool) -> str:
        """Return the things' names as a list: `a key, an apple and some milk`."""


Condition = Callable[[View], bool]
Part = Callable[[View], str]
_CONDITIONS: Final[Mapping[re.Pattern[str], Callable[[Mapping[str, str], str], Condition]]] = {
    re.compile(r"(?P<state>open|closed|locked)"): lambda said, own: lambda view: view.holds(said["state"], own),
    re.compile(r"there is something (?:in|on) the (?P<thing>\S+)"): lambda _, at: lambda view: bool(view.contents(at)),
    re.compile(r"there is nothing (?:in|on) the (?P<thing>\S+)"): lambda _, at: lambda view: not view.contents(at),
    re.compile(r"(?:the )?(?P<thing>\S+) (?:is )?(?P<state>open|closed|locked)"): (
        lambda said, thing: lambda view: view.holds(said["state"], thing)
    ),
    re.compile(r"(?:the )?(?P<thing>\S+) (?:contains nothing|is empty)"): lambda _, at: (
        lambda view: not view.contents(at)
    ),
    re.compile(r"(?:the )?(?P<thing>\S+) has something on it"): lambda _, at: lambda view: bool(view.contents(at)),
}
"""The grammars' conditions, and their tests of a state, for a match and the thing it names, else the described one."""


@dataclass(frozen=True, slots=True)
class Description:
    """A text that depends on the state."""

    parts: tuple[Part, ...]

    def render(self, view: View) -> str:
        """Return the text in a state."""
        return "".join(part(view) for part in self.parts)


def parse(text: str, known: Mapping[str, str], own: str) -> Description:
    """Parse a description.

    Args:
        text: the text that the package's grammars wrote.
        known: the things of the game that it may name, by id.
        own: the id of the thing that it describes.

    Raises:
        NotUnderstood: with the substitution.
    """
    tokens = _TOKEN.split(text)
    if len(tokens) > _MOST_PARTS:
        raise NotUnderstood(f"it has more than {_MOST_PARTS} parts")
    if any("[" in plain or "]" in plain for plain in tokens[::2]):
        raise NotUnderstood("a bracket has no other")
    if _depth(tokens) > _DEEPEST:
        raise NotUnderstood(f"more than {_DEEPEST} [if] are nested")
    parts, rest = _sequence(tokens, 0, known, own)
    if rest != len(tokens):
        raise NotUnderstood(f"[{tokens[rest]}] has no [if]")
    return Description(tuple(parts))


def _depth(tokens: Sequence[str]) -> int:
    steps = (1 if token.lower().startswith("if ") else -1 if token.lower() == "end if" else 0 for token in tokens[1::2])
    return max(itertools.accumulate(steps), default=0)


def _sequence(tokens: Sequence[str], at: int, known: Mapping[str, str], own: str) -> tuple[list[Part], int]:
    """Parse up to a token that ends or continues an outer `[if]`; return the parts and that token's place."""
    parts: list[Part] = []
    while at < len(tokens):
        if at % 2 == 0:
            if tokens[at]:
                parts.append(_plain(tokens[at]))
            at += 1
            continue
        token = tokens[at]
        lower = token.lower()
        if lower in ("end if", "otherwise") or lower.startswith("else if "):
            return parts, at
        if lower.startswith("if "):
            part, at = _choice(tokens, at, known, own)
        else:
            part, at = _substitution(token, known, own), at + 1
        parts.append(part)
    return parts, at


def _choice(tokens: Sequence[str], at: int, known: Mapping[str, str], own: str) -> tuple[Part, int]:
    branches: list[tuple[Condition, Description]] = []
    head: str | None = tokens[at][len("if ") :]
    while head is not None:
        parts, at = _sequence(tokens, at + 1, known, own)
        branches.append((_condition(head, known, own), Description(tuple(parts))))
        if at == len(tokens):
            raise NotUnderstood("an [if] has no [end if]")
        head = _HEADS.get(tokens[at].lower(), tokens[at][len("else if ") :])

    def chosen(view: View) -> str:
        return next((text.render(view) for holds, text in branches if holds(view)), "")

    return chosen, at + 1


def _condition(text: str, known: Mapping[str, str], own: str) -> Condition:
    if not text:  # of [otherwise]
        return lambda _: True
    conditions = [_single(part.strip(), known, own) for part in text.split(" and ")]
    return conditions[0] if len(conditions) == 1 else lambda view: all(holds(view) for holds in conditions)


def _single(text: str, known: Mapping[str, str], own: str) -> Condition:
    for pattern, make in _CONDITIONS.items():
        if match := pattern.fullmatch(text):
            said = match.groupdict()
            return make(said, _thing(said["thing"], known) if "thing" in said else own)
    raise NotUnderstood(f"[if {text}]")


def _substitution(token: str, known: Mapping[str, str], own: str) -> Part:
    if (text := _BREAKS.get(token.lower())) is not None:
        return _plain(text)
    if token.lower() == "noun":
        return lambda view: view.listed([own], articles=False)
    if (match := _LIST.fullmatch(token)) is None:
        raise NotUnderstood(f"[{token}]")
    thing, articles, with_verb = _thing(match["thing"], known), bool(match["article"]), bool(match["verb"])

    def told(view: View) -> str:
        things = view.contents(thing)
        verb = ("is " if len(things) == 1 else "are ") if with_verb else ""
        return verb + view.listed(things, articles=articles)

    return told


def _plain(text: str) -> Part:
    told = quoted(text)
    return lambda _: told


def quoted(text: str) -> str:
    """Replace single quotation marks at the edges of words by double ones, as Inform prints them."""
    return _QUOTES.sub('"', text)


def _thing(thing: str, known: Mapping[str, str]) -> str:
    if thing not in known:
        raise NotUnderstood(f"it names {thing[:40]!r}, which is no thing of the game")
    return thing
