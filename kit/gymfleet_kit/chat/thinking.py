"""Whether a model thinks before it replies: a chat template's own switches for that."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, TypeVar

from gymfleet_kit.chat.dialect import Dialect
from gymfleet_kit.chat.template import UnusableTemplate

T = TypeVar("T")

KEEPING: Final[Mapping[str, bool]] = {
    "preserve_thinking": True, "preserved_thinking": True, "clear_thinking": False, "drop_thinking": False,
}  # fmt: skip
"""Switches with which templates show the thoughts before earlier replies, for templates that have one."""
_SWITCHES: Final[Mapping[bool, Mapping[str, Any]]] = {
    True: {
        "enable_thinking": True, "thinking": True, "reasoning": True, "thinking_mode": "enabled",
        "skip_thinking": False,
    },
    False: {"enable_thinking": False, "thinking": False, "reasoning": False, "thinking_mode": "disabled"},
}  # fmt: skip
_EFFORTS: Final[Mapping[bool, tuple[str, ...]]] = {True: ("high",), False: ("no_think", "none", "minimal")}


def dialect_that(
    thinking: Literal["template", "on", "off"],
    variables: frozenset[str],
    learn: Callable[[Mapping[str, Any]], tuple[T, Dialect]],
) -> tuple[T, Dialect]:
    """Return the result of `learn` with the switches under which the template makes replies think, or not.

    Raises UnusableTemplate if it has no such switch.
    """
    if thinking == "template":
        return learn({})
    wanted, refusal, begun = thinking == "on", "", False
    for switches in ({}, *_choices(wanted, variables)):
        try:
            found = learn(switches)
        except UnusableTemplate as error:
            refusal = refusal or str(error)
            continue
        dialect = found[1]
        if dialect.thinks == wanted:
            return found
        is_opened = dialect.thinking is not None and dialect.thinking.opened
        if begun and not wanted and not is_opened:  # the switch keeps the prompt from beginning thoughts
            dialect.thinks = False
            return found
        if not wanted and "thinking_budget" in switches:  # which the template tells the model in words
            dialect.thinks = False
            return found
        begun = begun or is_opened
    reason = refusal or (
        "it has no place for thoughts, or no switch for them" if wanted else "it has no switch that turns it off"
    )
    raise UnusableTemplate(f"thinking cannot be turned {thinking} with this chat template: {reason}")


def _choices(wanted: bool, variables: frozenset[str]) -> Iterator[dict[str, Any]]:
    """Yield switches to try, without those that the template does not have."""
    own = {name: value for name, value in _SWITCHES[wanted].items() if name in variables}
    yield own
    if "reasoning_effort" in variables:
        for effort in _EFFORTS[wanted]:
            yield {**own, "reasoning_effort": effort}
    if not wanted and "thinking_budget" in variables:
        yield {**own, "thinking_budget": 0}
