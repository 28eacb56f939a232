"""The ports on which services listen: any free ports, or a row of them."""

import socket
from collections.abc import Sequence

from gymfleet_cli.supervisor.errors import FleetError, PortInUse

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Return `count` different ports on which nobody listens now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def check_port(name: str, port: int) -> None:
    """Raise `PortInUse`, which names the port, when a service could not listen on it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            raise PortInUse(name, port) from None


def row_of_ports(first: int, names: Sequence[str]) -> list[int]:
    """Return `first`, `first + 1`, ... in the order of `names`, each checked to be free."""
    if not 1 <= first <= 65_536 - len(names):
        raise FleetError(f"--ports-from {first} leaves no room for {len(names)} ports below 65536")
    for offset, name in enumerate(names):
        check_port(name, first + offset)
    return list(range(first, first + len(names)))
