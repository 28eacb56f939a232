"""Parts shared by all commands: the two streams, expected failures, and text that cannot control a terminal."""

from typing import Final

from rich.console import Console
from rich.text import Text

out: Final = Console(highlight=False)
err: Final = Console(stderr=True, highlight=False)


class CliError(Exception):
    """An expected failure, shown as one line on stderr."""

    exit_code = 1


class UsageProblem(CliError):
    """The command cannot be carried out as typed, or as its recipe requires."""

    exit_code = 2


def printable(text: str) -> str:
    """Return `text` without control characters: an episode's text must not move the cursor or set a title."""
    return "".join(char for char in text if char in "\n\t" or (char.isprintable()))


def plain(text: str, style: str = "") -> Text:
    """Make a Text from the output of an environment or a model, in which no markup is interpreted."""
    return Text(printable(text), style=style)


def one_line(text: str) -> str:
    """Return the message as one printable line."""
    return " ".join(printable(text).split())
