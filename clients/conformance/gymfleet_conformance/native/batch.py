"""`POST /v1/steps`: one result or problem per item, in their order."""

from typing import Any, Final

import httpx
from gymfleet_contracts import problems
from gymfleet_contracts.session import StepResult

from gymfleet_conformance.check import Need
from gymfleet_conformance.native.target import DULL, INVALID, SUITE, NativeTarget, over, refused
from gymfleet_conformance.server_under_test import NotApplicable, decoded, require, shown

_TOO_MANY: Final = 50_000


async def _post(target: NativeTarget, items: Any) -> httpx.Response:
    return await target.server.request("POST", "/v1/steps", json=items)


def _item(session_id: str, index: int, action: str = DULL) -> dict[str, Any]:
    return {"session_id": session_id, "index": index, "action": action}


async def _results(target: NativeTarget, *items: dict[str, Any]) -> list[dict[str, Any]]:
    answers = decoded(await _post(target, list(items)))
    require(isinstance(answers, list) and len(answers) == len(items), f"{len(items)} items got {answers!r}")
    results: list[dict[str, Any]] = answers
    return results


@SUITE.must("batch.order-is-kept")
async def order_kept(target: NativeTarget) -> None:
    """The answers stand in the order of the items, whatever sessions they belong to."""
    ids = [(await target.open(task_index=task % 2)).session_id for task in range(4)]
    for session_id in ids[1::2]:  # every second session is a step ahead, so that an answer shows whose it is
        if over(await target.step(session_id, 0, DULL)):
            raise NotApplicable("the first action ends the episode")
    items = [_item(session_id, index % 2) for index, session_id in enumerate(ids)]
    seen = [answer.get("index") for answer in await _results(target, *items)]
    require(seen == [0, 1, 0, 1], f"the answers have indices {seen}; 0, 1, 0, 1 would be right")


@SUITE.must("batch.problem-per-item")
async def problem_per_item(target: NativeTarget) -> None:
    """An item that fails gets its problem in its place, and the others their results."""
    one, other = (await target.open()).session_id, (await target.open()).session_id
    long = "x" * (target.spec.max_action_chars + 1)
    answers = await _results(target, _item(one, 0), _item("no-such-session", 0), _item(other, 7), _item(other, 0, long))
    seen = [answer.get("type", "result") for answer in answers]
    right = ["result", problems.UNKNOWN_SESSION, problems.STEP_OUT_OF_ORDER, problems.ACTION_TOO_LARGE]
    require(seen == right, f"saw {seen}; {right} would be right")
    StepResult.model_validate(answers[0])
    require(answers[1].get("status") == 404, f"the problem's status is {answers[1].get('status')}; 404 would be right")


@SUITE.must("batch.same-session-in-order")
async def same_session_in_order(target: NativeTarget) -> None:
    """Two steps of one session in one batch are taken one after the other."""
    session, _ = await target.started(1)
    answers = await _results(target, _item(session.session_id, 1), _item(session.session_id, 2))
    if answers[0].get("terminated") or answers[0].get("truncated"):
        require(answers[1].get("type") == problems.EPISODE_OVER, f"after the end: {answers[1]}")
        return
    require([answer.get("index") for answer in answers] == [1, 2], f"saw {answers}")


@SUITE.must("batch.duplicate-runs-once")
async def duplicate_runs_once(target: NativeTarget) -> None:
    """The same step twice in one batch is executed once."""
    session_id = (await target.open()).session_id
    one, other = await _results(target, _item(session_id, 0), _item(session_id, 0))
    require(one == other, f"saw {one} and {other}")
    require((await target.get(session_id)).index == 1, "both were counted")


@SUITE.must("batch.equals-single-steps", needs=(Need.DETERMINISTIC,))
async def equals_single(target: NativeTarget) -> None:
    """A step in a batch gives what the same step alone gives."""
    session_id = (await target.open(task_index=3)).session_id
    action = await target.move(session_id)
    alone = await target.step((await target.open(task_index=3)).session_id, 0, action)
    answer = StepResult.model_validate((await _results(target, _item(session_id, 0, action)))[0])
    require(target.same(alone, answer), f"saw {answer}; {alone} would be right")


@SUITE.must("batch.empty-is-refused")
async def empty_refused(target: NativeTarget) -> None:
    """An empty batch is refused as 422."""
    refused(await _post(target, []), INVALID)


@SUITE.must("batch.too-many-are-refused")
async def too_many_refused(target: NativeTarget) -> None:
    """A batch of 50,000 items is refused as 413 or 422."""
    response = await _post(target, [_item("x", 0, "")] * _TOO_MANY)
    require(response.status_code in {413, 422}, f"saw {shown(response)}; 422 would be right")


@SUITE.must("batch.malformed-is-refused-whole")
async def malformed_refused(target: NativeTarget) -> None:
    """One malformed item makes the batch a 422, and none of it is executed."""
    session_id = (await target.open()).session_id
    for wrong in ({}, _item(session_id, -1), {**_item(session_id, 0), "surplus": 1}, 7, None):
        refused(await _post(target, [_item(session_id, 0), wrong]), INVALID)
    require((await target.get(session_id)).index == 0, "a step of a refused batch was counted")
