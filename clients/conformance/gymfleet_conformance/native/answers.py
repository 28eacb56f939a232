"""Things that the agent must not get: the answer, and the expert outside training."""

from collections.abc import Iterator
from typing import Any, Final

from gymfleet_contracts.session import ExpertMove

from gymfleet_conformance.check import Need
from gymfleet_conformance.native.sessions import needs_split
from gymfleet_conformance.native.target import DULL, NO_EXPERT, SUITE, NativeTarget, over, read, refused
from gymfleet_conformance.server_under_test import NotApplicable, require, shown

_EXPERT: Final = (Need.EXPERT,)
GOLD: Final = frozenset(
    {"answer", "answers", "correct_answer", "expected", "expected_answer", "expert", "gold", "gold_answer", "gold_sql",
     "ground_truth", "groundtruth", "gt", "hidden_word", "label", "optimal_action", "reference_answer", "secret",
     "solution", "solutions", "target", "target_word", "walkthrough"}
)  # fmt: skip
"""Keys under which published environments have revealed their answers."""


@SUITE.must("answers.not-in-info")
async def not_in_info(target: NativeTarget) -> None:
    """No `info` of an episode, played or lost, has a key like `answer`, `gold` or `solution`."""
    for split, count in target.spec.splits.items():
        if not count:
            continue
        session_id = (await target.open(split=split)).session_id
        results = [result for _, result in await target.play(session_id, min(target.spec.max_turns, 40))]
        told = {key for result in results for key in keys(result.info)} & GOLD
        require(not told, f"{split}: info holds {', '.join(sorted(told))}")


@SUITE.must("answers.not-in-the-session")
async def not_in_session(target: NativeTarget) -> None:
    """Neither opening nor looking at a session answers more than the contract's fields."""
    response = await target.try_open()
    require(response.status_code == 201, f"saw {shown(response)}; 201 would be right")
    state = await target.call("GET", response.json()["session_id"])
    for body in (response.json(), state.json()):
        told = set(keys(body)) & GOLD
        require(not told, f"the session holds {', '.join(sorted(told))}")


@SUITE.must("answers.no-expert-outside-train", needs=_EXPERT)
async def no_expert_outside_train(target: NativeTarget) -> None:
    """The expert is refused on validation and test tasks."""
    for split, count in target.spec.splits.items():
        if split != "train" and count:
            session_id = (await target.open(split=split)).session_id
            refused(await target.call("GET", session_id, "/expert"), NO_EXPERT)


@SUITE.must("answers.no-expert-by-the-back-door", needs=_EXPERT)
async def no_expert_by_the_back_door(target: NativeTarget) -> None:
    """A test task that is opened by its id, as if it were of the train split, gets no expert either."""
    needs_split(target, "test")
    task_id = (await target.open(split="test")).task.task_id
    response = await target.try_open(task_id=task_id, split="train")
    if response.status_code == 201:
        refused(await target.call("GET", response.json()["session_id"], "/expert"), NO_EXPERT)


@SUITE.must("answers.expert-changes-nothing", needs=_EXPERT)
async def expert_changes_nothing(target: NativeTarget) -> None:
    """Asking the expert costs no turn, and asking twice gives the same move."""
    session_id = (await target.open()).session_id
    one = read(ExpertMove, await target.call("GET", session_id, "/expert"))
    other = read(ExpertMove, await target.call("GET", session_id, "/expert"))
    require(one == other, f"{one.action!r} and then {other.action!r}")
    require((await target.get(session_id)).index == 0, "asking was counted as a turn")


@SUITE.must("answers.expert-is-understood", needs=_EXPERT)
async def expert_understood(target: NativeTarget) -> None:
    """The environment understands its own expert's moves."""
    session_id = (await target.open()).session_id
    for action, result in await target.play(session_id, 5):
        require(result.action_valid, f"{action!r} was not understood: {result.observation}")


@SUITE.should("answers.expert-solves", needs=_EXPERT)
async def expert_solves(target: NativeTarget) -> None:
    """The expert solves at least 3 of 4 train tasks within their turns."""
    scores = []
    for task in range(4):
        session_id = (await target.open(task_index=task)).session_id
        scores.append((await target.play(session_id, target.spec.max_turns))[-1][1].score)
    require(sum(score == 1 for score in scores) >= 3, f"scores {scores}")


@SUITE.must("answers.no-expert-after-the-end", needs=_EXPERT)
async def no_expert_after_the_end(target: NativeTarget) -> None:
    """After the end there is no expert move."""
    session_id = (await target.open()).session_id
    await target.play_to_the_end(session_id)
    refused(await target.call("GET", session_id, "/expert"), NO_EXPERT)


@SUITE.must("answers.no-expert-says-so")
async def no_expert_says_so(target: NativeTarget) -> None:
    """An environment without an expert answers 409 `expert-unavailable`."""
    if target.spec.capabilities.expert:
        raise NotApplicable("there is an expert")
    refused(await target.call("GET", (await target.open()).session_id, "/expert"), NO_EXPERT)


@SUITE.must("answers.doing-nothing-earns-nothing")
async def doing_nothing(target: NativeTarget) -> None:
    """Repeating nonsense does not solve a task of any split."""
    for split, count in target.spec.splits.items():
        if count:
            session_id = (await target.open(split=split)).session_id
            for index in range(min(5, target.spec.max_turns)):
                result = await target.step(session_id, index, DULL)
                require(result.score < 1, f"{DULL!r} solved a {split} task")
                if over(result):
                    break


def keys(value: Any) -> Iterator[str]:
    """Yield every key of a JSON value, at any depth, in lower case."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key).lower()
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)
