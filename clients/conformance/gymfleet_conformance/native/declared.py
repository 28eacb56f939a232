"""What an environment may declare beyond play: keys of its states, and the actions possible now."""

from typing import Final

import httpx
from gymfleet_contracts.session import AdmissibleActions, Irreversibility, Session, StepResult, Tool

from gymfleet_conformance.check import Need
from gymfleet_conformance.native.target import (
    DULL,
    INVALID,
    INVALID_TOOL_CALL,
    NO_ACTIONS,
    OUT_OF_ORDER,
    SUITE,
    NativeTarget,
    over,
    read,
    refused,
)
from gymfleet_conformance.server_under_test import NotApplicable, require

_KEYS: Final = (Need.STATE_KEYS,)
_ACTIONS: Final = (Need.ACTIONS,)
_PLAYED: Final = 8
_ACTIONS_TRIED: Final = 6
_SURPLUS: Final = "an-argument-that-no-tool-has"


def _is_closed(tool: Tool) -> bool:
    return tool.parameters.get("additionalProperties") is False


async def _whether(target: NativeTarget, session_id: str, index: int, action: str) -> httpx.Response:
    return await target.call("POST", session_id, "/irreversible", json={"index": index, "action": action})


async def _admissible(target: NativeTarget, session_id: str) -> AdmissibleActions:
    return read(AdmissibleActions, await target.call("GET", session_id, "/actions"))


@SUITE.must("declared.no-state-keys-unless-asked")
async def no_keys_unless_asked(target: NativeTarget) -> None:
    """A session that was opened without `state_keys` tells none."""
    session = await target.open()
    result = await target.step(session.session_id, 0, DULL)
    told = (session.state_key, result.state_key, (await target.get(session.session_id)).state_key)
    require(told == (None, None, None), f"keys {told} were told to a caller that did not ask")


@SUITE.must("declared.state-keys-are-asked-for-by-a-bool")
async def keys_asked_for_by_a_bool(target: NativeTarget) -> None:
    """A mistyped `state_keys` is refused as 422."""
    for wrong in ("yes", 1, [True]):
        refused(await target.try_open(state_keys=wrong), INVALID)


@SUITE.must("declared.state-keys-are-shown", needs=_KEYS)
async def keys_shown(target: NativeTarget) -> None:
    """Opening, stepping and looking tell the key of the same state alike."""
    session = await target.open(state_keys=True)
    require((await target.get(session.session_id)).state_key == session.state_key, "looking tells another key")
    result = await target.step(session.session_id, 0, DULL)
    require((await target.get(session.session_id)).state_key == result.state_key, "looking tells another key")


@SUITE.must("declared.state-keys-are-repeatable", needs=(*_KEYS, Need.DETERMINISTIC))
async def keys_repeatable(target: NativeTarget) -> None:
    """The same task, seed and actions give the same keys in another session."""
    fields = {"task_index": 3, "seed": 7, "state_keys": True}
    one, other = await target.open(**fields), await target.open(**fields)
    require(one.state_key == other.state_key, f"at the start {one.state_key} and {other.state_key}")
    for index, (action, result) in enumerate(await target.play(one.session_id, _PLAYED)):
        again = await target.step(other.session_id, index, action)
        require(again.state_key == result.state_key, f"step {index}: {result.state_key} and {again.state_key}")


@SUITE.must("declared.state-keys-tell-states-apart", needs=(*_KEYS, Need.EXPERT))
async def keys_tell_apart(target: NativeTarget) -> None:
    """The end of a solved episode has another key than its beginning."""
    session = await target.open(state_keys=True)
    moves = await target.play(session.session_id, target.spec.max_turns)
    if moves[-1][1].score < 1:
        raise NotApplicable("the expert does not solve this task")
    require(moves[-1][1].state_key != session.state_key, f"both have the key {session.state_key}")


@SUITE.must("declared.state-keys-differ-between-tasks", needs=_KEYS)
async def keys_of_tasks(target: NativeTarget) -> None:
    """Two tasks share no key at their start."""
    one, other = await target.open(task_index=0, state_keys=True), await target.open(task_index=1, state_keys=True)
    require(one.state_key != other.state_key, f"both begin with the key {one.state_key}")


@SUITE.must("declared.state-keys-of-forks", needs=(*_KEYS, Need.FORK))
async def keys_of_forks(target: NativeTarget) -> None:
    """A child tells its parent's key, and goes on telling keys."""
    parent = await target.open(task_index=1, state_keys=True)
    await target.play(parent.session_id, 1)
    state, child = await target.get(parent.session_id), (await target.fork(parent.session_id))[0]
    require(child.state_key == state.state_key, f"the child has {child.state_key}, the parent {state.state_key}")
    if not over(state) and target.repeatable:
        ahead = await target.step(child.session_id, 1, DULL)
        result = await target.step(parent.session_id, 1, DULL)
        require(ahead.state_key == result.state_key, f"then {ahead.state_key} and {result.state_key}")


@SUITE.must("declared.actions-change-nothing", needs=_ACTIONS)
async def actions_change_nothing(target: NativeTarget) -> None:
    """Asking for the possible actions costs no turn, changes no state, and asking twice gives the same."""
    asked, unasked = await target.open(task_index=1), await target.open(task_index=1)
    first = await _admissible(target, asked.session_id)
    require(await _admissible(target, asked.session_id) == first, "asked twice, the lists differ")
    require((await target.get(asked.session_id)).index == 0, "asking was counted as a turn")
    if target.repeatable:
        action = await target.move(unasked.session_id)
        result = await target.step(unasked.session_id, 0, action)
        again = await target.step(asked.session_id, 0, action)
        require(target.same(result, again), f"after asking {again}; {result} would be right")


@SUITE.must("declared.actions-are-understood", needs=_ACTIONS)
async def actions_understood(target: NativeTarget) -> None:
    """The environment understands the actions that it lists."""
    listed = (await _admissible(target, (await target.open()).session_id)).actions
    for action in listed[:_ACTIONS_TRIED]:
        result = await target.step((await target.open()).session_id, 0, action)
        require(result.action_valid, f"{action!r} was listed and not understood: {result.observation}")


@SUITE.must("declared.no-actions-after-the-end", needs=_ACTIONS)
async def no_actions_after_the_end(target: NativeTarget) -> None:
    """After the end no action is possible."""
    session_id = (await target.open()).session_id
    await target.play_to_the_end(session_id)
    listed = await _admissible(target, session_id)
    require(listed.actions == [] and listed.complete, f"after the end {listed}")


@SUITE.must("declared.irreversible-takes-no-step")
async def irreversible_takes_no_step(target: NativeTarget) -> None:
    """Asking whether a step could be taken back does not take it; of a wrong index it is a 409."""
    session_id = (await target.open()).session_id
    action = await target.move(session_id)
    told = read(Irreversibility, await _whether(target, session_id, 0, action))
    require(
        target.spec.capabilities.irreversible or not told.irreversible,
        "an action cannot be taken back, and the environment does not say that it has such actions",
    )
    require((await target.get(session_id)).index == 0, "asking was counted as a turn")
    refused(await _whether(target, session_id, 1, action), OUT_OF_ORDER)


@SUITE.must("declared.wrong-tool-calls-are-refused")
async def wrong_tool_calls(target: NativeTarget) -> None:
    """A call of a tool that is not declared, or with arguments that no schema allows, is a 422 and takes no step."""
    session_id = (await target.open()).session_id
    wrong: list[tuple[str, dict[str, int]]] = [("no-such-tool", {})]
    wrong += [(tool.name, {_SURPLUS: 1}) for tool in target.spec.tools if _is_closed(tool)]
    for name, arguments in wrong:
        response = await target.call("POST", session_id, "/tool", json={"name": name, "arguments": arguments})
        refused(response, INVALID_TOOL_CALL)
    for body in ({}, {"name": 7}, {"name": "x", "arguments": []}, {"name": "x", "surplus": 1}):
        refused(await target.call("POST", session_id, "/tool", json=body), INVALID)
    require((await target.get(session_id)).index == 0, "a tool call was counted as a turn")


@SUITE.must("declared.game-says-what-its-seats-see")
async def game_of_seats(target: NativeTarget) -> None:
    """With `seats`, and only then, each answer says for all of them what they see and who is to move."""
    session = await target.open(task_index=1)
    moves = await target.play(session.session_id, _PLAYED)
    seats = set(target.spec.seats)
    answers: list[Session | StepResult] = [session, *(result for _, result in moves)]
    for answer in [*answers, await target.get(session.session_id)]:
        game = answer.game
        require((game is not None) == bool(seats), f"the environment has the seats {sorted(seats)}, and says {game}")
        if game is not None:
            require(set(game.seats) == seats, f"the seats are {sorted(seats)}, told of {sorted(game.seats)}")
            expected = {None} if over(answer) else seats
            require(game.to_move in expected, f"{game.to_move} is to move, over is {over(answer)}")


@SUITE.must("declared.unknown-actions-say-so", needs=(Need.NO_ACTIONS,))
async def unknown_actions_say_so(target: NativeTarget) -> None:
    """An environment that does not list its actions answers 409 `actions-unavailable`."""
    refused(await target.call("GET", (await target.open()).session_id, "/actions"), NO_ACTIONS)
