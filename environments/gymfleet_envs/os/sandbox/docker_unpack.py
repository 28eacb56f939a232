"""The script for the pristine container for checks: it lists its programs' names, then puts files where it is told.

The script runs in that container before any file of the agent is in it. It follows no link on the way to a file.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gymfleet_envs.os.sandbox.base import Head, SandboxError
from gymfleet_envs.os.sandbox.docker_room import Room
from gymfleet_envs.os.sandbox.docker_stream import Stream
from gymfleet_envs.os.sandbox.rule import NAME_FOLDERS

_SEND_BYTES: Final = 1 << 20
_LINE_BYTES: Final = 4 << 20
Record = tuple[Mapping[str, Any], Iterable[bytes]]
"""An operation (`do`) at a path (`path`); the content of a file follows, `size` bytes long."""

_UNPACK: Final = """
import errno, hashlib, json, os, stat, sys
FOLDERS = %r
FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
given = sys.stdin.buffer
left = 0

def take():
    global left
    while left:
        chunk = given.read(min(left, 1 << 20))
        if not chunk:
            sys.exit("the rest is missing")
        left -= len(chunk)
        yield chunk

def enter(path, make):
    folder = os.open("/", FLAGS | os.O_DIRECTORY)
    for name in path.split("/")[:-1]:
        try:
            if make:
                os.mkdir(name, 0o755, dir_fd=folder)
        except FileExistsError:
            pass
        try:
            inner = os.open(name, FLAGS | os.O_DIRECTORY, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder, path.split("/")[-1]

def wipe(name, folder):
    try:
        state = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(state.st_mode):
        os.unlink(name, dir_fd=folder)
        return
    inner = os.open(name, FLAGS | os.O_DIRECTORY, dir_fd=folder)
    for below in os.listdir(inner):
        wipe(below, inner)
    os.close(inner)
    os.rmdir(name, dir_fd=folder)

def own(file, record):
    os.fchown(file, record["uid"], record["gid"])
    os.fchmod(file, record["mode"])

def put_file(name, folder, record):
    how = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        wipe(name, folder)
        file = os.open(name, how | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        file = os.open(name, how | os.O_TRUNC, dir_fd=folder)  # Docker mounts /etc/hosts and two more
    for chunk in take():
        while chunk:
            chunk = chunk[os.write(file, chunk):]
    own(file, record)
    os.utime(file, (record["time"], record["time"]))
    os.close(file)

def put_folder(name, folder, record):
    try:
        state = os.stat(name, dir_fd=folder, follow_symlinks=False)
        known = stat.S_ISDIR(state.st_mode) and not record["opaque"]
    except FileNotFoundError:
        known = False
    if not known:
        wipe(name, folder)
        os.mkdir(name, 0o700, dir_fd=folder)
    file = os.open(name, FLAGS | os.O_DIRECTORY, dir_fd=folder)
    own(file, record)
    os.close(file)

def mark(name, folder, record):
    file = os.open(name, FLAGS | os.O_NONBLOCK, dir_fd=folder)
    before = os.fstat(file).st_mode
    if not stat.S_ISREG(before):
        return False
    mode = (stat.S_IMODE(before) & 0o777) | (record["mode"] & 0o7000)
    if mode != stat.S_IMODE(before):
        os.fchmod(file, mode)
    total = hashlib.sha256()
    while chunk := os.read(file, 1 << 20):
        total.update(chunk)
    os.close(file)
    return mode == record["mode"] and total.hexdigest() == record["content"]

def put(record):
    what = record["do"]
    try:
        folder, name = enter(record["path"], what != "remove")
    except OSError:
        return what == "remove"
    try:
        if what == "file":
            put_file(name, folder, record)
        elif what == "folder":
            put_folder(name, folder, record)
        elif what == "mark":
            return mark(name, folder, record)
        else:
            wipe(name, folder)
            if what == "symlink":
                os.symlink(record["to"], name, dir_fd=folder)
            elif what == "pipe":
                os.mkfifo(name, record["mode"], dir_fd=folder)
            elif what == "link":
                other, source = enter(record["to"], False)
                os.link(source, name, src_dir_fd=other, dst_dir_fd=folder, follow_symlinks=False)
                os.close(other)
            if what in ("symlink", "pipe"):
                os.chown(name, record["uid"], record["gid"], dir_fd=folder, follow_symlinks=False)
        return True
    finally:
        os.close(folder)

def say(what):
    print(json.dumps(what), flush=True)

def names(folder):
    try:
        return os.listdir("/" + folder)
    except OSError:
        return []

os.umask(0)
say({folder: names(folder) for folder in FOLDERS})
failed = []
for line in iter(given.readline, b""):
    record = json.loads(line)
    if record["do"] == "end":
        say(failed)
        break
    left = record.get("size", 0)
    try:
        done = put(record)
    except (OSError, OverflowError):
        done = False
    if not done:
        failed.append(record["path"])
    for _ in take():
        pass
"""


class Unpacking:
    """The script, running in one container. Raises `SandboxError` if it ends early, and Docker's errors."""

    def __init__(self, room: Room, until: float) -> None:
        self._until = until
        self._stream: Stream = room.helper(_UNPACK % (NAME_FOLDERS,))
        try:
            self.programs: dict[str, list[str]] = self._answer()
            """The names in each directory of programs."""
        except BaseException:
            self.close()
            raise

    def put(self, records: Iterable[Record]) -> list[str]:
        """Carry out the records; return the paths where that failed or does not reproduce all that the agent did."""
        waiting = b""
        for data in _encoded(records):
            waiting += data
            if len(waiting) >= _SEND_BYTES:
                self._stream.send(waiting)
                waiting = b""
                if time.monotonic() > self._until:
                    raise SandboxError("the files of the sandbox could not be written in time")
        self._stream.send(waiting)
        failed: list[str] = self._answer()
        return failed

    def close(self) -> None:
        """Close the connection to the script."""
        self._stream.close()

    def _answer(self) -> Any:
        head = Head(_LINE_BYTES)
        while not head.data.endswith(b"\n"):
            if head.cut or time.monotonic() > self._until or self._stream.read(head, self._until) is None:
                break
        try:
            return json.loads(head.data)
        except ValueError:
            said = " ".join(bytes(head.data[-300:]).decode(errors="replace").split())
            raise SandboxError(f"the root for checks could not be made: {said or 'in time'}") from None


def _encoded(records: Iterable[Record]) -> Iterator[bytes]:
    for record, content in records:
        yield json.dumps(record).encode() + b"\n"
        yield from content
    yield b'{"do": "end"}\n'
