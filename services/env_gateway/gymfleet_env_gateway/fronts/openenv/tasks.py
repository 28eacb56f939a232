"""OpenEnv's task API: the list of tasks. A task is what `reset` takes: `env.reset(**task)`."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path
from gymfleet_contracts.numbers import NUMBER
from gymfleet_contracts.session import EnvironmentSpec
from gymfleet_kit.problems import problem_responses
from gymfleet_kit.session_problems import InvalidRequest, UnknownEnvironment, UnknownTask
from pydantic import BaseModel
from starlette.requests import HTTPConnection

from gymfleet_env_gateway.errors import Forbidden, Unauthorized, Unavailable
from gymfleet_env_gateway.state import ReaderDep, get_gateway

MAX_TASKS: Final = 10_000
"""Largest number of tasks in one answer."""


_Number = Annotated[int, NUMBER]


class SplitBody(BaseModel):
    """Names a split."""

    split: str


class TaskBody(SplitBody):
    """Names a task."""

    index: _Number


class RangeBody(SplitBody):
    """Names tasks, as a slice does."""

    start: _Number | None = None
    stop: _Number | None = None


class SplitName(BaseModel):
    """A split and what it is for."""

    name: str
    type: str


async def get_spec(connection: HTTPConnection) -> EnvironmentSpec:
    """Return the environment of the base URL. Raises `UnknownEnvironment` and `Unavailable`."""
    # Read from the mount's path: FastAPI does not treat it as a parameter, and `/openapi.json` must not list it.
    return get_gateway(connection).registry.environment(connection.path_params["env"])


async def get_readable(_: ReaderDep, connection: HTTPConnection) -> EnvironmentSpec:
    """Return the environment to the holder of a key: nobody else learns which environments exist."""
    return await get_spec(connection)


SpecDep = Annotated[EnvironmentSpec, Depends(get_readable)]


async def get_named(env_name: Annotated[str, Path(max_length=64)], spec: SpecDep) -> EnvironmentSpec:
    """Return the environment, which the call must name as well. Raises `UnknownEnvironment`."""
    if env_name.lower() != spec.name:
        raise UnknownEnvironment(f"unknown environment {env_name!r}; here is {spec.name}")
    return spec


NamedDep = Annotated[EnvironmentSpec, Depends(get_named)]
router = APIRouter(
    tags=["Task API"],
    responses=problem_responses(Unauthorized, Forbidden, UnknownEnvironment, UnknownTask, Unavailable),
)


@router.get("/list_environments")
async def list_environments(spec: SpecDep, _: ReaderDep) -> list[str]:
    """The environment below this base URL."""
    return [spec.name]


@router.get("/{env_name}/splits")
async def splits(spec: NamedDep, _: ReaderDep) -> list[SplitName]:
    """The splits that have tasks."""
    return [SplitName(name=split, type=split) for split, count in spec.splits.items() if count]


@router.post("/{env_name}/tasks")
async def tasks(body: SplitBody, spec: NamedDep, _: ReaderDep) -> dict[str, Any]:
    """All tasks of a split, if they are not too many."""
    return {"tasks": _range(spec, body.split, None, None), "env_name": spec.name}


@router.post("/{env_name}/num_tasks")
async def num_tasks(body: SplitBody, spec: NamedDep, _: ReaderDep) -> dict[str, int]:
    """The number of tasks in a split."""
    return {"num_tasks": _count(spec, body.split)}


@router.post("/{env_name}/task")
async def task(body: TaskBody, spec: NamedDep, _: ReaderDep) -> dict[str, Any]:
    """The task at an index."""
    count = _count(spec, body.split)
    if not 0 <= body.index < count:
        raise UnknownTask(f"Invalid task index: {spec.name} has {count} {body.split} tasks", count=count)
    return {"task": _task(body.split, body.index)}


@router.post("/{env_name}/task_range")
async def task_range(body: RangeBody, spec: NamedDep, _: ReaderDep) -> dict[str, Any]:
    """The tasks from `start` up to, but not including, `stop`."""
    return {"tasks": _range(spec, body.split, body.start, body.stop)}


def _range(spec: EnvironmentSpec, split: str, start: int | None, stop: int | None) -> list[dict[str, Any]]:
    places = range(*slice(start, stop).indices(_count(spec, split)))
    if len(places) > MAX_TASKS:
        raise InvalidRequest(f"these are {len(places)} tasks; ask for at most {MAX_TASKS} at once, with task_range")
    return [_task(split, place) for place in places]


def _task(split: str, place: int) -> dict[str, Any]:
    return {"split": split, "task_index": place}


def _count(spec: EnvironmentSpec, split: str) -> int:
    for name, count in spec.splits.items():
        if name == split:
            return count
    raise UnknownTask(f"{spec.name} has no split {split[:32]!r}; it has {', '.join(spec.splits)}")
