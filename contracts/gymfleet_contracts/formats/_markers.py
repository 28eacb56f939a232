"""Parsing shared by the formats with markers such as `Thought:` and `Action:`."""

from typing import Final

from gymfleet_contracts.reply_format import ParsedReply, no_action

THOUGHT: Final = "Thought:"
ACTION: Final = "Action:"
SQL_FENCE: Final = "```sql"


def without(marker: str, text: str) -> str:
    """Return the text without the marker that it may begin with."""
    return text.strip().removeprefix(marker).strip()


def first_line(text: str) -> tuple[str, bool]:
    """Return the first line that is not blank, and whether a line break ends it."""
    lines = text.lstrip().splitlines(keepends=True)
    if not lines:
        return "", False
    return lines[0].strip(), lines[0] != lines[0].splitlines()[0]


def parse_marked(text: str, thought_marker: str, action_marker: str) -> ParsedReply:
    """Read the action after the last marker: the first line that is not blank."""
    head, marker, tail = text.rpartition(action_marker)
    if not marker:
        return no_action(without(thought_marker, text))
    action, ended = first_line(tail)
    well_formed = (
        bool(action)
        and text.lstrip().startswith(thought_marker)
        and text.count(action_marker) == 1
        and text.count(thought_marker) == 1
        and _is_one_line(tail)
    )
    return ParsedReply(
        thought=without(thought_marker, head),
        action=action or None,
        well_formed=well_formed,
        complete=ended and bool(action),
    )


def _is_one_line(tail: str) -> bool:
    """Return whether the text is one line, on the marker's line or the next, followed only by blanks."""
    line, _, rest = tail.partition("\n")
    if not line.strip(" \t") and rest:
        line, _, rest = rest.partition("\n")
    return bool(line) and not rest.strip()
