"""What every command shares: the two streams, expected failures, and text that cannot steer a terminal."""

from typing import Final

from rich.console import Console
from rich.text import Text

out: Final = Console(highlight=False)
err: Final = Console(stderr=True, highlight=False)


class CliError(Exception):
    """An expected failure: one line on stderr."""

    exit_code = 1


class UsageProblem(CliError):
    """The command cannot be carried out as it was typed, or as its recipe says."""

    exit_code = 2


def printable(text: str) -> str:
    """`text` without control characters: what an episode says must not move the cursor or set a title."""
    return "".join(char for char in text if char in "\n\t" or (char.isprintable()))


def plain(text: str, style: str = "") -> Text:
    """Text of an environment or a model, in which no markup is read."""
    return Text(printable(text), style=style)


def one_line(text: str) -> str:
    """The message as one printable line."""
    return " ".join(printable(text).split())
