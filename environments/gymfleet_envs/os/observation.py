"""A command's output as AgentBench shows it."""

import re
from typing import Final

from gymfleet_envs.os.sandbox.base import Ran

MAX_CHARS: Final = 800
_KEPT_CHARS: Final = 780
_CUT: Final = "\n[truncated because the output is too long]"
_SEQUENCES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(output: bytes) -> str:
    """Text without a terminal's control characters."""
    text = output.decode(errors="replace").replace("\r\n", "\n")
    return _CONTROLS.sub("", _SEQUENCES.sub("", text)).rstrip("\n")


def shown(ran: Ran, timeout_s: float) -> str:
    """The observation after a command."""
    text = plain(ran.output)
    if len(text) > MAX_CHARS or ran.cut:
        text = text[:_KEPT_CHARS] + _CUT
    notes = []
    if ran.timed_out:
        notes.append(f"[stopped: the command ran for more than {timeout_s:g} seconds]")
    if ran.shell_ended:
        notes.append("[the shell ended; the next command gets a new one in /]")
    if not text and not notes:
        return "The output of the OS is empty."
    return "\n".join(["The output of the OS:\n", *([text] if text else []), *notes])
