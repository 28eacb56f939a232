"""Checks of what every reply format promises, for other people's formats and for ours."""

import gc
import random
import time
from collections.abc import Iterator
from typing import Any, Final

from gymfleet_contracts.reply_format import FormatSection, ReplyFormat
from gymfleet_kit.formats import CheckedFormat, FormatFailed, format_of
from gymfleet_kit.plugins import PluginError

_THOUGHTS: Final = ("I look.", "First this.\nThen that, as I said.", "")
_NUM_RANDOM: Final = 400
_MAX_FRAGMENTS: Final = 12
_FRAGMENTS: Final = (
    "", " ", "\n", "\r\n", "\t", "\x00", "\x1b[31m", "\u2028", "é", "\U0001f511", "a", "go left", "`", "```", "<", ">",
    "</", "{", "}", "[", "]", "(", ")", '"', "\\", ":", "Thought:", "Action:", "Final Answer:", "<think>", "</think>",
    "<action>", "</action>",
)  # fmt: skip
_LONGEST: Final = 100_000
_MAX_S: Final = 0.25
"""A parser that goes through a text a few times needs a few milliseconds."""
_TRIES: Final = 3


def examine(reference: str) -> list[str]:
    """Return one line for each promise that a format breaks with its default options: none if it is sound."""
    try:
        checked = format_of(FormatSection(use=reference))
    except PluginError as error:
        return [str(error)]
    plugin = checked.plugin
    if unsaid := list(_says_what_it_is(plugin, checked)):
        return unsaid
    checks = (_reads_what_it_writes, _keeps_nothing, _survives_any_text, _never_halves, _is_fast)
    told: list[str] = []
    try:
        for check in checks:
            told += check(plugin, checked)
    except FormatFailed as error:
        told.append(str(error))
    return told


def _says_what_it_is(plugin: ReplyFormat[Any], checked: CheckedFormat) -> Iterator[str]:
    if checked.version < 1:
        yield f"version is {checked.version}; it counts from 1"
    examples = plugin.examples
    if not examples or not all(isinstance(action, str) and action.strip() for action in examples):
        yield f"examples is {examples!r:.80}; it needs an action of each kind that the format carries"


def _reads_what_it_writes(plugin: ReplyFormat[Any], checked: CheckedFormat) -> Iterator[str]:
    for reply, action in _replies(plugin, checked):
        parsed = checked.parse(reply)
        if parsed.action != action:
            yield f"it writes the action {action!r} as {reply!r} and reads {parsed.action!r}"
            return
        if not parsed.well_formed:
            yield f"it writes {reply!r}, which it does not read as well formed"
            return


def _keeps_nothing(plugin: ReplyFormat[Any], checked: CheckedFormat) -> Iterator[str]:
    replies = [reply for reply, _ in _replies(plugin, checked)]
    first = [checked.parse(reply) for reply in replies]
    second = [checked.parse(reply) for reply in reversed(replies)]
    if first != second[::-1]:
        yield "the same reply is read in different ways: one object serves all episodes and keeps nothing of a reply"


def _survives_any_text(plugin: ReplyFormat[Any], checked: CheckedFormat) -> tuple[()]:
    """Parse random texts of our markers and the format's own. Raises FormatFailed."""
    draw = random.Random(0)
    fragments = (*_FRAGMENTS, *_pieces(plugin, checked))
    for _ in range(_NUM_RANDOM):
        text = "".join(draw.choices(fragments, k=draw.randrange(_MAX_FRAGMENTS)))
        try:
            checked.parse(text)
        except FormatFailed as error:
            raise FormatFailed(f"{error}, for {text!r:.120}") from error
    return ()


def _never_halves(plugin: ReplyFormat[Any], checked: CheckedFormat) -> Iterator[str]:
    """Cut replies anywhere: the rest must not be read as an action that is the beginning of the intended one."""
    for reply, action in _replies(plugin, checked):
        for end in range(len(reply)):
            left = checked.parse(reply[:end]).if_cut().action
            if left is not None and left != action and action.startswith(left):
                yield f"{reply[:end]!r}, cut off from {reply!r}, is read as the complete action {left!r}"
                return


def _is_fast(plugin: ReplyFormat[Any], checked: CheckedFormat) -> Iterator[str]:
    for before, unit, after in _nasty(plugin, checked):
        size = 8
        while size <= _LONGEST:  # in small steps, so that a parser of exponential time is stopped in time too
            text = before + unit * (size // len(unit) + 1) + after
            if (seconds := _seconds(checked, text)) > _MAX_S:
                yield (
                    f"parse takes {seconds:.1f} s for {len(text)} characters, many of them {unit!r}: a reply of "
                    f"{_LONGEST} may be made to stop the service"
                )
                return
            size += max(2, size // 4)


def _seconds(checked: CheckedFormat, text: str) -> float:
    """Return the processor time of parsing, the shortest of several if one is too long."""
    shortest = float("inf")
    collecting = gc.isenabled()
    gc.disable()  # a collection goes through all objects of the process, which says nothing of the parser
    try:
        for _ in range(_TRIES):
            began = time.thread_time()
            checked.parse(text)
            shortest = min(shortest, time.thread_time() - began)
            if not _MAX_S < shortest < 8 * _MAX_S:  # what is near the limit may be the machine's doing
                break
    finally:
        if collecting:
            gc.enable()
    return shortest


def _nasty(plugin: ReplyFormat[Any], checked: CheckedFormat) -> Iterator[tuple[str, str, str]]:
    """Yield texts with a part to repeat: alone, as the thought, as the action, and after a whole reply."""
    pieces = _pieces(plugin, checked)
    units = dict.fromkeys([" ", "\n", "a", "`", "(", "<", "a b ", " \n", *pieces, *(f"{piece} " for piece in pieces)])
    reply, action = next(_replies(plugin, checked))
    at_thought, at_action = reply.partition(_THOUGHTS[0]), reply.rpartition(action)
    for unit in units:
        yield "", unit, ""
        yield reply, unit, ""
        yield at_thought[0], unit, "x" + at_thought[2]
        yield at_action[0], unit, at_action[2]
        yield at_action[0], unit, f"\nx\n{at_action[2]}"


def _replies(plugin: ReplyFormat[Any], checked: CheckedFormat) -> Iterator[tuple[str, str]]:
    """Yield written replies, each with its action."""
    for action in plugin.examples:
        for thought in _THOUGHTS:
            yield checked.render(thought, action), action


def _pieces(plugin: ReplyFormat[Any], checked: CheckedFormat) -> list[str]:
    """Return what the format writes around thoughts and actions: its markers."""
    found: list[str] = []
    for action in plugin.examples:
        before, _, rest = checked.render(_THOUGHTS[0], action).partition(_THOUGHTS[0])
        between, _, after = rest.partition(action)
        found += [before, between, after, *between.split()]
    return list(dict.fromkeys(piece for piece in found if piece))
