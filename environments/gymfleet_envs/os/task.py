"""The data of an OS task."""

from dataclasses import dataclass
from typing import Literal

Comparison = Literal["integer-match", "string-match", "size-match"]


@dataclass(frozen=True, slots=True)
class Script:
    """A program of the task. It runs only in the sandbox."""

    code: str
    language: Literal["bash", "python"] = "bash"

    def argv(self, *arguments: str) -> list[str]:
        """AgentBench's command line; Python imports nothing from the working directory or the home."""
        if self.language == "python":
            return ["python3", "-I", "-c", self.code, *arguments]
        return ["bash", "-c", self.code, *(("--", *arguments) if arguments else ())]


@dataclass(frozen=True, slots=True)
class Match:
    """A test of the answer itself: it equals `answer` or, if that is None, `regex` finds a match in it."""

    answer: str | None = None
    regex: str | None = None
    strip: bool = False


@dataclass(frozen=True, slots=True)
class OsTask:
    """A question or a chore.

    `check` is a list of programs, each run with the answer and the outputs of those
    before it; None in it stands for `example`, a name for AgentBench's comparison of
    that name. Without `check`, `match` decides. `plan` holds the expert's commands;
    after them, it answers with the last one's output, or finishes if `chore`.
    """

    description: str
    init: tuple[Script, ...] = ()
    start: str | None = None
    match: Match | None = None
    check: tuple[Script | Comparison | None, ...] = ()
    example: Script | None = None
    plan: tuple[tuple[str, str], ...] = ()
    """Pairs of thought and command."""
    chore: bool = False
