"""What is fetched of a container and what of it is put before a check. No daemon takes part."""

import hashlib
import io
import tarfile
import time
from collections.abc import Generator, Iterator
from typing import Any

import docker.errors
import pytest
from gymfleet_envs.os.sandbox.base import SandboxError
from gymfleet_envs.os.sandbox.docker_changes import Changes, TooMuch, differences, place_of
from gymfleet_envs.os.sandbox.docker_check import Sealed, View
from gymfleet_envs.os.sandbox.docker_layer import ADDED, CHANGED, REMOVED

DISK_BYTES = 1 << 20


class Container:
    """Docker's answers about a container's files: `kinds` of the changes, and everything that is there."""

    def __init__(self) -> None:
        self.kinds: dict[str, int] = {}
        self.files: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
        self.asked: list[str] = []
        self.opened: list[Changes | Sealed] = []

    def put(self, path: str, kind: int | None, content: bytes = b"", **fields: Any) -> None:
        """`fields` are a tar member's; a path that ends with a slash is a directory's."""
        member = tarfile.TarInfo(path.strip("/"))
        member.type = tarfile.DIRTYPE if path.endswith("/") else tarfile.REGTYPE
        member.mode, member.size = 0o755, len(content)
        for name, value in fields.items():
            setattr(member, name, value)
        self.files[path.strip("/")] = (member, content)
        if kind is not None:
            self.kinds[path.strip("/")] = kind

    def diff(self, container: str) -> list[dict[str, Any]] | None:
        assert container == "c1"
        return [{"Path": f"/{path}", "Kind": kind} for path, kind in reversed(self.kinds.items())] or None

    def get_archive(
        self, container: str, path: str, chunk_size: int
    ) -> tuple[Generator[bytes, None, None], dict[str, Any]]:
        assert container == "c1"
        self.asked.append(path)
        path = path.strip("/")
        parent = path.rpartition("/")[0]
        buffer = io.BytesIO()
        found = [name for name in sorted(self.files) if name == path or name.startswith(f"{path}/")]
        if not found:
            raise docker.errors.NotFound("gone")
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name in found:
                member, content = self.files[name]
                told = member.replace(name=member.name.removeprefix(f"{parent}/"), deep=False)
                if told.islnk() and len(found) == 1:
                    told.type = tarfile.REGTYPE  # Docker names a file's other name where that was asked for too
                elif told.islnk():
                    told.size = 0
                archive.addfile(told, io.BytesIO(content))
        return (buffer.getvalue()[at : at + 1000] for at in range(0, len(buffer.getvalue()), 1000)), {}

    def changes(self, disk_bytes: int = DISK_BYTES) -> Changes:
        changes = Changes(self, "c1", disk_bytes, time.monotonic() + 30)
        self.opened.append(changes)
        changes.read(differences(self, "c1"))
        return changes

    def sealed(self, *programs: str) -> Sealed:
        sealed = Sealed(self, "c1", DISK_BYTES)
        self.opened.append(sealed)
        sealed.know_programs({"usr/bin": list(programs)})
        return sealed


@pytest.fixture
def container() -> Iterator[Container]:
    container = Container()
    yield container
    for opened in container.opened:
        opened.close()


@pytest.fixture
def pristine(container: Container) -> Sealed:
    """Of a preparation that did nothing."""
    return container.sealed()


def view(container: Container, sealed: Sealed) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """What is to be done by path, with a file's `content`, and the paths that are hidden."""
    seen = View(container.changes(), sealed)
    done = {str(about["path"]): {**about, "data": b"".join(content)} for about, content in seen.records()}
    return done, seen.hidden


@pytest.mark.parametrize(
    ("asked", "name", "place"),
    [
        ("root/a", "a", "root/a"),
        ("root/a", "a/b/", "root/a/b"),
        ("a", "a/b", "a/b"),
        ("root/a", "b", None),
        ("root/a", "/root/a", None),
        ("root/a", "a/../../usr/bin/grep", None),
        ("root/a", "a/./b", None),
        ("root/a", "a//b", None),
        ("root/a", "ab", None),
        ("root/a", "", None),
    ],
)
def test_no_name_in_an_archive_leads_out_of_what_was_asked_for(asked: str, name: str, place: str | None) -> None:
    assert place_of(asked, name) == place


def test_new_directories_take_one_request_and_crowded_ones_too(container: Container) -> None:
    container.put("root/", CHANGED)
    for name in ("a", "b", "c"):
        container.put(f"root/{name}", ADDED, name.encode())
    container.put("root/old", None, b"of the image")
    container.put("root/new/", ADDED)
    container.put("srv/", CHANGED)
    container.put("srv/x/", ADDED)
    container.put("srv/x/y/", ADDED)
    container.put("srv/x/y/z", ADDED, b"z")
    container.put("srv/old", None)
    container.kinds["root/gone"] = REMOVED

    changes = container.changes()

    assert container.asked == ["/root", "/srv", "/srv/x"]
    assert list(changes.entries) == [
        "root", "root/a", "root/b", "root/c", "root/new", "srv", "srv/x", "srv/x/y", "srv/x/y/z", "root/gone",
    ]  # fmt: skip
    assert changes.entries["root/a"].content == hashlib.sha256(b"a").hexdigest()
    assert b"".join(changes.content("srv/x/y/z")) == b"z"
    assert changes.entries["root/gone"].removed


def test_a_directory_that_was_made_again_is_told_from_one_that_is_gone(container: Container) -> None:
    container.put("opt/", REMOVED)
    container.put("opt/a", ADDED, b"a")
    container.put("opt/old", CHANGED, b"again")
    container.kinds["mnt"] = REMOVED

    entries = container.changes().entries

    assert (entries["opt"].content, entries["mnt"].removed) == ("opaque", True)
    assert set(entries) == {"opt", "opt/a", "opt/old", "mnt"}


def test_files_that_are_too_large_or_too_many_are_refused(container: Container) -> None:
    container.put("root/a", ADDED, b"a" * 600_000)
    container.put("srv/b", ADDED, b"b" * 600_000)
    with pytest.raises(TooMuch, match="too large"):
        container.changes()
    for number in range(300):
        container.put(f"etc/{number}", ADDED)
    with pytest.raises(TooMuch, match="too many"):
        container.changes()


def test_an_archive_that_does_not_come_to_its_end_in_time_is_an_error(container: Container) -> None:
    container.put("root/a", ADDED, b"a")
    with Changes(container, "c1", DISK_BYTES, time.monotonic()) as late, pytest.raises(SandboxError, match="in time"):
        late.read(differences(container, "c1"))


def test_a_hard_link_to_a_file_that_did_not_change_is_a_file(container: Container) -> None:
    for name in ("a", "c"):
        container.put(f"etc/{name}", ADDED)
    container.put("etc/passwd", None, b"root")
    container.put("etc/twin", ADDED, b"root", type=tarfile.LNKTYPE, linkname="etc/passwd")

    changes = container.changes()

    assert "etc/passwd" not in changes.entries
    assert b"".join(changes.content("etc/twin")) == b"root"
    assert not changes.links


def test_hard_links_stay_links_where_the_other_name_is_seen(container: Container, pristine: Sealed) -> None:
    container.put("usr/x/", ADDED)
    container.put("usr/x/a", ADDED, b"a")
    container.put("usr/x/b", ADDED, type=tarfile.LNKTYPE, linkname="x/a")
    container.put("usr/bin/deep/", ADDED)
    container.put("usr/bin/deep/a", ADDED, b"hidden")

    done, hidden = view(container, pristine)

    assert done["usr/x/b"] == {"do": "link", "path": "usr/x/b", "to": "usr/x/a", "data": b""}
    assert hidden == ["usr/bin/deep/a"]


def test_what_programs_read_and_where_they_lie_is_never_the_agents(container: Container) -> None:
    sealed = container.sealed("grep", "find")
    for path in ("usr/bin/grep", "lib64", "etc/ld.so.preload", "usr/local/lib/python3/x.pth"):
        container.put(path, CHANGED, b"evil")
    for path in ("usr/local/bin/grep", "usr/bin/calc", "root/f", "etc/app.conf"):
        container.put(path, ADDED, b"agent")
    container.put("usr/bin/plain", ADDED, b"agent", mode=0o644)
    container.put("usr/bin/find", CHANGED, b"find", mode=0o4755)
    container.kinds["etc/issue"] = container.kinds["etc/profile"] = REMOVED

    done, hidden = view(container, sealed)

    assert {path: about["do"] for path, about in done.items()} == {
        "etc/app.conf": "file", "etc/issue": "remove", "root/f": "file", "usr/bin/calc": "file",
        "usr/bin/find": "mark", "usr/bin/grep": "mark",
    }  # fmt: skip
    assert done["usr/bin/find"]["mode"] == 0o4755
    assert not done["usr/bin/grep"]["data"]
    assert hidden == [
        "etc/ld.so.preload", "etc/profile", "lib64",
        "usr/bin/plain", "usr/local/bin/grep", "usr/local/lib/python3/x.pth",
    ]  # fmt: skip


def test_what_the_preparation_put_into_the_system_stays_as_it_was(container: Container) -> None:
    container.put("usr/lib/app.so", ADDED, b"task")
    container.put("usr/bin/find", CHANGED, b"find", mode=0o4755)
    container.put("usr/bin/tool", ADDED, b"task")
    container.kinds["usr/share/gone"] = REMOVED
    sealed = container.sealed("find")
    container.put("usr/lib/app.so", ADDED, b"evil")
    container.put("usr/bin/find", CHANGED, b"evil", mode=0o755)
    container.put("usr/bin/tool", ADDED, b"better", mode=0o644)

    done, hidden = view(container, sealed)

    assert {path: (about["do"], about["data"], about["mode"]) for path, about in done.items()} == {
        "usr/lib/app.so": ("file", b"task", 0o755),
        "usr/bin/find": ("file", b"find", 0o755),
        "usr/bin/tool": ("file", b"better", 0o644),
        "usr/share/gone": ("remove", b"", 0),
    }
    assert hidden == ["usr/bin/find", "usr/lib/app.so"]


def test_devices_and_pipes_that_the_daemon_would_wait_for_are_not_put(container: Container, pristine: Sealed) -> None:
    container.put("root/pipe", ADDED, type=tarfile.FIFOTYPE)
    container.put("root/disk", ADDED, type=tarfile.BLKTYPE, devmajor=8)
    container.put("etc/passwd", CHANGED, type=tarfile.FIFOTYPE)
    container.put("etc/group", CHANGED, type=tarfile.SYMTYPE, linkname="/root/pipe")

    done, hidden = view(container, pristine)

    assert {path: about["do"] for path, about in done.items()} == {"root/pipe": "pipe"}
    assert hidden == ["etc/group", "etc/passwd", "root/disk"]
