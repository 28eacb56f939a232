"""A process group for sending one version of the weights from the trainer, its first rank, to rollout services.

It lasts for that transfer, and is separate from the groups in which a trainer or an engine computes. Its members are
the services that have registered at the trainer's store when it begins: dead ones are left out. Every wait has a
deadline.
"""

import socket
import time
from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

_POLL_S: Final = 0.02
_MEMBERS: Final = "members"


class GroupFailed(Exception):
    """The group was not formed, or broke; the message gives the reason in one line."""


class WeightStore:
    """Where the members of a group find each other.

    Args:
        distributed: `torch.distributed`, which is not imported here.
        store: a `TCPStore` of `torch.distributed`.
        token: distinguishes this group from others.
        address: the address of this process, to which the others connect.
        timeout_s: the limit of every single wait.
    """

    def __init__(self, distributed: Any, store: Any, *, token: str, address: str, timeout_s: float) -> None:
        self._distributed = distributed
        self._store = distributed.PrefixStore(token, store)
        self._address = address
        self._timeout_s = timeout_s

    @classmethod
    def opened(cls, distributed: Any, *, token: str, address: str, timeout_s: float) -> tuple["WeightStore", int]:
        """Open a store on a free port of an address of this machine; return the store and the port."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.create_server((address, 0), family=family) as listener:
            port = int(listener.getsockname()[1])
            store = distributed.TCPStore(
                address, port, None, True, timedelta(seconds=timeout_s), wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )  # fmt: skip
        return cls(distributed, store, token=token, address=address, timeout_s=timeout_s), port

    @classmethod
    def found(cls, distributed: Any, host: str, port: int, *, token: str, timeout_s: float) -> "WeightStore":
        """Connect to the store of another process. Raises GroupFailed."""
        try:
            with socket.create_connection((host, port), timeout=timeout_s) as probe:  # torch would log a traceback
                address = str(probe.getsockname()[0])
            store = distributed.TCPStore(host, port, None, False, timedelta(seconds=timeout_s), wait_for_workers=False)
        except (OSError, RuntimeError) as error:
            raise GroupFailed(_line(error)) from error
        return cls(distributed, store, token=token, address=address, timeout_s=timeout_s)

    def begun(self, awaited: Collection[int], gone: Collection[int]) -> "WeightGroup | None":
        """Begin as the first rank, once each seat has come or is gone, or time is up; return None if none has come.

        `gone` may grow meanwhile. Raises GroupFailed.
        """
        # Half of the timeout, since members that have come wait no longer than the whole of it.
        deadline = time.monotonic() + self._timeout_s / 2
        try:
            while True:
                come = [seat for seat in sorted(awaited) if self._store.check([_seat(seat)])]
                if set(awaited) <= {*come, *gone} or time.monotonic() > deadline:
                    break
                time.sleep(_POLL_S)
            members = [seat for seat in come if seat not in gone]
            self._store.set(_MEMBERS, ",".join(map(str, members)))
            return self._group(0, len(members)) if members else None
        except RuntimeError as error:
            raise GroupFailed(_line(error)) from error

    def joined(self, seat: int) -> "WeightGroup":
        """Register, wait for the first rank to begin, and join. Raises GroupFailed."""
        deadline = time.monotonic() + self._timeout_s
        try:
            self._store.set(_seat(seat), "")
            while not self._store.check([_MEMBERS]):
                if time.monotonic() > deadline:
                    raise GroupFailed(f"the trainer did not begin to send within {self._timeout_s:g} s")
                time.sleep(_POLL_S)
            members = [int(one) for one in self._store.get(_MEMBERS).decode().split(",") if one]
            if seat not in members:
                raise GroupFailed("the trainer began to send before this service had come")
            return self._group(1 + members.index(seat), len(members))
        except (RuntimeError, ValueError) as error:
            raise GroupFailed(_line(error)) from error

    def _group(self, rank: int, others: int) -> "WeightGroup":
        options = self._distributed.ProcessGroupGloo._Options()  # noqa: SLF001 - torch's own way to say an address
        options._timeout = timedelta(seconds=self._timeout_s)  # noqa: SLF001 - as above
        options._devices = [self._distributed.ProcessGroupGloo.create_device(hostname=self._address)]  # noqa: SLF001
        group = self._distributed.ProcessGroupGloo(self._store, rank, 1 + others, options)
        return WeightGroup(self._distributed, group, timeout_s=self._timeout_s)


class WeightGroup:
    """The members of one transfer. All call `broadcast` the same number of times, with tensors of the same sizes."""

    def __init__(self, distributed: Any, group: Any, *, timeout_s: float) -> None:
        self._group = group
        self._options = distributed.BroadcastOptions()
        self._options.rootRank = 0
        self._timeout = timedelta(seconds=timeout_s)

    def broadcast(self, data: Any) -> None:
        """Send a uint8 tensor in main memory to all members, or receive it. Raises GroupFailed."""
        try:
            self._group.broadcast([data], self._options).wait(self._timeout)
        except RuntimeError as error:
            self._group = None  # its connections end, and with them the waiting of the others
            raise GroupFailed(_line(error)) from error


def address_towards(hosts: Collection[str]) -> str:
    """Return the address from which this machine reaches one of the hosts; not a loopback address, if possible."""
    for host in hosts:
        with suppress(OSError):  # a host that is not known is not reached by anything
            family, _, _, _, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as unused:  # connecting it sends nothing
                unused.connect(place)
                own = str(unused.getsockname()[0])
            if not own.startswith("127.") and own != "::1":
                return own
    return "127.0.0.1"


def _seat(seat: int) -> str:
    return f"seat/{seat}"


def _line(error: Exception) -> str:
    """Return the first line of torch's message, which may continue with torch's own stack."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
