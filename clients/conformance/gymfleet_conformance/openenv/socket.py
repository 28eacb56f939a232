"""OpenEnv's socket: one connection, one episode; errors are reported and survived."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import websockets

from gymfleet_conformance.openenv.target import SUITE, Episode, OpenEnvTarget
from gymfleet_conformance.server_under_test import Failed, require

_CYCLES: Final = 24
_NORMAL: Final = 1000


@SUITE.must("openenv.reset")
async def reset(target: OpenEnvTarget) -> None:
    """`reset` answers an observation that is not done, with or without data."""
    async with target.episode() as episode:
        require(not (await episode.reset())["done"], "it is done before the first step")
        await episode.observe("reset")


@SUITE.must("openenv.step")
async def step(target: OpenEnvTarget) -> None:
    """`step` takes an action that fits the schema and answers an observation."""
    action = await target.action()
    async with target.begun() as episode:
        await episode.observe("step", action)


@SUITE.must("openenv.state")
async def state(target: OpenEnvTarget) -> None:
    """`state` tells the episode's id and how many steps it has taken."""
    action = await target.action()
    async with target.begun() as episode:
        before = await episode.state()
        await episode.observe("step", action)
        after = await episode.state()
    require(bool(before.get("episode_id")), f"episode_id is {before.get('episode_id')!r}")
    require(before["episode_id"] == after.get("episode_id"), "the episode's id changed with a step")
    seen = (before.get("step_count"), after.get("step_count"))
    require(seen == (0, 1), f"step_count {seen[0]} after reset and {seen[1]} after a step; 0 and 1 would be right")


@SUITE.should("openenv.episode-id-is-kept")
async def episode_id_kept(target: OpenEnvTarget) -> None:
    """The `episode_id` given to `reset` is the state's."""
    async with target.begun(episode_id="abc") as episode:
        seen = (await episode.state()).get("episode_id")
        require(seen == "abc", f"gave 'abc', state says {seen!r}")


@SUITE.must("openenv.reset-begins-anew")
async def reset_begins_anew(target: OpenEnvTarget) -> None:
    """A second `reset` on the same socket begins another episode at step 0."""
    action = await target.action()
    async with target.begun() as episode:
        await episode.observe("step", action)
        first = await episode.state()
        await episode.reset()
        second = await episode.state()
    require(second.get("step_count") == 0, f"step_count is {second.get('step_count')}; 0 would be right")
    require(second.get("episode_id") != first.get("episode_id"), "it has the same id")


@SUITE.must("openenv.same-seed-same-start")
async def same_seed(target: OpenEnvTarget) -> None:
    """The same seed begins with the same observation, on one socket and on another."""
    async with target.episode() as one, target.episode() as other:
        seen = [_shown(await episode.reset(seed=7)) for episode in (one, one, other)]
    require(seen[0] == seen[1] == seen[2], f"observations differ: {seen[0]} and {seen[1]}")


@SUITE.must("openenv.same-actions-same-episode")
async def same_actions(target: OpenEnvTarget) -> None:
    """The same seed and actions give the same observations, rewards and ends."""
    action = await target.action()
    async with target.episode() as one, target.episode() as other:
        runs = []
        for episode in (one, other):
            await episode.reset(seed=7)
            runs.append([_shown(await episode.observe("step", action)) for _ in range(2)])
    require(runs[0] == runs[1], f"saw {runs[0]} and {runs[1]}")


@SUITE.must("openenv.sockets-stay-apart")
async def sockets_apart(target: OpenEnvTarget) -> None:
    """Steps on one socket are not steps of another."""
    action = await target.action()
    async with target.begun() as one, target.begun() as other:
        await one.observe("step", action)
        seen = (await other.state()).get("step_count")
        ids = [(await episode.state()).get("episode_id") for episode in (one, other)]
    require(seen == 0, f"the other has taken {seen} steps; 0 would be right")
    require(ids[0] != ids[1], "both play the same episode")


@SUITE.must("openenv.invalid-json")
async def invalid_json(target: OpenEnvTarget) -> None:
    """A frame that is no JSON is an `INVALID_JSON` error, and the episode goes on."""
    for text in ("{", "", "\x00"):
        await _survives(target, text, "INVALID_JSON")


@SUITE.must("openenv.not-an-object")
async def not_an_object(target: OpenEnvTarget) -> None:
    """JSON that is no object is an error, and the episode goes on."""
    for text in ("[]", "3", "null", '"reset"'):
        await _survives(target, text)


@SUITE.must("openenv.deeply-nested")
async def deeply_nested(target: OpenEnvTarget) -> None:
    """A frame that is nested 100,000 deep is an error, and the episode goes on."""
    await _survives(target, '{"type":"step","data":' + "[" * 100_000)


@SUITE.must("openenv.unknown-type")
async def unknown_type(target: OpenEnvTarget) -> None:
    """A type that does not exist is an `UNKNOWN_TYPE` error, and the episode goes on."""
    await _survives(target, '{"type":"dance"}', "UNKNOWN_TYPE")


@SUITE.must("openenv.type-of-another-type")
async def mistyped_type(target: OpenEnvTarget) -> None:
    """A type that is missing or no text is an error, and the episode goes on."""
    for text in ('{"data":{}}', '{"type":["reset"]}', '{"type":{"a":1}}', '{"type":null}'):
        await _survives(target, text)


@SUITE.must("openenv.bad-action")
async def bad_action(target: OpenEnvTarget) -> None:
    """An action with an unknown field is a `VALIDATION_ERROR` and no step."""
    await _survives(target, '{"type":"step","data":{"no_such_field":1}}', "VALIDATION_ERROR")


@SUITE.must("openenv.step-without-action")
async def step_without_action(target: OpenEnvTarget) -> None:
    """A step without data, or with data of another shape, is a `VALIDATION_ERROR` and no step."""
    for text in ('{"type":"step"}', '{"type":"step","data":7}', '{"type":"step","data":[]}'):
        await _survives(target, text, "VALIDATION_ERROR")


@SUITE.must("openenv.surplus-field")
async def surplus_field(target: OpenEnvTarget) -> None:
    """A request with a field that the protocol does not know is a `VALIDATION_ERROR`."""
    await _survives(target, '{"type":"state","request_id":"x"}', "VALIDATION_ERROR")


@SUITE.must("openenv.bad-seed")
async def bad_seed(target: OpenEnvTarget) -> None:
    """A seed that is no number is an error, and does not begin an episode."""
    await _survives(target, '{"type":"reset","data":{"seed":"x"}}')


@SUITE.must("openenv.binary-frame")
async def binary_frame(target: OpenEnvTarget) -> None:
    """A binary frame closes its socket or gets an error; others go on."""
    async with _others_go_on(target) as episode:
        await episode.socket.send(b"\xff\x00")
        await episode.error()


@SUITE.must("openenv.big-frame")
async def big_frame(target: OpenEnvTarget) -> None:
    """A frame of 8 MiB is answered or closes its socket; others go on."""
    async with _others_go_on(target) as episode:
        await episode.ask("step", {"no_such_field": "x" * (8 * 1024 * 1024)})


@SUITE.must("openenv.answers-in-order")
async def answers_in_order(target: OpenEnvTarget) -> None:
    """Requests sent without waiting are answered one by one, in their order."""
    async with target.begun() as episode:
        kinds = ["state", "dance", "state", "reset", "dance", "state"] * 3
        for kind in kinds:
            await episode.send(kind)
        seen = [(await episode.answer())[0] for _ in kinds]
    right = [{"dance": "error", "reset": "observation"}.get(kind, kind) for kind in kinds]
    require(seen == right, f"answered {seen}; {right} would be right")


@SUITE.must("openenv.step-before-reset-is-an-error")
async def step_before_reset(target: OpenEnvTarget) -> None:
    """A step on a socket that was never reset is an error: a client that reconnects must not go on unawares."""
    action = await target.action()
    async with target.episode() as episode:
        await episode.send("step", action)
        await _told(episode)


@SUITE.must("openenv.lost-connection-is-told")
async def lost_connection(target: OpenEnvTarget) -> None:
    """After a lost connection the next step resumes its episode or is an error, never a step of a fresh one."""
    action = await target.action()
    async with target.begun(seed=7) as episode:
        await episode.observe("step", action)
        episode.socket.transport.abort()
    async with target.episode() as again:
        await again.send("step", action)
        await _told(again)


@SUITE.must("openenv.close")
async def close(target: OpenEnvTarget) -> None:
    """`close` ends the socket with code 1000."""
    async with target.begun() as episode:
        await episode.send("close")
        try:
            await episode.answer()
        except websockets.ConnectionClosed as closed:
            code = closed.rcvd.code if closed.rcvd else 1006
            require(code == _NORMAL, f"closed with {code}; {_NORMAL} would be right")
        else:
            raise Failed("it was answered; the end of the socket would be right")


@SUITE.must("openenv.disconnect-frees-the-slot")
async def disconnect_frees(target: OpenEnvTarget) -> None:
    """Twenty-four sockets, one after another and each broken off, all get an episode."""
    for number in range(_CYCLES):
        async with target.episode() as episode:
            try:
                await episode.reset()
            except websockets.ConnectionClosed as closed:
                raise Failed(f"the socket after {number} others was closed: {closed}") from None
            if number % 2:
                episode.socket.transport.abort()


@SUITE.must("openenv.full-is-told")
async def full_is_told(target: OpenEnvTarget) -> None:
    """Four sockets at once each get an episode of their own, or a `CAPACITY_REACHED` error."""
    async with target.episode() as a, target.episode() as b, target.episode() as c, target.episode() as d:
        ids = []
        for episode in (a, b, c, d):
            kind, body = await episode.ask("reset", {})
            if kind == "error":
                require(body.get("code") == "CAPACITY_REACHED", f"saw {body}; CAPACITY_REACHED would be right")
                continue
            ids.append((await episode.state()).get("episode_id"))
    require(len(set(ids)) == len(ids), f"two sockets play one episode: {ids}")


@SUITE.should("openenv.mcp-frame")
async def mcp_frame(target: OpenEnvTarget) -> None:
    """An `mcp` frame is answered with a JSON-RPC reply, or an error."""
    async with target.episode() as episode:
        kind, body = await episode.ask("mcp", {"jsonrpc": "2.0", "id": 3, "method": "tools/list", "params": {}})
        require(kind in {"mcp", "error"}, f"saw {kind}; mcp would be right")
        if kind == "mcp":
            require(body.get("id") == 3, f"the reply has id {body.get('id')}; 3 would be right")


def _shown(body: dict[str, Any]) -> dict[str, Any]:
    """Return the part of an answer that the agent gets, without metadata, which may name the session."""
    observation = {name: value for name, value in body["observation"].items() if name != "metadata"}
    return {"observation": observation, "reward": body.get("reward"), "done": body["done"]}


async def _survives(target: OpenEnvTarget, text: str, code: str | None = None) -> None:
    """Send `text` in the middle of an episode; require an error, and the episode to stay where it was."""
    async with target.begun() as episode:
        before = await episode.state()
        try:
            await episode.socket.send(text)
            seen = await episode.error()
            after = await episode.state()
        except websockets.ConnectionClosed as closed:
            raise Failed(f"{text[:40]!r} ended the socket: {closed}") from None
    require(code in {None, seen}, f"{text[:40]!r} got the code {seen}; {code} would be right")
    require(after == before, f"the state became {after}; it was {before}")


@asynccontextmanager
async def _others_go_on(target: OpenEnvTarget) -> AsyncIterator[Episode]:
    """Begin an episode whose socket may close in the block; another, begun before, must take a step afterwards."""
    action = await target.action()
    async with target.begun() as other:
        with suppress(websockets.ConnectionClosed):
            async with target.begun() as episode:
                yield episode
        await other.observe("step", action)


async def _told(episode: Episode) -> None:
    """Require the next answer to be an error, or the end of the socket."""
    try:
        await episode.error()
    except websockets.ConnectionClosed:
        return
