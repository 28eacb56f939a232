"""Find the replicas of a service: a fixed list, and DNS names that stand for any number of them.

A headless service in Kubernetes and a scaled service in docker-compose both resolve
to one address per replica.
"""

import asyncio
import socket
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

import structlog

log = structlog.get_logger()

_RESOLVE_TIMEOUT_S: Final = 5.0


class Discovery:
    """Resolves names; while a name cannot be resolved, its last addresses are used.

    Args:
        names: base URLs whose host is a DNS name with one address per replica.
        fixed: base URLs of replicas that are always there.
    """

    def __init__(self, names: Iterable[object], *, fixed: Iterable[object] = ()) -> None:
        self._fixed = [str(url).rstrip("/") for url in fixed]
        self.names = [str(url).rstrip("/") for url in names]
        self._found: dict[str, list[str]] = {name: [] for name in self.names}
        self._failing: set[str] = set()

    async def urls(self) -> list[str]:
        """Return the base URLs of all replicas that should exist now, without repetitions."""
        await asyncio.gather(*(self._resolve(name) for name in self.names))
        found = [url for name in self.names for url in self._found[name]]
        return list(dict.fromkeys([*self._fixed, *found]))

    async def _resolve(self, name: str) -> None:
        parts = urlsplit(name)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            async with asyncio.timeout(_RESOLVE_TIMEOUT_S):
                answers = await asyncio.get_running_loop().getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError) as error:
            if name not in self._failing:
                self._failing.add(name)
                reason = str(error) or f"no answer within {_RESOLVE_TIMEOUT_S:g} s"
                log.warning("discovery.failed", name=name, reason=reason, kept=len(self._found[name]))
            return
        self._failing.discard(name)
        hosts = sorted({answer[4][0] for answer in answers})
        urls = [f"{parts.scheme}://{f'[{host}]' if ':' in str(host) else host}:{port}" for host in hosts]
        if urls != self._found[name]:
            log.info("discovery.changed", name=name, replicas=len(urls), before=len(self._found[name]))
            self._found[name] = urls
