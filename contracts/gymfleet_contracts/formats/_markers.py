"""Reading that formats with markers such as `Thought:` and `Action:` share."""

from typing import Final

THOUGHT: Final = "Thought:"
ACTION: Final = "Action:"
SQL_FENCE: Final = "```sql"


def without(marker: str, text: str) -> str:
    """Return the text behind the marker that it may begin with."""
    return text.strip().removeprefix(marker).strip()


def first_line(text: str) -> tuple[str, bool]:
    """Return the first line that is not blank, and whether a line break ends it."""
    lines = text.lstrip().splitlines(keepends=True)
    if not lines:
        return "", False
    return lines[0].strip(), lines[0] != lines[0].splitlines()[0]
