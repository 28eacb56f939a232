"""What a check may see of a session's layer, and what its digest says. No sandbox takes part."""

import io
import os
import tarfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import docker.errors
import pytest
from gymfleet_envs.os.sandbox.docker_layer import ContainerLayer
from gymfleet_envs.os.sandbox.layer import Layer, Prepared, build_view
from gymfleet_envs.os.sandbox.rule import Kind, kind_of


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("root/f", Kind.SEEN),
        ("data", Kind.SEEN),
        ("usr/stock.log", Kind.SEEN),
        ("usr/local/app/lib/x", Kind.SEEN),
        ("etc/passwd", Kind.SEEN),
        ("etc/sudoers", Kind.SEEN),
        ("etc/app/settings", Kind.SEEN),
        ("var/lib/dpkg/status", Kind.SEEN),
        ("etc", Kind.ANCESTOR),
        ("usr/bin", Kind.ANCESTOR),
        ("usr/bin/calc", Kind.PROGRAM),
        ("usr/local/sbin/calc", Kind.PROGRAM),
        ("usr/bin/lib/python3.11/os.py", Kind.HIDDEN),
        ("lib64", Kind.HIDDEN),
        ("lib", Kind.HIDDEN),
        ("bin", Kind.HIDDEN),
        ("pyvenv.cfg", Kind.HIDDEN),
        ("usr/pyvenv.cfg", Kind.HIDDEN),
        ("usr/lib/python3/dist-packages/sitecustomize.py", Kind.HIDDEN),
        ("usr/lib64", Kind.HIDDEN),
        ("usr/libx32/libc.so.6", Kind.HIDDEN),
        ("usr/local/lib/python3.11/dist-packages/x.pth", Kind.HIDDEN),
        ("usr/local/share/perl/5.36.0/strict.pm", Kind.HIDDEN),
        ("usr/share/awk/x.awk", Kind.HIDDEN),
        ("etc/ld.so.preload", Kind.HIDDEN),
        ("etc/ld.so.cache", Kind.HIDDEN),
        ("etc/alternatives/awk", Kind.HIDDEN),
        ("etc/python3.11/sitecustomize.py", Kind.HIDDEN),
        ("etc/perl/strict.pm", Kind.HIDDEN),
        ("etc/nsswitch.conf", Kind.HIDDEN),
        ("etc/pam.d/su", Kind.HIDDEN),
        ("etc/profile.d/x.sh", Kind.HIDDEN),
        ("etc/gitconfig", Kind.HIDDEN),
    ],
)
def test_what_programs_read_without_being_told_is_never_the_agents(path: str, kind: Kind) -> None:
    assert kind_of(path) is kind


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755 if "/bin/" in name else 0o644)


class Tree:
    """A root, a layer over it, and the view that checks get."""

    def __init__(self, place: Path) -> None:
        self.root, self.upper, self.view = place / "root", place / "upper", place / "view"
        for folder in (self.root, self.upper, self.view, place / "kept"):
            folder.mkdir()
        self.layer = Layer(str(self.upper))
        self._kept = place / "kept"

    def prepared(self) -> Prepared:
        return Prepared(self.layer, str(self.root), str(self._kept))

    def seen(self, prepared: Prepared) -> tuple[dict[str, str], list[str]]:
        hidden = build_view(self.layer, prepared, str(self.root), str(self.view))
        files = sorted(path for path in self.view.rglob("*") if path.is_file())
        return {str(path.relative_to(self.view)): path.read_text() for path in files}, hidden


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_new_programs_are_seen_under_new_names_alone(tree: Tree) -> None:
    write(tree.root, {"usr/bin/grep": "grep", "bin/sed": "sed"})
    programs = (
        "usr/bin/calc",
        "usr/sbin/grep",
        "usr/bin/sed",
        "usr/bin/pyvenv.cfg",
        "usr/bin/pybuilddir.txt",
        "usr/bin/re.py",
    )
    prepared = tree.prepared()
    write(tree.upper, dict.fromkeys((*programs, "usr/bin/lib/python3.11/os.py", "usr/bin/plain"), "agent"))
    (tree.upper / "usr/bin/plain").chmod(0o644)

    seen, hidden = tree.seen(prepared)

    assert seen == {"usr/bin/calc": "agent"}
    assert hidden == [
        "usr/bin/lib/python3.11/os.py", "usr/bin/plain", "usr/bin/pybuilddir.txt", "usr/bin/pyvenv.cfg",
        "usr/bin/re.py", "usr/bin/sed", "usr/sbin/grep",
    ]  # fmt: skip


def test_of_a_changed_program_the_special_bits_are_seen_and_nothing_else(tree: Tree) -> None:
    write(tree.root, {"usr/bin/find": "find", "usr/bin/stat": "stat"})
    prepared = tree.prepared()
    write(tree.upper, {"usr/bin/find": "find", "usr/bin/stat": "evil"})
    (tree.upper / "usr/bin/find").chmod(0o4755)
    (tree.upper / "usr/bin/stat").chmod(0o4700)

    seen, hidden = tree.seen(prepared)

    assert seen == {"usr/bin/find": "find", "usr/bin/stat": "stat"}
    assert (tree.view / "usr/bin/find").stat().st_mode & 0o7777 == 0o4755
    assert (tree.view / "usr/bin/stat").stat().st_mode & 0o7777 == 0o4755, "what may run it does not change"
    assert hidden == ["usr/bin/stat"]


def test_what_the_preparation_put_into_the_system_stays_as_it_was(tree: Tree) -> None:
    write(tree.root, {"usr/bin/grep": "grep"})
    write(tree.upper, {"usr/lib/app/lib.so": "task", "etc/profile.d/task.sh": "task", "usr/bin/tool": "task"})
    (tree.upper / "etc/profile.d/link").symlink_to("/root/x")
    prepared = tree.prepared()
    write(tree.upper, {"usr/lib/app/lib.so": "evil", "etc/profile.d/task.sh": "evil", "usr/bin/tool": "better"})
    (tree.upper / "etc/profile.d/link").unlink()

    seen, hidden = tree.seen(prepared)

    assert seen == {"usr/lib/app/lib.so": "task", "etc/profile.d/task.sh": "task", "usr/bin/tool": "better"}
    assert (tree.view / "etc/profile.d/link").readlink() == Path("/root/x")
    assert hidden == ["etc/profile.d/task.sh", "usr/lib/app/lib.so"]


def test_a_change_that_kept_its_times_is_found(tree: Tree) -> None:
    write(tree.upper, {"usr/lib/a.so": "task"})
    before = (tree.upper / "usr/lib/a.so").stat()
    prepared = tree.prepared()
    write(tree.upper, {"usr/lib/a.so": "evil"})
    os.utime(tree.upper / "usr/lib/a.so", ns=(before.st_atime_ns, before.st_mtime_ns))

    assert tree.seen(prepared) == ({"usr/lib/a.so": "task"}, ["usr/lib/a.so"])


def test_directories_of_the_system_cannot_be_replaced(tree: Tree) -> None:
    (tree.root / "etc").mkdir()
    (tree.root / "usr/bin").mkdir(parents=True)
    prepared = tree.prepared()
    (tree.upper / "etc").symlink_to("/root/etc")
    (tree.upper / "usr").mkdir(mode=0o700)
    (tree.upper / "usr/bin").symlink_to("/root/bin")

    seen, hidden = tree.seen(prepared)

    assert (seen, hidden) == ({}, ["etc", "usr/bin"])
    assert (tree.view / "usr").stat().st_mode & 0o777 == (tree.root / "usr").stat().st_mode & 0o777


def test_digest_is_of_content_and_not_of_times(tree: Tree) -> None:
    write(tree.upper, {"root/a": "1", "root/b": "2"})
    first = tree.layer.digest()

    os.utime(tree.upper / "root/a", (1, 1))
    assert tree.layer.digest() == first
    (tree.upper / "root/a").write_text("3")
    second = tree.layer.digest()
    (tree.upper / "root/a").chmod(0o600)
    third = tree.layer.digest()
    (tree.upper / "root/b").rename(tree.upper / "root/c")
    fourth = tree.layer.digest()
    (tree.upper / "root/c").unlink()
    (tree.upper / "root/c").symlink_to("2")
    assert len({first, second, third, fourth, tree.layer.digest()}) == 5


def test_digest_does_not_wait_for_a_pipe_nor_break_on_deep_paths(tree: Tree) -> None:
    os.mkfifo(tree.upper / "pipe")
    deep = os.open(tree.upper, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("d" * 200, dir_fd=deep)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = inner
    os.close(deep)

    assert tree.layer.digest() == tree.layer.digest()


class Container:
    """Docker's answers about a container's files."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[str, int]] = {}
        self.reads = 0

    def diff(self, container: str) -> list[dict[str, Any]] | None:
        assert container == "c1"
        return [{"Path": path, "Kind": 1} for path in reversed(self.files)] or None

    def get_archive(
        self, container: str, path: str, chunk_size: int
    ) -> tuple[Generator[bytes, None, None], dict[str, Any]]:
        if path not in self.files:
            raise docker.errors.NotFound("gone")
        content, mtime = self.files[path]
        entry = tarfile.TarInfo(path)
        entry.size, entry.mtime = len(content), mtime
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.addfile(entry, io.BytesIO(content.encode()))

        def chunks() -> Generator[bytes, None, None]:
            self.reads += 1
            for at in range(0, len(buffer.getvalue()), chunk_size):
                yield buffer.getvalue()[at : at + chunk_size]

        return chunks(), {"size": len(content), "mode": 0o644, "mtime": str(mtime)}


def test_digest_of_a_container_reads_what_changed() -> None:
    container = Container()
    layer = ContainerLayer(container, "c1")
    empty = layer.digest()
    container.files = {"/root/b": ("b" * 100_000, 1), "/root/a": ("a", 1)}

    first = layer.digest()
    assert layer.digest() == first != empty
    assert container.reads == 2, "each once"
    container.files["/root/a"] = ("a", 2)
    assert layer.digest() == first, "times do not count"
    container.files["/root/a"] = ("x", 3)
    assert layer.digest() != first
    assert container.reads == 4
