"""The root that sessions start from, made of a small tree."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from gymfleet_envs.os.sandbox import rootfs
from gymfleet_envs.os.sandbox.base import SandboxError
from gymfleet_envs.os.sandbox.packages import closure
from gymfleet_envs.os.sandbox.rootfs import make_image_root, prepared_root


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """As an unpacked image has it: links into /usr, an /etc of its own, leftovers of a run."""
    tree = tmp_path / "tree"
    for folder in ("usr/bin", "etc", "proc", "tmp", "run", "home/ann"):
        (tree / folder).mkdir(parents=True)
    (tree / "bin").symlink_to("usr/bin")
    (tree / "usr/bin/su").write_text("su")
    (tree / "usr/bin/su").chmod(0o4755)
    (tree / "etc/passwd").write_text("of the image")
    (tree / "etc/motd").write_text("hello")
    (tree / "etc/secret").write_text("key")
    (tree / "etc/secret").chmod(0o600)
    (tree / "tmp/leftover").write_text("x")
    return tree


def test_a_tree_is_copied_with_what_every_root_has(tree: Path, tmp_path: Path) -> None:
    root = prepared_root(tree, tmp_path / "cache")

    assert (root / "bin/su").read_text() == "su"
    assert stat.S_IMODE((root / "usr/bin/su").stat().st_mode) == 0o4755
    assert (root / "etc/motd").read_text() == "hello"
    assert (root / "etc/passwd").read_text().startswith("root:x:0:0:root:/root:/bin/bash\n")
    assert (root / "home/ann").is_dir()
    assert not list((root / "tmp").iterdir())
    assert not (root / "etc/secret").exists(), "nobody but its owner may read it"
    owner = 65534 if os.geteuid() == 0 else os.geteuid()
    assert {path.lstat().st_uid for path in (root, *root.rglob("*"))} == {owner}
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


def test_a_root_is_made_once_and_goes_when_nobody_uses_it(tree: Path, tmp_path: Path) -> None:
    script = "import sys, pathlib as p; from gymfleet_envs.os.sandbox.rootfs import prepared_root as r; "
    script += "print(r(p.Path(sys.argv[1]), p.Path(sys.argv[2])))"

    def made() -> str:
        argv = [sys.executable, "-c", script, str(tree), str(tmp_path / "cache")]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()

    first = made()
    born = Path(first).stat().st_ctime_ns
    assert made() == first
    assert Path(first).stat().st_ctime_ns == born
    (tree / "etc/motd").write_text("changed")
    second = made()

    assert second != first
    assert [str(path) for path in (tmp_path / "cache").glob("root-*")] == [second]


def test_a_directory_that_others_can_write_to_keeps_no_root(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o777)
    (tmp_path / "cache").chmod(0o777)

    with pytest.raises(SandboxError, match="others can write to it"):
        prepared_root(tree, tmp_path / "cache")


def test_packages_come_with_what_they_need() -> None:
    installed = {
        "bash": {"Depends": "base-files (>= 2.1), missing | other", "Pre-Depends": "libc6:any (>= 2.36), awk"},
        "base-files": {}, "other": {}, "libc6": {}, "mawk": {"Provides": "awk, nawk (= 1)"}, "unrelated": {},
    }  # fmt: skip

    assert closure(installed) == ["base-files", "bash", "libc6", "mawk", "other"]


@pytest.fixture
def image(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where an image has its root, and a host that such a root can be made of."""
    (tree / "usr/sbin").mkdir()
    (tree / "usr/bin/bash").write_text("bash")
    (tree / "usr/bin/setpriv").write_text("setpriv")
    (tree / "var/lib/dpkg/info").mkdir(parents=True)
    (tree / "var/lib/dpkg/status").write_text("Package: bash\nStatus: install ok installed\nVersion: 1\n")
    (tree / "var/lib/dpkg/info/bash.list").write_text("/.\n/usr/bin/bash\n/usr/bin/setpriv\n")
    image = tmp_path / "os-root"
    image.mkdir()
    monkeypatch.setattr(rootfs, "IMAGE_ROOT", image)
    monkeypatch.setattr(rootfs, "HOST", tree)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return image


def test_the_root_that_an_image_brings_is_used_as_it_is(image: Path, tmp_path: Path) -> None:
    make_image_root()

    assert (image / "usr/bin/bash").read_text() == "bash"
    assert prepared_root(None, None) == image
    assert not (tmp_path / "caches").exists(), "a read-only disk is enough"


def test_who_asks_for_another_root_gets_it_in_an_image_too(image: Path, tree: Path, tmp_path: Path) -> None:
    make_image_root()

    assert prepared_root(tree, None).parent == tmp_path / "caches/gymfleet/os-roots"
    assert prepared_root(None, tmp_path / "cache").parent == tmp_path / "cache"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_an_images_root_is_left_alone_by_users_that_could_not_change_it(image: Path, tmp_path: Path) -> None:
    assert prepared_root(None, None).parent == tmp_path / "caches/gymfleet/os-roots", "it is empty"

    make_image_root()
    os.chown(image, 12345, -1)

    assert prepared_root(None, None).parent == tmp_path / "caches/gymfleet/os-roots"
