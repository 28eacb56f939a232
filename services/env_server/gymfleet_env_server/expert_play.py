"""Play an environment's expert without a server, to show that tasks can be solved."""

from typing import Any

from gymfleet_contracts.reply_format import FormatSection
from gymfleet_kit.formats import format_of

from gymfleet_env_server.catalogue import Entry


class ExpertFault(Exception):
    """The expert did what no agent could: the format does not preserve its move, or the move is not a valid action."""


def solve(entry: Entry, data: Any, seed: int = 0) -> bool:
    """Return whether the expert solves a task within its turns, acting in the reply format. Raises `ExpertFault`."""
    environment = entry.make()
    environment.reset(data, seed)
    try:
        return _play(entry, environment)
    finally:
        environment.close()


def _play(entry: Entry, environment: Any) -> bool:
    reply_format = format_of(FormatSection(use=entry.spec.format))
    for _ in range(min(entry.kind.max_turns, environment.turn_limit or entry.kind.max_turns)):
        move = environment.expert()
        if move is None:
            return False
        reply = reply_format.parse(reply_format.render(move.thought, move.action))
        if not reply.well_formed or reply.action != move.action:
            raise ExpertFault(f"{entry.spec.format} reads {reply.action!r} where the expert said {move.action!r}")
        outcome = environment.step(move.action)
        if not outcome.action_valid:
            raise ExpertFault(f"{move.action!r} is not valid: {outcome.observation[:200]}")
        if outcome.terminated:
            return bool(outcome.score == 1.0)
    return False
