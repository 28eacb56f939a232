"""The catalogue of all checks."""

from itertools import chain
from typing import Any

from gymfleet_conformance.agentgym import checks as agentgym
from gymfleet_conformance.check import Check, Protocol
from gymfleet_conformance.native import (
    answers,
    batch,
    bodies,
    declared,
    forks,
    games,
    isolation,
    leases,
    service,
    sessions,
    steps,
    stream,
)
from gymfleet_conformance.openenv import service as openenv_service
from gymfleet_conformance.openenv import socket as openenv_socket

_MODULES = (answers, batch, bodies, declared, forks, games, isolation, leases, service, sessions, steps, stream,
            openenv_service, openenv_socket, agentgym)  # fmt: skip
_GROUPS = ("service", "sessions", "steps", "isolation", "batch", "stream", "forks", "leases", "answers", "declared",
           "games", "bodies")  # fmt: skip


def checks_of(protocol: Protocol) -> list[Check[Any]]:
    """Return the checks of one protocol, group by group."""
    suites = {module.SUITE.protocol: module.SUITE for module in _MODULES}
    checks: list[Check[Any]] = list(suites[protocol].checks)
    return sorted(checks, key=lambda check: _GROUPS.index(check.group) if check.group in _GROUPS else 0)


def every_check() -> list[Check[Any]]:
    """Return the checks of all protocols."""
    return list(chain.from_iterable(checks_of(protocol) for protocol in Protocol))
