"""Searches on their way from the stream into the run directory, over kills and outages."""

from pathlib import Path

from gymfleet_contracts.search import SearchTree
from gymfleet_contracts.streams import search_trees
from gymfleet_kit.streams import RedisClient, connect
from gymfleet_rollout.worker import Output
from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.run.search_trees import keep_search_trees
from gymfleet_trainer.run.state import RunState

from tests.fixtures.trajectories import make_search_tree


def kept(directory: RunDirectory, stage: str) -> list[str]:
    path = directory.path / "trees" / f"{stage}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [SearchTree.model_validate_json(line).group_id for line in lines]


async def put(redis: RedisClient, *group_ids: str) -> None:
    output = Output(redis, max_len=100)
    for group_id in group_ids:
        await output.put_tree(make_search_tree(group_id).model_copy(update={"num_replayed": 3}))


async def test_what_is_new_is_kept_under_its_stage(redis: RedisClient, tmp_path: Path) -> None:
    directory, state = RunDirectory(tmp_path), RunState(run_id="run", recipe_hash="")
    await put(redis, "reinforce.s000001-g00", "round1.collect.t000000")
    await keep_search_trees(redis, state, directory)
    await redis.xadd(search_trees("run"), {"body": "no tree"})
    await put(redis, "reinforce.s000001-g01")
    await keep_search_trees(redis, state, directory)
    await keep_search_trees(redis, state, directory)

    assert kept(directory, "reinforce") == ["reinforce.s000001-g00", "reinforce.s000001-g01"]
    assert kept(directory, "round1.collect") == ["round1.collect.t000000"]
    spent = make_search_tree("any").spent
    assert state.counts == {
        "searched_env_steps": 3 * spent.env_steps,
        "searched_replies": 3 * spent.model_calls,
        "searched_tokens": 3 * spent.tokens,
        "searched_values": 3 * spent.evaluations,
        "searched_forks": 3 * make_search_tree("any").num_forks,
    }


async def test_a_trainer_that_is_killed_keeps_each_once(redis: RedisClient, tmp_path: Path) -> None:
    directory, state = RunDirectory(tmp_path), RunState(run_id="run", recipe_hash="")
    await put(redis, "reinforce.s000001-g00")
    await keep_search_trees(redis, state, directory)
    state.offsets = directory.offsets()
    checkpoint = state.model_dump_json()
    await put(redis, "reinforce.s000002-g00")
    await keep_search_trees(redis, state, directory)
    assert kept(directory, "reinforce") == ["reinforce.s000001-g00", "reinforce.s000002-g00"]

    resumed = RunState.model_validate_json(checkpoint)  # killed before the next one
    directory.truncate(resumed.offsets)
    assert kept(directory, "reinforce") == ["reinforce.s000001-g00"]
    await keep_search_trees(redis, resumed, directory)

    assert kept(directory, "reinforce") == ["reinforce.s000001-g00", "reinforce.s000002-g00"]
    steps = {"reinforce.s000001-g00": 2 + 3, "reinforce.s000002-g00": 2 + 3}
    assert resumed.searched == steps, "what was taken and what was replayed, once"


async def test_without_redis_it_is_left_for_the_next_time(tmp_path: Path) -> None:
    directory, state = RunDirectory(tmp_path), RunState(run_id="run", recipe_hash="")

    await keep_search_trees(connect("redis://127.0.0.1:1"), state, directory)

    assert (kept(directory, "reinforce"), state.trees_read) == ([], "0")
