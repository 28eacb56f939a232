"""What the rollout still has to play of a request, and what it puts out once."""

from typing import Any

import pytest
from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.search import SearchTree
from gymfleet_contracts.session import OpenSession
from gymfleet_contracts.streams import TRAJECTORIES_RAW, search_trees
from gymfleet_kit.streams import RedisClient
from gymfleet_rollout.worker import Output
from pydantic import ValidationError

from tests.fixtures.trajectories import make_search_tree, make_trajectory

GROUP = GroupRequest(run_id="run", group_id="g0", task=OpenSession(env="maze", task_index=0), num_samples=3)
AGAIN = GROUP.model_copy(update={"samples": (0, 2), "replay": 1})


async def test_a_sample_is_put_out_once_for_each_time_it_was_asked_for(redis: RedisClient) -> None:
    output = Output(redis, max_len=100)
    assert await output.missing(GROUP) == [0, 1, 2]
    for sample in (0, 0, 1, 2):
        await output.put(GROUP, [make_trajectory(sample=sample)])

    assert await output.missing(GROUP) == []
    assert await output.missing(AGAIN) == [0, 2], "they were lost, or failed, and are wanted again"
    for sample in (2, 2):
        await output.put(AGAIN, [make_trajectory(sample=sample, replay=1)])

    assert await output.missing(AGAIN) == [0]
    assert await redis.xlen(TRAJECTORIES_RAW) == 4


async def test_what_was_played_together_is_put_out_together_or_not_at_all(redis: RedisClient) -> None:
    output = Output(redis, max_len=100)
    two = [make_trajectory(sample=sample, group_size=2) for sample in range(2)]
    four = [make_trajectory(sample=sample, group_size=4) for sample in range(4)]
    await output.put(GROUP, two)

    assert await output.missing(GROUP) == [], "it has two episodes, and that is all of it"
    await output.put(GROUP, four)  # by a worker whose lease had run out
    assert await redis.xlen(TRAJECTORIES_RAW) == 2
    assert await output.missing(AGAIN) == [0, 2]
    await output.put(AGAIN, [make_trajectory(sample=0, replay=1, group_size=2)])
    assert await output.missing(AGAIN) == [2]


async def test_a_search_is_put_out_once_and_the_oldest_make_room(
    redis: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymfleet_rollout.worker.MAX_SEARCH_TREES", 2)
    output, tree = Output(redis, max_len=100), make_search_tree("g0")
    for one in (tree, tree, tree.model_copy(update={"replay": 1}), make_search_tree("g1"), tree):
        await output.put_tree(one)

    entries: Any = await redis.xrange(search_trees("run"))
    found = [SearchTree.model_validate_json(fields[b"body"]) for _, fields in entries]
    assert [(one.group_id, one.replay) for one in found] == [("g0", 1), ("g1", 0)]
    assert await output.missing(GROUP) == [0, 1, 2], "that of the samples is another question"


def test_a_request_asks_for_no_sample_beyond_its_group() -> None:
    with pytest.raises(ValidationError, match="below num_samples"):
        GroupRequest.model_validate(GROUP.model_dump() | {"samples": (3,)})
