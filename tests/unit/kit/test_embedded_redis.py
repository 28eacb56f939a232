"""The embedded Redis: found, durable, and telling what to install where there is none."""

import importlib.util
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from gymfleet_kit.embedded_redis import redis_command, redis_executable


def configured(command: list[str]) -> dict[str, str]:
    lines = Path(command[1]).read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ", 1) for line in lines)


def test_the_command_is_a_durable_redis_that_refuses_rather_than_forgets(tmp_path: Path) -> None:
    command = redis_command(tmp_path, port=7000)

    assert Path(command[0]).is_file()
    options = configured(command)
    assert options["bind"] == "127.0.0.1"
    assert options["port"] == "7000"
    assert options["dir"] == f'"{tmp_path}"'
    assert options["appendonly"] == "yes"
    assert options["maxmemory-policy"] == "noeviction"


def test_a_password_is_in_no_argument_and_in_no_file_of_others(tmp_path: Path) -> None:
    command = redis_command(tmp_path, port=7000, password="swordfish")

    assert "swordfish" not in " ".join(command)
    assert ">swordfish" in configured(command)["user"]
    assert stat.S_IMODE(Path(command[1]).stat().st_mode) == 0o600


def test_what_a_redis_of_before_left_for_all_to_read_is_shut(tmp_path: Path) -> None:
    (tmp_path / "appendonly.aof").touch(mode=0o644)
    tmp_path.chmod(0o755)

    redis_command(tmp_path, socket=tmp_path / "redis.sock")

    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}


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
