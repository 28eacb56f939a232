"""Control groups on plain directories; the kernel's own files are not needed to see what is written."""

from pathlib import Path

import pytest
from gymfleet_envs.os.options import OsOptions
from gymfleet_envs.os.sandbox.base import SandboxError
from gymfleet_envs.os.sandbox.cgroup import ControlGroup
from gymfleet_envs.os.sandbox.cgroup_search import candidates, parents, warn_unbounded
from gymfleet_envs.os.sandbox.opening import check_backend


def test_unwritable_parent_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=r"no control group in .*nowhere"):
        ControlGroup([tmp_path / "nowhere"], "s", memory_mib=64, processes=8, cpus=1, pid=1)


def test_directory_that_was_there_before_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()

    with pytest.raises(SandboxError, match="File exists"):
        ControlGroup([tmp_path], "s", memory_mib=64, processes=8, cpus=1, pid=1)


VERSION_1 = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
37 31 0:34 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
"""
VERSION_2 = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_groups_of_version_1_are_looked_for_below_ones_own() -> None:
    own = "9:name=systemd:/\n4:memory:/docker/abc/inner\n3:freezer:/\n1:cpu,cpuacct:/user\n"

    assert list(candidates(VERSION_1, own)) == [
        ("cpu", Path("/sys/fs/cgroup/cpu,cpuacct/user")),
        ("memory", Path("/sys/fs/cgroup/memory/inner")),
    ]


def test_groups_of_version_2_are_looked_for_from_ones_own_upwards() -> None:
    found = list(candidates(VERSION_2, "0::/system.slice/gymfleet.service\n"))

    assert [place for controller, place in found if controller == "memory"] == [
        Path("/sys/fs/cgroup/system.slice/gymfleet.service"),
        Path("/sys/fs/cgroup/system.slice"),
        Path("/sys/fs/cgroup"),
    ]


def test_directories_that_bound_nothing_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = f"35 24 0:30 / {tmp_path} rw - cgroup2 cgroup2 rw\n"
    monkeypatch.setattr(Path, "read_text", lambda path: mounts if path.name == "mountinfo" else "0::/\n")

    assert parents("auto") == ()
    assert list(tmp_path.iterdir()) == [], "what was tried is gone"


def test_memory_that_nothing_bounds_is_said_once_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    warn_unbounded.cache_clear()

    for _ in range(2):
        check_backend(OsOptions())

    assert capsys.readouterr().out.count("memory is not bounded") == 1
