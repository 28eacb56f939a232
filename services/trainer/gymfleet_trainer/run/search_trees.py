"""The records of searches: taken from the run's stream into its directory."""

from typing import Any, Final

import structlog
from gymfleet_contracts.search import SearchTree
from gymfleet_contracts.streams import BODY_FIELD, search_trees
from gymfleet_kit.streams import OUTAGE, RedisClient
from pydantic import ValidationError

from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.run.state import RunState

log = structlog.get_logger()

_AT_ONCE: Final = 64


async def keep_search_trees(redis: RedisClient, state: RunState, directory: RunDirectory) -> None:
    """Append new records on the stream to `trees/STAGE.jsonl`.

    The state holds both how far the stream was read and how long the files are: after a restart both come from one
    checkpoint, so that nothing is there twice. In an outage of Redis, new records are left for the next time.
    """
    stream = search_trees(state.run_id)
    try:
        while True:
            answer: Any = await redis.xread({stream: state.trees_read}, count=_AT_ONCE)
            if not answer:
                return
            ((_, entries),) = answer
            for entry_id, fields in entries:
                if (tree := _read(fields)) is not None:
                    directory.search_tree(tree)
                    taken = tree.spent.env_steps + tree.num_replayed
                    state.searched[tree.group_id] = state.searched.get(tree.group_id, 0) + taken
                    state.count("searched_env_steps", tree.spent.env_steps)
                    state.count("searched_replies", tree.spent.model_calls)
                    state.count("searched_tokens", tree.spent.tokens)
                    state.count("searched_values", tree.spent.evaluations)
                    state.count("searched_forks", tree.num_forks)
                state.trees_read = entry_id.decode()
    except OUTAGE as error:
        log.warning("redis.unreachable", error=str(error))


def _read(fields: dict[bytes, Any]) -> SearchTree | None:
    try:
        return SearchTree.model_validate_json(fields[BODY_FIELD.encode()])
    except (KeyError, ValidationError) as error:
        log.warning("tree.unreadable", error=str(error).partition("\n")[0])
        return None
