"""Groups whose episodes are scored together, held in Redis until they are whole.

The records of a group arrive one by one, at any replica, and more than once. Each is put into a hash of its group
before it is acknowledged, so that a killed replica loses none; the delivery that completes the group scores it.
"""

import time
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from gymfleet_contracts.reward import ScoreRequest
from gymfleet_contracts.streams import HELD_GROUPS, held_group
from gymfleet_contracts.trajectory import Trajectory
from gymfleet_kit.streams import Patience, RedisClient

Held: TypeAlias = dict[int, bytes]
"""The records of a group by sample: each is the replay's number, a line feed, and the record."""

_HOLD: Final = """
local there = redis.call('HGET', KEYS[1], ARGV[1])
if there and tonumber(string.match(there, '^%d+')) > tonumber(ARGV[2]) then return {} end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. '\\n' .. ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[5])
redis.call('ZADD', KEYS[2], ARGV[6], ARGV[7])
if redis.call('HLEN', KEYS[1]) < tonumber(ARGV[4]) then return {} end
return redis.call('HGETALL', KEYS[1])
"""
_FORGET: Final = """
for index = 2, #ARGV, 2 do
  local there = redis.call('HGET', KEYS[1], ARGV[index])
  if there and string.match(there, '^%d+') == ARGV[index + 1] then redis.call('HDEL', KEYS[1], ARGV[index]) end
end
if redis.call('HLEN', KEYS[1]) == 0 then redis.call('ZREM', KEYS[2], ARGV[1]) end
return 1
"""
_KEPT_S: Final = 24 * 3600
"""Longer than any run waits: records that are left then belong to a run that is gone."""
_CLAIM_S: Final = 30.0
"""Time during which only one replica may give up a group."""


class HeldGroups:
    """The records that wait for the rest of their groups.

    Args:
        wait_s: a group that received nothing for this long is given up.
        patience_s: how long to wait through an outage of Redis.
    """

    def __init__(self, redis: RedisClient, *, wait_s: float, patience_s: float) -> None:
        self._redis = redis
        self._wait_s = wait_s
        self._patience_s = patience_s
        self._hold = redis.register_script(_HOLD)
        self._forget = redis.register_script(_FORGET)
        self._patience = Patience(key=HELD_GROUPS)

    async def hold(self, request: ScoreRequest) -> list[bytes] | None:
        """Keep a record, and return those of its whole group in the order of the samples; None while some are missing.

        A record that is already there changes nothing, nor does one that an episode played later has replaced.
        """
        trajectory = request.trajectory
        key = held_group(trajectory.run_id, trajectory.group_id)
        args: list[int | float | str] = [
            trajectory.sample, trajectory.replay, request.model_dump_json(), request.num_samples or 1, _KEPT_S,
            time.time() + self._wait_s, _member(trajectory),
        ]  # fmt: skip
        found: list[bytes] = await self._patience.call(
            lambda: self._hold(keys=[key, HELD_GROUPS], args=args), timeout_s=self._patience_s
        )
        held = {int(found[place]): found[place + 1] for place in range(0, len(found), 2)}
        return _records(held) if held else None

    async def forget(self, requests: Sequence[ScoreRequest]) -> None:
        """Delete records of one group whose rewards are on the scored stream; newer records of the group stay."""
        trajectories = [request.trajectory for request in requests]
        args: list[Any] = [_member(trajectories[0])]
        for trajectory in trajectories:
            args += [trajectory.sample, trajectory.replay]
        key = held_group(trajectories[0].run_id, trajectories[0].group_id)
        await self._patience.call(lambda: self._forget(keys=[key, HELD_GROUPS], args=args), timeout_s=self._patience_s)

    async def given_up(self) -> list[bytes] | None:
        """Return the records of a group that stayed incomplete, None if none; no other replica gets them meanwhile."""
        now = time.time()
        due: list[Any] = await self._redis.zrangebyscore(HELD_GROUPS, "-inf", now, start=0, num=1)
        if not due:
            return None
        await self._redis.zadd(HELD_GROUPS, {due[0]: now + _CLAIM_S}, xx=True)
        run_id, _, group_id = due[0].decode().partition("/")
        key = held_group(run_id, group_id)
        held: dict[Any, Any] = await self._redis.hgetall(key)
        if not held:  # it is older than any run, or was completed just now
            await self._forget(keys=[key, HELD_GROUPS], args=[due[0]])
        return _records({int(sample): record for sample, record in held.items()})


def _records(held: Held) -> list[bytes]:
    return [held[sample].partition(b"\n")[2] for sample in sorted(held)]


def _member(trajectory: Trajectory) -> str:
    return f"{trajectory.run_id}/{trajectory.group_id}"
