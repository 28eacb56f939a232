"""The base of tools, which a reply can call before it answers, by a last line `name[argument]`."""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from functools import cache
from typing import ClassVar, Final

from gymfleet_envs.dataset.parts import UnknownPart, find_part
from gymfleet_envs.tasks import TaskDataError

PACKAGE: Final = "gymfleet_envs.dataset.tools"
_CALL: Final = re.compile(r"([a-z][a-z0-9_]*)\[(.*)\]")


class ToolFault(ValueError):
    """The call makes no sense. The message tells the model why."""


class RowTool(ABC):
    """A tool for all rows. One object serves all episodes: the same call gives the same answer, without waiting."""

    name: ClassVar[str]
    description: ClassVar[str]
    """The tool's effect, in a sentence for the model that begins with a verb."""
    argument: ClassVar[str]
    """The name of the tool's argument, such as `expression`."""

    @abstractmethod
    def call(self, argument: str) -> str:
        """Return the text to show to the model. A model wrote the argument. Raises `ToolFault`."""


def call_of(said: str, names: Collection[str]) -> tuple[str, str] | None:
    """Return the tool and the argument that a reply's last line calls; None if it calls none."""
    last = said.rstrip().rpartition("\n")[2].strip()
    match = _CALL.fullmatch(last)
    return (match[1], match[2]) if match is not None and match[1] in names else None


@cache
def tools_of(references: tuple[str, ...]) -> Mapping[str, RowTool]:
    """Return the tools that the options name, by their own names. Raises `TaskDataError`."""
    try:
        made = [find_part(reference, PACKAGE, RowTool, "tool")() for reference in references]  # type: ignore[type-abstract]
    except UnknownPart as error:
        raise TaskDataError(f"tools: {error}") from None
    found = {tool.name: tool for tool in made}
    if len(found) < len(made):
        raise TaskDataError("tools: two of them have one name")
    return found
