"""`SERVICE describe KIND` and `SERVICE check KIND`: facts about a service's plug-ins for programs without its code."""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gymfleet_kit.plugins import PluginError, PluginKind, described

PLUGIN_COMMANDS: Final = {
    "describe": "Print what plug-ins are and which options they take, as a line of JSON for each.",
    "check": "Try what the plug-ins of a kind promise, and print what does not hold, as a line of JSON for each.",
}


@dataclass(frozen=True)
class PluginRoom:
    """One kind of plug-in, in the service that runs it."""

    kind: PluginKind[Any]
    examine: Callable[[str], list[str]] | None = None
    """Returns a line for each promise that a plug-in breaks. Raises `PluginError` if the plug-in cannot be used.

    None if a server makes the promises, which are then checked from outside.
    """


def plugin_command(program: str, rooms: Mapping[str, Callable[[], PluginRoom]], argv: Sequence[str]) -> bool:
    """Carry out `describe` or `check` if `argv` asks for it; return whether it does.

    For each reference, or for each name if none is given, it prints a line of JSON: a `PluginDescription`, `faults`, or
    the reason for having neither, under `error`. A room is made only when it is needed, as it may import much.
    """
    if not argv or argv[0] not in PLUGIN_COMMANDS:
        return False
    parser = argparse.ArgumentParser(prog=f"{program} {argv[0]}", description=PLUGIN_COMMANDS[argv[0]])
    parser.add_argument("kind", choices=sorted(rooms))
    parser.add_argument("reference", nargs="*", help="a name, package.module:Class or a .py file; all names if none")
    arguments = parser.parse_args(argv[1:])
    room = rooms[arguments.kind]()
    if argv[0] == "check" and room.examine is None:
        parser.error(f"the promises of an {arguments.kind} are its server's: `gymfleet check` serves it and tries them")
    answer = _described if argv[0] == "describe" else _examined
    for reference in arguments.reference or room.kind.names():
        sys.stdout.write(f"{_line(answer, room, reference)}\n")
    return True


def _line(answer: Callable[[PluginRoom, str], str], room: PluginRoom, reference: str) -> str:
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a plug-in may print
            return answer(room, reference)
    except PluginError as error:
        return json.dumps({"error": str(error)})


def _described(room: PluginRoom, reference: str) -> str:
    return described(room.kind.name, reference, room.kind.find(reference)).model_dump_json()


def _examined(room: PluginRoom, reference: str) -> str:
    room.kind.find(reference)  # one that cannot be used is no broken promise
    faults = room.examine(reference) if room.examine is not None else []
    return json.dumps({"kind": room.kind.name, "reference": reference, "faults": faults})
