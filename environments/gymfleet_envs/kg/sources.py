"""The tasks, and the knowledge base that answers the questions of each."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from gymfleet_envs.environment import EngineLost
from gymfleet_envs.kg.base import KnowledgeBase
from gymfleet_envs.kg.benchmark import benchmark_tasks, copy_questions, ontology_of, question_files
from gymfleet_envs.kg.options import KgOptions
from gymfleet_envs.kg.task import Freebase, KgTask, Source
from gymfleet_envs.kg.triples import is_imported, open_triples, store_triples, triple_tasks
from gymfleet_envs.kg.worlds import generated_tasks, world
from gymfleet_envs.tasks import TaskDataError, TaskSource

if TYPE_CHECKING:
    from gymfleet_envs.kg.endpoint import Endpoint

_triples = lru_cache(maxsize=4)(open_triples)


def tasks_of(data: Path | None, options: KgOptions) -> TaskSource[KgTask]:
    """Return generated questions without `data`, else those about its triples or AgentBench's own.

    Raises `TaskDataError`, also if the endpoint that AgentBench's questions need does not answer.
    """
    if data is not None and not is_imported(data) and question_files(data):
        return _questions(data, options)
    if options.endpoint is not None:
        raise TaskDataError(
            "the option endpoint is for AgentBench's own questions alone: import their files, or leave it out"
        )
    return generated_tasks() if data is None else triple_tasks(data, *_triples(data))


def base_of(source: Source, options: KgOptions) -> KnowledgeBase:
    """Return the knowledge base for a task's question: one object for all sessions of a process."""
    match source:
        case Freebase(data):
            return _endpoint(options, data)
        case int():
            return world(source)
        case _:
            return _triples(source)[0]


def import_files(source: Path, target: Path) -> None:
    """Put the files that `tasks_of` reads into the empty directory `target`. Raises `TaskDataError`."""
    if question_files(source):
        copy_questions(source, target)
    else:
        store_triples(source, target)


def _questions(data: Path, options: KgOptions) -> TaskSource[KgTask]:
    if options.endpoint is None:
        raise TaskDataError(
            f"{data} holds AgentBench's questions, which are asked of Freebase: set the option endpoint to the URL of "
            "its SPARQL endpoint"
        )
    tasks = benchmark_tasks(data)
    try:
        _endpoint(options, data).check()
    except EngineLost as error:
        raise TaskDataError(f"the option endpoint: {error}") from None
    return tasks


@lru_cache(maxsize=4)
def _endpoint(options: KgOptions, data: Path) -> "Endpoint":
    from gymfleet_envs.kg.endpoint import Endpoint  # noqa: PLC0415 - its client is loaded for it alone

    return Endpoint(options, ontology_of(data))
