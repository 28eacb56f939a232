"""Real engines are killed in the middle of an episode: it goes on where it was, and its neighbours notice nothing."""

import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest
from gymfleet_client import SessionStream
from gymfleet_client.errors import SessionLost
from gymfleet_contracts.session import OpenSession

from tests.fixtures import gateway_fleet
from tests.fixtures.redis_server import RedisServer

ENGINES = {"sciworld": ("java", 1), "os": ("bwrap", 0)}
"""By environment: the process that is killed, and before which step; the expert's second in `os` needs no shell."""


def running(pid: int, name: str) -> list[int]:
    """Processes below `pid` that are called `name`."""
    return [each.pid for each in psutil.Process(pid).children(recursive=True) if each.name() == name]


@pytest.mark.parametrize("env", [env for env, (program, _) in ENGINES.items() if shutil.which(program)])
async def test_an_episode_goes_on_when_its_engine_is_killed(env: str, tmp_path: Path) -> None:
    with RedisServer(tmp_path) as redis:
        server = gateway_fleet.env_server(tmp_path, env, "maze", shards="1")
        gateway = gateway_fleet.gateway(tmp_path, [server.url], redis_url=redis.url)
        with gateway_fleet.running(server, gateway):
            async with SessionStream(gateway.url) as stream:
                neighbour = await stream.open(OpenSession(env="maze", task_index=1))
                session = await stream.open(OpenSession(env=env, task_index=1))
                score, over, index = 0.0, False, 0
                while not over:
                    move = await stream.expert(session.session_id)
                    name, before = ENGINES[env]
                    if index == before:
                        engines = running(server.pid, name)
                        assert engines
                        for pid in engines:
                            os.kill(pid, signal.SIGKILL)
                    result = await stream.step(session.session_id, index, move.action)
                    score, over, index = result.score, result.terminated or result.truncated, index + 1

                assert score == 1.0
                assert index > before, "the engine was killed on the way"
                assert (await stream.step(neighbour.session_id, 0, "move up")).index == 0
            assert "environment.engine_lost" in server.log()
            assert "session.recovered" in gateway.log()
            assert "shard.died" not in server.log()


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="os needs bwrap, see scripts/system.sh")
async def test_files_that_a_replay_cannot_make_again_are_no_recovery(tmp_path: Path) -> None:
    """Nothing is shown of the bytes before the kill: the files alone tell."""
    with RedisServer(tmp_path) as redis:
        server = gateway_fleet.env_server(tmp_path, "os", shards="1")
        gateway = gateway_fleet.gateway(tmp_path, [server.url], redis_url=redis.url)
        with gateway_fleet.running(server, gateway):
            async with SessionStream(gateway.url) as stream:
                same, lucky = [(await stream.open(OpenSession(env="os", task_index=1))).session_id for _ in range(2)]
                await stream.step(same, 0, "bash echo 8 bytes > /root/drawn")
                await stream.step(lucky, 0, "bash head -c 8 /dev/urandom > /root/drawn")
                for pid in running(server.pid, "bwrap"):
                    os.kill(pid, signal.SIGKILL)

                result = await stream.step(same, 1, "bash cat /root/drawn")
                with pytest.raises(SessionLost, match="step 0"):
                    await stream.step(lucky, 1, "bash xxd /root/drawn")

            assert "8 bytes" in result.observation
            assert result.info["recovered"] == 1
