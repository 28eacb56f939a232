"""Steps: exactly once, in order, bounded, and honest about their end."""

import asyncio
import json
from http import HTTPStatus
from typing import Any, Final

import httpx
from gymfleet_contracts.session import StepResult

from gymfleet_conformance.check import Need
from gymfleet_conformance.native.target import (
    DULL,
    EPISODE_OVER,
    INVALID,
    OUT_OF_ORDER,
    SUITE,
    TOO_LARGE,
    NativeTarget,
    all_equal,
    over,
    read,
    refused,
    sound,
)
from gymfleet_conformance.server_under_test import require, shown

_AT_ONCE: Final = 8
_JSON: Final = {"content-type": "application/json"}
_HOSTILE: Final = (
    "", " ", "\n", "\x00", "a\x00b\x1b[31m", "日本語 🙂 العربية", "\u202eevil", "\ufffe\uffff", "../../etc/passwd",
    "__import__('os').system('true')", "%s%n {0} ${HOME} $(id) `id`", "'; DROP TABLE x; --", "Action: Action:",
    "a\nb\r\nc\u2028d", "(" * 200, "9" * 400, "<script>alert(1)</script>", '{"action": "x"}',
)  # fmt: skip


@SUITE.must("steps.results-are-sound")
async def results_sound(target: NativeTarget) -> None:
    """Through a whole episode: the index is echoed, rewards are finite, scores lie within 0 and 1."""
    session = await target.open()
    for index, (_, result) in enumerate(await target.play(session.session_id, min(target.spec.max_turns, 60))):
        sound(result, index)


@SUITE.must("steps.repeat-returns-stored-result")
async def repeat_stored(target: NativeTarget) -> None:
    """The last index with the same action returns the stored result, byte for byte."""
    session_id = (await target.open()).session_id
    action = await target.move(session_id)
    first, again = await target.try_step(session_id, 0, action), await target.try_step(session_id, 0, action)
    read(StepResult, first)
    require(first.content == again.content, f"saw {shown(again)}; {shown(first)} would be right")


@SUITE.must("steps.repeat-with-another-action-is-refused")
async def repeat_other_action(target: NativeTarget) -> None:
    """The last index with a different action is a 409: never executed, never answered with the first one's result."""
    session_id = (await target.open()).session_id
    action = await target.move(session_id)
    first = await target.step(session_id, 0, action)
    refused(await target.try_step(session_id, 0, "something else entirely"), OUT_OF_ORDER)
    require(await target.step(session_id, 0, action) == first, "the refused action took the stored result's place")


@SUITE.must("steps.repeat-executes-nothing")
async def repeat_executes_nothing(target: NativeTarget) -> None:
    """After repeats the session has taken one step, and goes on as one that was stepped once."""
    session, moves = await target.started(1, task_index=1)
    for _ in range(3):
        await target.step(session.session_id, 0, moves[0][0])
    state = await target.get(session.session_id)
    require(state.index == 1, f"the index is {state.index} after one step and three repeats")
    if target.repeatable:
        twin, _ = await target.started(1, task_index=1)
        action = await target.move(twin.session_id)
        one = await target.step(session.session_id, 1, action)
        other = await target.step(twin.session_id, 1, action)
        require(target.same(one, other), f"goes on with {one}; a twin without repeats with {other}")


@SUITE.must("steps.gap-is-refused")
async def gap_refused(target: NativeTarget) -> None:
    """An index past the next is a 409 that names the expected one, and costs no turn."""
    session, _ = await target.started(1)
    problem = refused(await target.try_step(session.session_id, 3, DULL), OUT_OF_ORDER)
    require(problem.get("expected") == 1, f"expected is {problem.get('expected')}; 1 would be right")
    require((await target.get(session.session_id)).index == 1, "the refused step was counted")
    sound(await target.step(session.session_id, 1, DULL), 1)


@SUITE.must("steps.old-index-is-refused")
async def old_index_refused(target: NativeTarget) -> None:
    """An index before the last is a 409, never executed and never answered with another step's result."""
    session, _ = await target.started(2)
    refused(await target.try_step(session.session_id, 0, DULL), OUT_OF_ORDER)
    require((await target.get(session.session_id)).index == 2, "the refused step was counted")


@SUITE.must("steps.first-index-is-zero")
async def first_index_is_zero(target: NativeTarget) -> None:
    """A session that begins with index 1 is refused as 409."""
    session_id = (await target.open()).session_id
    problem = refused(await target.try_step(session_id, 1, DULL), OUT_OF_ORDER)
    require(problem.get("expected") == 0, f"expected is {problem.get('expected')}; 0 would be right")


@SUITE.must("steps.malformed-is-refused")
async def malformed_refused(target: NativeTarget) -> None:
    """Missing, surplus, negative and mistyped fields are refused as 422 and cost no turn."""
    session_id = (await target.open()).session_id
    wrong: list[Any] = [
        {}, {"index": 0}, {"action": "a"}, {"index": -1, "action": "a"}, {"index": 0, "action": 7},
        {"index": 0, "action": None}, {"index": 0.5, "action": "a"}, {"index": "x", "action": "a"},
        {"index": 0, "action": ["a"]}, {"index": 0, "action": "a", "surplus": 1}, [], "a", None,
    ]  # fmt: skip
    for body in wrong:
        response = await target.call("POST", session_id, "/steps", content=json.dumps(body), headers=_JSON)
        refused(response, INVALID)
    require((await target.get(session_id)).index == 0, "a malformed step was counted")


@SUITE.must("steps.huge-index-is-refused")
async def huge_index(target: NativeTarget) -> None:
    """Indices beyond 64 bits, infinite and no numbers at all are a 4xx, never a 5xx."""
    session_id = (await target.open()).session_id
    for number in ("9223372036854775807", "18446744073709551616", "1" + "0" * 400, "1e999", "Infinity", "NaN"):
        content = f'{{"index": {number}, "action": "a"}}'
        response = await target.call("POST", session_id, "/steps", content=content, headers=_JSON)
        require(400 <= response.status_code < 500, f"index {number[:24]}: saw {shown(response)}; 409 or 422 is right")
    sound(await target.step(session_id, 0, DULL), 0)


@SUITE.must("steps.concurrent-duplicates-run-once")
async def concurrent_duplicates(target: NativeTarget) -> None:
    """The same step eight times at once is executed once, and all get its result."""
    session_id = (await target.open(task_index=1)).session_id
    action = await target.move(session_id)
    answers = await asyncio.gather(*(target.step(session_id, 0, action) for _ in range(_AT_ONCE)))
    require(all_equal(answers), f"got {len({one.observation for one in answers})} different results")
    require((await target.get(session_id)).index == 1, "more than one of them was counted")


@SUITE.must("steps.concurrent-rivals-one-wins")
async def concurrent_rivals(target: NativeTarget) -> None:
    """Eight different actions at once for one index: one is executed, and the others are a 409."""
    session_id = (await target.open(task_index=1)).session_id
    actions = [await target.move(session_id), *(f"rival {number}" for number in range(_AT_ONCE - 1))]
    answers = await asyncio.gather(*(target.try_step(session_id, 0, action) for action in actions))
    rejected = [answer for answer in answers if answer.status_code != HTTPStatus.OK]
    require(len(rejected) == len(actions) - 1, f"{len(actions) - len(rejected)} of {len(actions)} were executed")
    for answer in rejected:
        refused(answer, OUT_OF_ORDER)
    require((await target.get(session_id)).index == 1, "more than one of them was counted")


@SUITE.must("steps.end-is-final")
async def end_is_final(target: NativeTarget) -> None:
    """After the end a further step is a 409 `episode-over`, and the last result is still stored."""
    session_id = (await target.open()).session_id
    results = await target.play_to_the_end(session_id)
    refused(await target.try_step(session_id, len(results), DULL), EPISODE_OVER)
    require(await target.step(session_id, len(results) - 1, DULL) == results[-1], "the last result is not stored")


@SUITE.must("steps.turn-limit")
async def turn_limit(target: NativeTarget) -> None:
    """An episode of nothing but nonsense ends at `max_turns` at the latest, not solved."""
    session_id = (await target.open()).session_id
    results = await target.play_to_the_end(session_id, "nonsense")
    require(results[-1].score < 1, "nonsense solved the task")
    state = await target.get(session_id)
    require(over(state), "`GET` does not show the end")


@SUITE.must("steps.limit-is-truncation")
async def limit_is_truncation(target: NativeTarget) -> None:
    """An episode that ends because its turns ran out is truncated or terminated, never both."""
    results = await target.play_to_the_end((await target.open(task_index=1)).session_id)
    for index, result in enumerate(results):
        sound(result, index)
    require(not any(over(result) for result in results[:-1]), "a step was taken after an end")


@SUITE.must("steps.oversized-action")
async def oversized_action(target: NativeTarget) -> None:
    """An action longer than `max_action_chars` is a 413 `action-too-large`, costs no turn, and the session goes on."""
    session_id = (await target.open()).session_id
    refused(await target.try_step(session_id, 0, "x" * (target.spec.max_action_chars + 1)), TOO_LARGE)
    require((await target.get(session_id)).index == 0, "the refused step was counted")
    sound(await target.step(session_id, 0, DULL), 0)


@SUITE.must("steps.longest-action")
async def longest_action(target: NativeTarget) -> None:
    """An action of exactly `max_action_chars` characters is taken, in ASCII and beyond."""
    for letter in ("x", "é"):
        session_id = (await target.open()).session_id
        sound(await target.step(session_id, 0, letter * target.spec.max_action_chars), 0)


@SUITE.must("steps.hostile-actions")
async def hostile_actions(target: NativeTarget) -> None:
    """Control characters, code, markup, empty and right-to-left text are answered as steps and solve nothing."""
    session_id, index = (await target.open()).session_id, 0
    for hostile in _HOSTILE:
        action = hostile[: target.spec.max_action_chars]
        result = await target.step(session_id, index, action)
        sound(result, index)
        require(result.score < 1, f"{action!r} solved the task")
        index += 1
        if over(result):
            session_id, index = (await target.open()).session_id, 0


@SUITE.must("steps.lone-surrogates")
async def lone_surrogates(target: NativeTarget) -> None:
    """An action with half a surrogate pair is a step or a 4xx, never a 5xx, and the session goes on."""
    session_id = (await target.open()).session_id
    for content in (b'{"index": 0, "action": "\\ud800"}', b'{"index": 0, "action": "a\\udfffb"}'):
        response = await target.call("POST", session_id, "/steps", content=content, headers=_JSON)
        require(response.status_code < 500, f"saw {shown(response)}; 422 would be right")
    index = (await target.get(session_id)).index
    sound(await target.step(session_id, index, DULL), index)


@SUITE.must("steps.lone-surrogates-elsewhere")
async def lone_surrogates_elsewhere(target: NativeTarget) -> None:
    """Half a surrogate pair in a task id, a level or an item of a batch is a 4xx or a problem, never a 5xx."""
    session_id = (await target.open()).session_id
    for field in ("task_id", "level", "env"):
        content = json.dumps({"env": target.env, "task_index": 0, field: "\ud800"}).replace(
            '"task_index": 0, "task_id"', '"task_id"'
        )
        response = await target.server.request("POST", "/v1/sessions", content=content, headers=_JSON)
        require(400 <= response.status_code < 500, f"{field}: saw {shown(response)}; 422 would be right")
    items = [
        {"session_id": session_id, "index": 0, "action": DULL},
        {"session_id": "\ud800", "index": 0, "action": "a"},
        {"session_id": session_id, "index": 1, "action": "\ud800"},
    ]
    response = await target.server.request("POST", "/v1/steps", content=json.dumps(items), headers=_JSON)
    require(response.status_code < 500, f"a batch: saw {shown(response)}; problems in two items would be right")


@SUITE.must("steps.same-actions-same-episode", needs=(Need.DETERMINISTIC,))
async def same_actions_same_episode(target: NativeTarget) -> None:
    """The same task, seed and actions give the same results."""
    one, other = await target.open(task_index=3, seed=7), await target.open(task_index=3, seed=7)
    for index, (action, result) in enumerate(await target.play(one.session_id, 12)):
        again = await target.step(other.session_id, index, action)
        require(target.same(result, again), f"step {index}: {again}; {result} would be right")


@SUITE.must("steps.abandoned-request")
async def abandoned_request(target: NativeTarget) -> None:
    """A client that hangs up during a step can ask for it again, and it was executed at most once."""
    session_id = (await target.open(task_index=1)).session_id
    action = await target.move(session_id)
    for _ in range(5):
        try:
            async with asyncio.timeout(0.0005):
                await target.try_step(session_id, 0, action)
        except (TimeoutError, httpx.TransportError):
            continue
    sound(await target.step(session_id, 0, action), 0)
    require((await target.get(session_id)).index == 1, "the step was executed more than once")
