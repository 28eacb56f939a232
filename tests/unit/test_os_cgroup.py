"""Control groups on plain directories; the kernel's own files are not needed to see what is written."""

from pathlib import Path

import pytest
from gymfleet_envs.os.sandbox.base import SandboxError
from gymfleet_envs.os.sandbox.cgroup import ControlGroup


def test_unwritable_parent_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=r"no control group in .*nowhere"):
        ControlGroup([tmp_path / "nowhere"], "s", memory_mib=64, processes=8, cpus=1, pid=1)


def test_directory_that_was_there_before_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()

    with pytest.raises(SandboxError, match="File exists"):
        ControlGroup([tmp_path], "s", memory_mib=64, processes=8, cpus=1, pid=1)
