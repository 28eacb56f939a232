"""Checks of AgentGym's promises: ids, resets, steps and the forms that its clients read."""

import asyncio
from itertools import pairwise
from typing import Any, Final

import httpx

from gymfleet_conformance.agentgym.target import DULL, SUITE, UNKNOWN, AgentGymTarget
from gymfleet_conformance.native.answers import GOLD, keys
from gymfleet_conformance.server_under_test import CALL_TIMEOUT_S, NotApplicable, decoded, excerpt, require, shown

_HOSTILE: Final = ("", "\x00", "日本語 🙂", "__import__('os').system('true')", "(" * 200, "x" * 100_000, "a\nb\r\n")
_JSON: Final = {"content-type": "application/json"}
_MAX_SAFE: Final = 2**53


@SUITE.must("agentgym.banner")
async def banner(target: AgentGymTarget) -> None:
    """`GET` of the server's root answers 200 with a text."""
    root = target.server.url.removesuffix(target.wire.path)
    body = decoded(await target.server.http.get(f"{root}/", follow_redirects=True))
    require(isinstance(body, str) and bool(body), f"saw {excerpt(body)}; a text would be right")


@SUITE.must("agentgym.create")
async def create(target: AgentGymTarget) -> None:
    """`/create` answers status 200 with an int id in the form that this environment's client reads."""
    number = await target.create()
    require(0 <= number < _MAX_SAFE, f"{number} is not an integer that every JSON reader keeps")


@SUITE.must("agentgym.ids-are-unique")
async def ids_unique(target: AgentGymTarget) -> None:
    """Eight ids created at once are all different."""
    numbers = await asyncio.gather(*(target.create() for _ in range(8)))
    require(len(set(numbers)) == 8, f"saw {numbers}")


@SUITE.should("agentgym.ids-are-unguessable")
async def ids_unguessable(target: AgentGymTarget) -> None:
    """Ids do not count up: whoever has one does not know the others'."""
    numbers = sorted([await target.create() for _ in range(6)])
    gaps = [after - before for before, after in pairwise(numbers)]
    require(min(gaps) > 1000, f"saw {numbers}")


@SUITE.must("agentgym.reset")
async def reset(target: AgentGymTarget) -> None:
    """`/reset` answers status 200 with the first observation in the form that the client reads."""
    await target.begun()


@SUITE.must("agentgym.reset-is-deterministic")
async def reset_deterministic(target: AgentGymTarget) -> None:
    """The same task shows the same first observation, under one id and under another."""
    one, other = await target.create(), await target.create()
    seen = [await target.reset(number, 3) for number in (one, one, other)]
    require(seen[0] == seen[1] == seen[2], "the first observations differ")


@SUITE.must("agentgym.reset-reuses-the-id")
async def reset_reuses(target: AgentGymTarget) -> None:
    """An id plays one episode after another: `/reset` in the middle begins anew."""
    number = await target.create()
    first = await target.reset(number, 2)
    result = await target.step(number)
    require(await target.reset(number, 2) == first, "the second episode begins otherwise")
    again = await target.step(number)
    require(again == result, f"the first step gave {again}; in the first episode {result}")


@SUITE.must("agentgym.step")
async def step(target: AgentGymTarget) -> None:
    """`/step` answers status 200 with a text, a finite reward and whether it is done."""
    result = await target.step(await target.begun())
    if target.wire.score:
        score = result.get("score")
        require(isinstance(score, int | float), f"score is {excerpt(score)}: the client takes it for the reward")


@SUITE.must("agentgym.steps-are-deterministic")
async def steps_deterministic(target: AgentGymTarget) -> None:
    """The same task and actions give the same results."""
    one, other = await target.begun(2), await target.begun(2)
    for action in (DULL, "inventory", "move up"):
        left, right = await target.step(one, action), await target.step(other, action)
        require(left == right, f"{action!r}: {left} and {right}")
        if left[target.wire.done]:
            return


@SUITE.must("agentgym.observation")
async def observation(target: AgentGymTarget) -> None:
    """`GET /observation` shows the last observation (searchqa's: the question), and looking is no step."""
    number = await target.create()
    first = await target.reset(number)
    result = await target.step(number)
    right = first if target.wire.shows_task else result[target.wire.seen]
    for _ in range(2):
        response = await target.server.request("GET", "/observation", params={target.wire.id_key: number})
        seen = decoded(response)
        require(seen == right, f"shows {excerpt(seen)}; {excerpt(right)} is right")


@SUITE.must("agentgym.ids-stay-apart")
async def ids_apart(target: AgentGymTarget) -> None:
    """Steps under one id change nothing under another: interleaved they play as alone."""
    actions = (DULL, "inventory", "move down")
    played = await target.play(await target.begun(2), *actions)
    one, other = await target.begun(2), await target.begun(1)
    other_lives = True
    for action, result in zip(actions, played, strict=False):  # an episode may have ended sooner
        other_lives = other_lives and not (await target.step(other, action))[target.wire.done]
        seen = await target.step(one, action)
        require(seen == result, f"{action!r}: {seen}; alone it was {result}")


@SUITE.must("agentgym.many-ids-at-once")
async def many_at_once(target: AgentGymTarget) -> None:
    """Eight ids, reset and stepped at the same time, all play the same episode."""

    async def play() -> dict[str, Any]:
        return await target.step(await target.begun(2))

    results = await asyncio.gather(*(play() for _ in range(8)))
    require(all(result == results[0] for result in results), f"saw {results[0]} and others")


@SUITE.must("agentgym.unknown-id")
async def unknown_id(target: AgentGymTarget) -> None:
    """An id that was never created is refused by `/step` and `/reset`, never given a fresh environment."""
    target.refused(await target.try_step(UNKNOWN))
    target.refused(await target.try_reset(UNKNOWN))


@SUITE.must("agentgym.negative-id")
async def negative_id(target: AgentGymTarget) -> None:
    """Negative and huge ids reach nobody's environment."""
    await target.begun()
    for number in (-1, 2**62, 2**70):
        response = await target.try_step(number)
        if response.status_code == 200:
            target.refused(response)
        require(not response.is_success or "error" in response.text, f"{number}: saw {shown(response)}")


@SUITE.must("agentgym.malformed")
async def malformed(target: AgentGymTarget) -> None:
    """Missing and mistyped fields are a 4xx and no step."""
    number = await target.begun(2)
    wrong: list[Any] = [{}, {target.wire.id_key: number}, {target.wire.id_key: "x", "action": "a"}, [], 7]
    for body in wrong:
        response = await target.post("/step", body)
        require(400 <= response.status_code < 500, f"{body!r}: saw {shown(response)}; 422 would be right")


@SUITE.must("agentgym.garbage")
async def garbage(target: AgentGymTarget) -> None:
    """Bodies that are no JSON are a 4xx."""
    for content in (b"{", b"\xff", b"[" * 100_000):
        response = await target.server.request("POST", "/step", content=content, headers=_JSON)
        require(400 <= response.status_code < 500, f"{content[:4]!r}: saw {shown(response)}; 422 would be right")


@SUITE.must("agentgym.hostile-actions")
async def hostile_actions(target: AgentGymTarget) -> None:
    """Empty, binary, foreign, code-like and 100,000 characters long actions are never a 5xx, and the id lives on."""
    number = await target.begun()
    for action in _HOSTILE:
        response = await target.try_step(number, action)
        require(response.status_code < 500, f"{action[:20]!r}: saw {shown(response)}; 200 would be right")
        if target.ended(response):
            await target.reset(number)
    await target.reset(number)
    await target.step(number)


@SUITE.must("agentgym.step-after-done")
async def step_after_done(target: AgentGymTarget) -> None:
    """A step after the end is refused; a reset begins the next episode."""
    if not target.wire.refuses_after_done:
        raise NotApplicable(f"AgentGym's own {target.env} server does not promise it")
    number = await target.begun()
    await target.until_done(number)
    target.refused(await target.try_step(number))
    await target.reset(number)
    await target.step(number)


@SUITE.should("agentgym.step-before-reset")
async def step_before_reset(target: AgentGymTarget) -> None:
    """A step before the first reset is refused, not executed in some episode."""
    if target.wire.starts_at_create:
        raise NotApplicable("`/create` begins an episode here")
    target.refused(await target.try_step(await target.create()))


@SUITE.must("agentgym.task-is-chosen-by-reset")
async def task_by_reset(target: AgentGymTarget) -> None:
    """Different tasks show different beginnings (a sample of 6), whatever the ids are."""
    numbers = [await target.create() for _ in range(2)]
    seen = [[await target.reset(number, task) for task in range(6)] for number in numbers]
    require(seen[0] == seen[1], "the tasks depend on the id")
    if target.wire.vocabulary:
        return  # every game of wordle begins with the same text
    require(len(set(seen[0])) > 1, "six tasks begin with the same text")


@SUITE.must("agentgym.close")
async def close(target: AgentGymTarget) -> None:
    """`/close` answers status 200, and the id is refused from then on."""
    if not target.wire.closes:
        raise NotApplicable("this environment's server has no close")
    number = await target.begun()
    decoded(await target.post("/close", {target.wire.id_key: number}))
    target.refused(await target.try_step(number))


@SUITE.must("agentgym.close-frees-the-slot")
async def close_frees(target: AgentGymTarget) -> None:
    """Forty ids, created, reset and closed one after another, all get an episode."""
    if not target.wire.closes:
        raise NotApplicable("this environment's server has no close")
    for _ in range(40):
        number = await target.begun()
        decoded(await target.post("/close", {target.wire.id_key: number}))


@SUITE.should("agentgym.close-unknown")
async def close_unknown(target: AgentGymTarget) -> None:
    """Closing an id that is not there is status 200 and not `true`."""
    if not target.wire.closes:
        raise NotApplicable("this environment's server has no close")
    body = decoded(await target.post("/close", {target.wire.id_key: UNKNOWN}))
    require(body is not True, "it says that it closed something")


@SUITE.must("agentgym.vocabulary")
async def vocabulary(target: AgentGymTarget) -> None:
    """Wordle's client asks for the words before its first reset, and gets a list of them."""
    if not target.wire.vocabulary:
        raise NotApplicable("only wordle's client asks for words")
    number = await target.create()
    words = decoded(await target.server.request("GET", "/filtered_vocab", params={"id": number}))
    require(isinstance(words, list) and bool(words), f"saw {excerpt(words)}; a list of words would be right")
    require(all(isinstance(word, str) for word in words), f"saw {excerpt(words)}; words would be right")


@SUITE.must("agentgym.no-answer-leaks")
async def no_answer_leaks(target: AgentGymTarget) -> None:
    """No answer has a key like `ground_truth`, `gold` or `solution`."""
    number = await target.create()
    bodies = [decoded(await target.try_reset(number)), decoded(await target.try_step(number))]
    told = {key for body in bodies for key in keys(body)} & GOLD
    require(not told, f"saw {', '.join(sorted(told))}")


@SUITE.must("agentgym.a-connection-per-call")
async def connection_per_call(target: AgentGymTarget) -> None:
    """An id is not tied to a connection: the clients open a new one for every call."""
    number = await target.begun()
    for _ in range(3):
        async with httpx.AsyncClient(
            headers=dict(target.server.headers), trust_env=False, timeout=CALL_TIMEOUT_S
        ) as client:
            response = await client.post(f"{target.server.url}/step", json={target.wire.id_key: number, "action": DULL})
        require(response.status_code == 200, f"saw {shown(response)}; 200 would be right")
        if target.ended(response):
            return


@SUITE.should("agentgym.double-slash")
async def double_slash(target: AgentGymTarget) -> None:
    """A base URL that ends in a slash works: the clients join it to paths that begin with one."""
    response = await target.post("//create", target.wire.create_body)
    require(response.status_code == 200, f"saw {shown(response)}; 200 would be right")
