"""What an OS task holds."""

from dataclasses import dataclass
from typing import Literal

Comparison = Literal["integer-match", "string-match", "size-match"]


@dataclass(frozen=True, slots=True)
class Script:
    """A program of the task. It runs in the sandbox alone."""

    code: str
    language: Literal["bash", "python"] = "bash"

    def argv(self, *arguments: str) -> list[str]:
        """The command line, as AgentBench writes it; Python imports nothing from the directory or the home."""
        if self.language == "python":
            return ["python3", "-I", "-c", self.code, *arguments]
        return ["bash", "-c", self.code, *(("--", *arguments) if arguments else ())]


@dataclass(frozen=True, slots=True)
class Match:
    """The answer itself is looked at: equal to `answer`, else found by `regex`."""

    answer: str | None = None
    regex: str | None = None
    strip: bool = False


@dataclass(frozen=True, slots=True)
class OsTask:
    """A question or a chore.

    `check` is a list of programs, each run with the answer and what the ones before
    printed; None in it stands for `example`, a name for AgentBench's comparison of
    that name. Without it, `match` decides. `plan` is what the expert does: commands,
    after which it answers with what the last one printed, or finishes if `chore`.
    """

    description: str
    init: tuple[Script, ...] = ()
    start: str | None = None
    match: Match | None = None
    check: tuple[Script | Comparison | None, ...] = ()
    example: Script | None = None
    plan: tuple[tuple[str, str], ...] = ()
    """Thought and command."""
    chore: bool = False
