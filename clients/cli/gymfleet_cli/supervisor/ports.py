"""The ports on which services listen: any free ports, or a row of them."""

import random
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gymfleet_cli.supervisor.errors import FleetError, PortInUse

LOOPBACK = "127.0.0.1"
_LOWEST: Final = 10_000
_OUTGOING: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Return `count` different ports on which no process listens now.

    They are below those that the kernel gives to outgoing connections: a service listens some seconds later, and a
    connection of another process might take its port before that. They are random, so that fleets that start at the
    same time do not collide.
    """
    ports: set[int] = set()
    while len(ports) < count:
        port = random.SystemRandom().randrange(_LOWEST, _first_outgoing())
        if _is_free(port):
            ports.add(port)
    return list(ports)


def _first_outgoing() -> int:
    """Return the lowest port of outgoing connections, or Linux's default if that is unknown or leaves no room."""
    usual = 32_768
    told = int(_OUTGOING.read_text(encoding="ascii").split()[0]) if _OUTGOING.exists() else usual
    return told if told > 2 * _LOWEST else usual


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def check_port(name: str, port: int) -> None:
    """Raise `PortInUse`, which names the port, when a service could not listen on it."""
    if not _is_free(port):
        raise PortInUse(name, port)


def row_of_ports(first: int, names: Sequence[str]) -> list[int]:
    """Return `first`, `first + 1`, ... in the order of `names`, each checked to be free."""
    if not 1 <= first <= 65_536 - len(names):
        raise FleetError(f"--ports-from {first} leaves no room for {len(names)} ports below 65536")
    for offset, name in enumerate(names):
        check_port(name, first + offset)
    return list(range(first, first + len(names)))
