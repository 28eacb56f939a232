"""Sessions: opening, ids, tasks, and their end."""

import asyncio
from typing import Any, Final

from gymfleet_contracts.session import Session

from gymfleet_conformance.check import Need
from gymfleet_conformance.native.target import (
    DULL,
    INVALID,
    SUITE,
    UNKNOWN_ENVIRONMENT,
    UNKNOWN_SESSION,
    UNKNOWN_TASK,
    NativeTarget,
    read,
    refused,
)
from gymfleet_conformance.server_under_test import NotApplicable, require, shown

_SAMPLE: Final = 16
_MIN_RANDOM_CHARS: Final = 16
_CYCLES: Final = 128
_HOSTILE_IDS: Final = (
    "x",
    "0",
    "-1",
    "null",
    "%00",
    "%0a",
    "%20",
    "%ff%fe",
    "%2e%2e",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e%2fsteps",
    "a.b.c.d",
    "00000000-0000-0000-0000-000000000000",
    "%F0%9F%99%82",
    "%E2%80%AE",
    "%7B%7B7*7%7D%7D",
    "%27%3B%20DROP%20TABLE%20x%3B--",
    "x" * 10_000,
    "%25" * 300,
)


@SUITE.must("sessions.open-echoes-the-task")
async def open_echoes_task(target: NativeTarget) -> None:
    """The session names the environment, split, level and seed that were asked for, and a task id."""
    level = target.spec.levels[-1]
    task = (await target.open(level=level, seed=11)).task
    seen = (task.env, task.split, task.level, task.seed)
    require(seen == (target.env, "train", level, 11), f"asked for {target.env}/train/{level}/seed 11, got {seen}")
    require(bool(task.task_id), "task_id is empty")


@SUITE.must("sessions.open-by-task-id")
async def open_by_task_id(target: NativeTarget) -> None:
    """The task id that was echoed opens the same task again."""
    first = await target.open(task_index=1, seed=5)
    again = await target.open(task_id=first.task.task_id, seed=5)
    require(again.task == first.task, f"opened {again.task}; {first.task} would be right")


@SUITE.must("sessions.task-keeps-its-split")
async def task_keeps_its_split(target: NativeTarget) -> None:
    """A test task that is opened by its id is echoed as a test task."""
    needs_split(target, "test")
    task_id = (await target.open(split="test")).task.task_id
    split = (await target.open(task_id=task_id)).task.split
    require(split == "test", f"echoed as {split}: its expert or answer could be asked for")


@SUITE.must("sessions.first-observation")
async def first_observation(target: NativeTarget) -> None:
    """A new session shows an observation and stands at the beginning."""
    session = await target.open()
    require(bool(session.observation.strip()), "the first observation is empty")
    require(not (session.terminated or session.truncated), "it is over before the first step")
    require(0 <= session.score < 1, f"score {session.score} before the first step")


@SUITE.must("sessions.ids-are-unguessable")
async def ids_unguessable(target: NativeTarget) -> None:
    """Session ids are unique, and differ in at least 16 characters of no visible order."""
    ids = [(await target.open()).session_id for _ in range(_SAMPLE)]
    require(len(set(ids)) == len(ids), "an id was given twice")
    varying = [one[_common(ids) : len(one) - _common([other[::-1] for other in ids])] for one in ids]
    shortest = min(map(len, varying))
    require(shortest >= _MIN_RANDOM_CHARS, f"{_SAMPLE} ids differ in {shortest} characters: {varying[:2]}")
    require(varying not in (sorted(varying), sorted(varying, reverse=True)), f"ids count up: {ids[:3]}")


@SUITE.must("sessions.ids-fit-the-path")
async def ids_fit_the_path(target: NativeTarget) -> None:
    """Session ids need no escaping in a path and have at most 256 characters."""
    session_id = (await target.open()).session_id
    wrong = [char for char in session_id if not (char.isascii() and (char.isalnum() or char in "-._~"))]
    require(not wrong, f"{session_id!r} holds {wrong[0] if wrong else ''!r}")


@SUITE.must("sessions.same-task-same-start", needs=(Need.DETERMINISTIC,))
async def same_task_same_start(target: NativeTarget) -> None:
    """The same task and seed begin with the same observation."""
    one, other = await target.open(task_index=2, seed=7), await target.open(task_index=2, seed=7)
    require(one.task == other.task, f"{one.task.task_id} and then {other.task.task_id}")
    if not target.spec.capabilities.stable_observations:
        raise NotApplicable("the environment says that its observations are not stable")
    require(one.observation == other.observation, "the observations differ")


@SUITE.must("sessions.index-is-a-task")
async def index_is_a_task(target: NativeTarget) -> None:
    """Different indices of a split are different tasks, and an index is always the same one."""
    count = min(8, target.spec.splits.get("train", 0))
    first = [(await target.open(task_index=index)).task.task_id for index in range(count)]
    again = [(await target.open(task_index=index)).task.task_id for index in reversed(range(count))]
    require(len(set(first)) == count, f"{count} indices gave {len(set(first))} tasks")
    require(again[::-1] == first, "an index gave another task the second time")


@SUITE.must("sessions.splits-are-disjoint")
async def splits_disjoint(target: NativeTarget) -> None:
    """No task id of one split turns up in another (a sample of 8 each)."""
    seen: dict[str, str] = {}
    for split, count in target.spec.splits.items():
        for index in range(min(8, count)):
            task = (await target.open(split=split, task_index=index)).task
            require(task.split == split, f"asked for {split}, got {task.split}")
            other = seen.setdefault(task.task_id, split)
            require(other == split, f"{task.task_id} is in {other} and in {split}")


@SUITE.must("sessions.unknown-environment")
async def unknown_environment(target: NativeTarget) -> None:
    """Opening an environment that is not served is a 404 `unknown-environment`."""
    refused(await target.try_open(env="no_such_environment"), UNKNOWN_ENVIRONMENT)


@SUITE.must("sessions.unknown-task-id")
async def unknown_task_id(target: NativeTarget) -> None:
    """A task id that does not exist is a 404 `unknown-task`, never some other task."""
    for task_id in ("no.such.task", "../0", "\u202e🙂", "0" * 256):
        refused(await target.try_open(task_id=task_id), UNKNOWN_TASK)


@SUITE.must("sessions.index-outside")
async def index_outside(target: NativeTarget) -> None:
    """A task index past the split's last is a 404 `unknown-task`, never taken modulo."""
    for index in (target.spec.splits.get("train", 0), 10**12):
        refused(await target.try_open(task_index=index), UNKNOWN_TASK)


@SUITE.must("sessions.unknown-level")
async def unknown_level(target: NativeTarget) -> None:
    """A level that does not exist is a 404 `unknown-task`."""
    refused(await target.try_open(level="no such level"), UNKNOWN_TASK)


@SUITE.must("sessions.unknown-split")
async def unknown_split(target: NativeTarget) -> None:
    """A split that does not exist is refused as 422."""
    refused(await target.try_open(split="dev"), INVALID)


@SUITE.must("sessions.one-selector")
async def one_selector(target: NativeTarget) -> None:
    """Both a task id and an index, or neither, is refused as 422."""
    for fields in ({"task_id": "x", "task_index": 0}, {"task_index": None}):
        refused(await target.try_open(**fields), INVALID)


@SUITE.must("sessions.surplus-field")
async def surplus_field(target: NativeTarget) -> None:
    """A field that the call does not know is refused as 422: a misspelt one is no default."""
    refused(await target.try_open(tsak_id="x"), INVALID)


@SUITE.must("sessions.out-of-range")
async def out_of_range(target: NativeTarget) -> None:
    """Negative, huge and mistyped numbers are refused as 422."""
    wrong: list[dict[str, Any]] = [
        {"task_index": -1},
        {"seed": -1},
        {"seed": 2**63},
        {"seed": "x"},
        {"task_index": 0.5},
        {"task_index": [0]},
        {"env": 7},
        {"env": None},
    ]
    for fields in wrong:
        refused(await target.try_open(**fields), INVALID)


@SUITE.must("sessions.unknown-id")
async def unknown_id(target: NativeTarget) -> None:
    """Every call with a session id that was never given out is a 404 `unknown-session`."""
    session_id = "never-given-out"
    refused(await target.call("GET", session_id), UNKNOWN_SESSION)
    refused(await target.try_step(session_id, 0, DULL), UNKNOWN_SESSION)
    refused(await target.call("POST", session_id, "/fork", json={"count": 1}), UNKNOWN_SESSION)
    refused(await target.call("POST", session_id, "/lease", json={}), UNKNOWN_SESSION)
    refused(await target.call("GET", session_id, "/expert"), UNKNOWN_SESSION)


@SUITE.must("sessions.altered-id")
async def altered_id(target: NativeTarget) -> None:
    """An id that was given out, altered in one character, is a 404 `unknown-session`."""
    session_id = (await target.open()).session_id
    for place in (len(session_id) // 2, len(session_id) - 2):
        other = "a" if session_id[place] != "a" else "b"
        altered = session_id[:place] + other + session_id[place + 1 :]
        response = await target.try_step(altered, 0, DULL)
        require(response.status_code != 200, f"an id with another character at {place} was stepped")
        require(response.status_code in {404, 410}, f"saw {shown(response)}; 404 would be right")


@SUITE.must("sessions.hostile-ids")
async def hostile_ids(target: NativeTarget) -> None:
    """Session ids of any shape (path tricks, control characters, 10,000 characters) get a 4xx, never a 5xx."""
    for session_id in _HOSTILE_IDS:
        for response in (await target.call("GET", session_id), await target.try_step(session_id, 0, DULL)):
            right = 400 <= response.status_code < 500
            require(right, f"{session_id[:40]!r}: saw {shown(response)}; 404 would be right")


@SUITE.must("sessions.get-shows-the-state")
async def get_shows_state(target: NativeTarget) -> None:
    """`GET` shows the index, observation, score and end of the last step."""
    session = await target.open(task_index=1)
    moves = await target.play(session.session_id, 2)
    last, state = moves[-1][1], await target.get(session.session_id)
    seen = (state.index, state.observation, state.score, state.terminated, state.truncated)
    right = (len(moves), last.observation, last.score, last.terminated, last.truncated)
    require(seen == right, f"shows {seen}; {right} would be right")
    require(state.task == session.task, "shows another task")


@SUITE.must("sessions.get-changes-nothing")
async def get_changes_nothing(target: NativeTarget) -> None:
    """Looking twice shows the same."""
    session_id = (await target.open()).session_id
    one, other = await target.get(session_id), await target.get(session_id)
    unlike = {"expires_in_s"}
    require(one.model_dump(exclude=unlike) == other.model_dump(exclude=unlike), "two looks show different states")


@SUITE.must("sessions.closed-is-gone")
async def closed_is_gone(target: NativeTarget) -> None:
    """A closed session is a 404 `unknown-session` for every call, never a fresh episode."""
    session_id = (await target.open()).session_id
    await target.close(session_id)
    refused(await target.call("GET", session_id), UNKNOWN_SESSION)
    refused(await target.try_step(session_id, 0, DULL), UNKNOWN_SESSION)
    refused(await target.call("POST", session_id, "/lease", json={}), UNKNOWN_SESSION)


@SUITE.must("sessions.close-twice")
async def close_twice(target: NativeTarget) -> None:
    """Closing twice, and many times at once, is harmless: 204 or 404."""
    session_id = (await target.open()).session_id
    answers = await asyncio.gather(*(target.call("DELETE", session_id) for _ in range(4)))
    answers.append(await target.call("DELETE", session_id))
    require(any(one.status_code == 204 for one in answers), f"saw {shown(answers[0])}; 204 would be right")
    wrong = [shown(one) for one in answers if one.status_code not in {204, 404}]
    require(not wrong, f"saw {wrong[:1]}; 204 or 404 would be right")


@SUITE.must("sessions.close-frees-the-slot")
async def close_frees_slot(target: NativeTarget) -> None:
    """128 sessions that are opened and closed one after another all get a slot."""
    for number in range(_CYCLES):
        response = await target.try_open(task_index=number % max(target.spec.splits.get("train", 1), 1))
        require(response.status_code == 201, f"after {number} closed sessions: {shown(response)}")
        await target.close(read(Session, response, 201).session_id)


def _common(ids: list[str]) -> int:
    """Return the length of the ids' common prefix."""
    differing = (place for place, letters in enumerate(zip(*ids, strict=False)) if len(set(letters)) > 1)
    return next(differing, min(map(len, ids)))


def needs_split(target: NativeTarget, split: str) -> None:
    """Raise `NotApplicable` unless the split has tasks."""
    if not any(count for name, count in target.spec.splits.items() if name == split):
        raise NotApplicable(f"there are no {split} tasks")
