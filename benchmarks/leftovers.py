"""Counts of open sessions and of journals, which must be zero in the end."""

from typing import Final

import httpx
from redis import Redis

_SESSION_KEYS: Final = "gymfleet:gateway:journal:*"


def held(server_url: str) -> int:
    """Return the env server's count of open sessions. Raises `httpx.HTTPError`."""
    load = httpx.get(f"{server_url}/v1/load", timeout=30, trust_env=False).raise_for_status().json()
    return sum(sum(owners.values()) for owners in load["sessions"].values())


def session_keys(redis_url: str) -> int:
    """Return the number of journals in Redis."""
    with Redis.from_url(redis_url) as client:
        return sum(1 for _ in client.scan_iter(_SESSION_KEYS, count=1000))
