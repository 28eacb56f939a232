"""The embedded Redis: found, durable, and telling what to install where there is none."""

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest
from gymfleet_kit.embedded_redis import redis_command, redis_executable


def test_the_command_is_a_durable_redis_that_refuses_rather_than_forgets(tmp_path: Path) -> None:
    command = redis_command(tmp_path, host="127.0.0.1", port=7000)

    assert Path(command[0]).is_file()
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["--bind"] == "127.0.0.1"
    assert options["--port"] == "7000"
    assert options["--dir"] == str(tmp_path)
    assert options["--appendonly"] == "yes"
    assert options["--maxmemory-policy"] == "noeviction"


def test_the_systems_redis_serves_where_the_wheel_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")

    assert redis_executable() == "/bin/redis-server"


def test_without_any_redis_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing(_: Any) -> None: ...

    monkeypatch.setattr(importlib.util, "find_spec", nothing)
    monkeypatch.setattr(shutil, "which", nothing)

    with pytest.raises(SystemExit) as ended:
        redis_executable()

    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "gymfleet[embedded-redis]" in line
