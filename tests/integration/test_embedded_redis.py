"""`gymfleet-redis` as a process: what it serves, to whom, and what it keeps from them."""

import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from gymfleet_kit.streams import RedisClient, connect, disconnect
from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from tests.fixtures.ports import free_port

COMMAND: Final = str(Path(sys.executable).with_name("gymfleet-redis"))


@contextmanager
def served(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Until it says that it accepts connections."""
    with subprocess.Popen([COMMAND, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert any("eady to accept connections" in line for line in process.stdout), "it ended"
            yield process
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("served") / "with space"
    with served("--dir", str(directory)):
        yield directory


@pytest.fixture
async def redis(directory: Path) -> AsyncIterator[RedisClient]:
    client = connect(f"unix://{str(directory).replace(' ', '%20')}/redis.sock")
    yield client
    await disconnect(client)


@pytest.mark.parametrize(
    "command",
    [
        "CONFIG GET dir", "CONFIG SET dir /tmp", "MODULE LIST", "MODULE LOAD /tmp/x.so", "DEBUG SLEEP 0", "SAVE",
        "BGSAVE", "BGREWRITEAOF", "SLAVEOF NO ONE", "REPLICAOF 127.0.0.1 1", "ACL LIST", "MONITOR", "SHUTDOWN",
        "MIGRATE 127.0.0.1 1 k 0 1", "RESTORE k 0 x", "SLOWLOG GET", "CLUSTER INFO", "FAILOVER",
    ],
)  # fmt: skip
async def test_its_administration_is_off(redis: RedisClient, command: str) -> None:
    untyped: Any = redis
    with pytest.raises(NoPermissionError):
        await untyped.execute_command(*command.split(" "))


async def test_what_services_do_works(redis: RedisClient) -> None:
    assert await redis.ping()
    assert (await redis.info())["redis_version"]
    script = redis.register_script("redis.call('XADD', KEYS[1], '*', 'a', ARGV[1]) return redis.call('XLEN', KEYS[1])")
    assert await script(keys=["s"], args=["1"]) == 1
    await redis.xgroup_create("s", "g", id="0")
    assert await redis.xreadgroup("g", "c", {"s": ">"}, count=1)


async def test_its_files_are_its_users_alone(redis: RedisClient, directory: Path) -> None:
    await redis.set("k", "v")

    files = modes(directory)
    assert files.pop(".") == 0o700
    assert {"redis.sock", "redis.conf", "appendonly.aof"} <= set(files)
    assert set(files.values()) == {0o600}


def modes(directory: Path) -> dict[str, int]:
    files = {file.name: stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()}
    return files | {".": stat.S_IMODE(directory.stat().st_mode)}


def test_on_a_port_it_asks_for_a_password_that_no_process_list_shows(tmp_path: Path) -> None:
    port = free_port()
    with served("--dir", str(tmp_path), "--port", str(port)) as process:
        password = (tmp_path / "password").read_text(encoding="ascii")
        with Redis(port=port) as stranger, pytest.raises(AuthenticationError):
            stranger.ping()
        with Redis.from_url(f"redis://:{password}@127.0.0.1:{port}/0") as known:
            assert known.ping()
            with pytest.raises(NoPermissionError):
                known.config_get("dir")
        assert password not in Path(f"/proc/{process.pid}/cmdline").read_text(encoding="utf-8")
    assert stat.S_IMODE((tmp_path / "password").stat().st_mode) == 0o600

    with served("--dir", str(tmp_path), "--port", str(port)), Redis(port=port, password=password) as known:
        assert known.ping(), "the password is made once"


def test_a_path_that_no_socket_can_have_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [COMMAND, "--dir", str(tmp_path / ("d" * 120))], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 2
    assert "name one of 107 bytes with --socket" in done.stderr.splitlines()[-1]


def test_a_dead_redis_leaves_no_socket_in_the_way(tmp_path: Path) -> None:
    with served("--dir", str(tmp_path)) as process:
        process.kill()
    with served("--dir", str(tmp_path)), Redis(unix_socket_path=str(tmp_path / "redis.sock")) as redis:
        assert redis.ping()
    with Redis(unix_socket_path=str(tmp_path / "redis.sock")) as redis, pytest.raises(RedisError):
        redis.ping()
