"""What the trainer asks for again, what it buries, and what it hands out: over a real Redis, without a fleet."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from gymfleet_contracts.rollout import GroupRequest, Policy, StrategySpec
from gymfleet_contracts.streams import ROLLOUT_REQUESTS, TRAINER_GROUP, dead_letters, trajectories_scored
from gymfleet_contracts.trajectory import ScoredTrajectory, Status
from gymfleet_kit.streams import RedisClient
from gymfleet_trainer.errors import Stalled
from gymfleet_trainer.run.collect import Collector
from gymfleet_trainer.run.group_planner import PlannedGroup
from gymfleet_trainer.run.groups import Group
from gymfleet_trainer.run.replays import Referee
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.run.trajectory_consumer import TrajectoryConsumer
from gymfleet_trainer.settings import TrainerSettings
from gymfleet_trainer.stage import Plays

from tests.fixtures.scored import RUN_ID, make_recipe, make_scored, make_turn
from tests.fixtures.trainer_plans import make_planner, training_plan

STREAM = trajectories_scored(RUN_ID)
RECIPE = make_recipe()
PLANNER, PLAN = make_planner(RECIPE), training_plan(RECIPE)
FIRST, SECOND = (PLANNER.train(PLAN, PlannedGroup(number)) for number in range(2))
HELD_OUT = PLANNER.play("before", Plays(1), 0, 0, 1)
DEMONSTRATION = PLANNER.play(
    "demonstrations", Plays(1, purpose="demonstration", strategy=StrategySpec(use="expert")), 0, 0, 1
)
VOCAB_SIZE = 100
FORMATS = {"react": 1}
POLICY = Policy(
    model="m", live_version=0, staged_version=None, backend="test", dtype="float32", num_engines=1, tokens_generated=0
)


def find(group_id: str) -> GroupRequest | None:
    """What the run asks for under an id."""
    if (slot := PLANNER.slot(PLAN, group_id)) is not None:
        return PLANNER.train(PLAN, slot)
    return next((one for one in (HELD_OUT, DEMONSTRATION) if one.group_id == group_id), None)


class NoFleet:
    """Rollout replicas of which nothing is seen."""

    async def glance(self, *, timeout_s: float) -> dict[str, Any]:
        return {}

    async def readiness(self) -> str:
        return "nobody there"


Life = Callable[..., contextlib.AbstractAsyncContextManager[Collector]]


@pytest.fixture
def life(redis: RedisClient) -> Life:
    """One life of the trainer, up to its being killed."""

    @contextlib.asynccontextmanager
    async def live(**settings: Any) -> AsyncIterator[Collector]:
        async def bring_up(*_: Any) -> bool:
            return False

        state = RunState(run_id=RUN_ID, recipe_hash="h")
        async with TrajectoryConsumer(redis, RUN_ID, lease_s=600) as consumer:
            yield Collector(
                redis, consumer, NoFleet(), TrainerSettings(**settings), state, bring_up,  # type: ignore[arg-type]
                Referee(find, VOCAB_SIZE, FORMATS),
            )  # fmt: skip

    return live


async def put(redis: RedisClient, *records: ScoredTrajectory | str) -> None:
    for record in records:
        body = record if isinstance(record, str) else record.model_dump_json()
        await redis.xadd(STREAM, {"body": body})


async def requested(redis: RedisClient) -> list[tuple[str, tuple[int, ...], int]]:
    """What the rollout was asked for, in order: group, samples, replay."""
    entries: Any = await redis.xrange(ROLLOUT_REQUESTS)
    bodies = [GroupRequest.model_validate_json(fields[b"body"]) for _, fields in entries]
    return [(body.group_id, body.wanted, body.replay) for body in bodies]


async def dead(redis: RedisClient) -> list[str]:
    entries: Any = await redis.xrange(dead_letters(STREAM))
    return [fields[b"reason"].decode() for _, fields in entries]


async def next_group(collector: Collector) -> Group:
    async with asyncio.timeout(20):
        return await collector.next_group(lambda _: True)


def poisoned(group_id: str, sample: int) -> str:
    """Three tokens with one log-probability."""
    body = make_scored(group_id, sample, turns=(make_turn(response=(1, 2, 3)),)).model_dump_json()
    assert body.count('"response_logprobs":[-1.0,-1.0,-1.0]') == 1
    return body.replace('"response_logprobs":[-1.0,-1.0,-1.0]', '"response_logprobs":[-1.0]')


async def test_a_poisoned_record_is_buried_and_its_sample_asked_for_again(redis: RedisClient, life: Life) -> None:
    async with life() as collector:
        await collector.ask([FIRST])
        await put(redis, poisoned(FIRST.group_id, 0), make_scored(FIRST.group_id, 1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(collector.next_group(lambda _: True), 1.0)

        assert await requested(redis) == [(FIRST.group_id, (0, 1), 0), (FIRST.group_id, (0,), 1)]
        assert ["3 response tokens have 1 log-probabilities" in reason for reason in await dead(redis)] == [True]

    async with life() as restarted:  # the record does not end this life either
        await restarted.ask([FIRST])
        await put(redis, make_scored(FIRST.group_id, 0, total=2.0).model_copy(update=replayed(1)))
        group = await next_group(restarted)

    assert [s.reward.total for s in group.trajectories if s.reward] == [2.0, 1.0]


async def test_failures_of_an_earlier_process_are_held_against_nobody(redis: RedisClient, life: Life) -> None:
    """A run ended because a service was broken; it was mended, and the same command is run again."""
    measurement = HELD_OUT

    def failed(request: GroupRequest, sample: int, replay: int, ended_at: float) -> ScoredTrajectory:
        scored = make_scored(request.group_id, sample, status=Status.ENV_ERROR, error="broken")
        told = {"replay": replay, "purpose": request.purpose, "started_at": ended_at - 1.0, "duration_s": 1.0}
        task = scored.trajectory.task.model_copy(update={"split": request.task.split})
        return scored.model_copy(update={"trajectory": scored.trajectory.model_copy(update={**told, "task": task})})

    await put(redis, *(failed(FIRST, 0, replay, 1.0 + replay) for replay in range(9)))
    await put(redis, failed(measurement, 0, 0, 1.0))
    async with life(max_replacements=1) as collector:
        await collector.ask([FIRST, measurement])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(collector.next_group(lambda _: True), 1.0)

        asked = await requested(redis)
        assert (FIRST.group_id, (0,), 9) in asked, "above every replay that failed"
        assert (measurement.group_id, (0,), 1) in asked

        await put(redis, failed(measurement, 0, 1, time.time() + 60))
        group = await next_group(collector)
        assert (group.group_id, group.failure_reason()) == (measurement.group_id, "env_error: broken"), (
            "a fresh failure"
        )


def replayed(replay: int) -> dict[str, Any]:
    """An update of a scored trajectory whose trajectory is then of that replay."""
    return {"trajectory": make_scored(FIRST.group_id, 0).trajectory.model_copy(update={"replay": replay})}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        pytest.param(
            make_scored(FIRST.group_id, 0, turns=(make_turn(response=(5, VOCAB_SIZE)),)),
            f"token {VOCAB_SIZE} is beyond the model's {VOCAB_SIZE}", id="a token that the model lacks",
        ),
        pytest.param(
            make_scored(FIRST.group_id, 0, turns=(make_turn(prompt=(1,) * 4096),)),
            "4098 tokens and 0 behind them exceed max_context_tokens (4096)", id="too long",
        ),
        pytest.param(
            make_scored(FIRST.group_id, 0, turns=()),
            "it was played to its end without a token", id="nothing to learn from",
        ),
        pytest.param(
            make_scored(FIRST.group_id, 0, strategy="expert"),
            "strategy is 'expert', 'independent' was asked for", id="an expert's",
        ),
        pytest.param(
            make_scored(FIRST.group_id, 0, selected=True),
            "the strategy independent selected it for how well it ended, so it is no sample", id="selected",
        ),
        pytest.param(
            make_scored(FIRST.group_id, 0, rejected=True),
            "a search rejected it, and only what it handed in was asked for", id="rejected",
        ),
        pytest.param(make_scored(FIRST.group_id, 2), "sample 2 is none of 2", id="a sample beyond the group"),
        pytest.param(
            make_scored("s000009-g00", 0), "no group 's000009-g00' is asked for", id="a step beyond the last"
        ),
        pytest.param(make_scored("s000001-g07", 0), "no group 's000001-g07' is", id="a place beyond the step's"),
        pytest.param(make_scored("x", 0), "no group 'x' is asked for", id="a stranger's"),
        pytest.param(
            make_scored(FIRST.group_id, 0, run_id="other"), "run_id is 'other', 'run-1' was", id="another run's"
        ),
    ],
)  # fmt: skip
async def test_what_is_of_no_use_to_the_run_is_buried_with_its_reason(
    redis: RedisClient, life: Life, record: ScoredTrajectory, reason: str
) -> None:
    async with life() as collector:
        await collector.ask([FIRST, SECOND])
        await put(redis, record, *(make_scored(SECOND.group_id, sample) for sample in range(2)))

        group = await next_group(collector)

        assert group.group_id == SECOND.group_id
        assert [letter.startswith(reason) for letter in await dead(redis)] == [True]
        is_wanted = (record.trajectory.group_id, record.trajectory.sample) == (FIRST.group_id, 0)
        assert (await requested(redis))[2:] == ([(FIRST.group_id, (0,), 1)] if is_wanted else [])


async def test_a_sample_that_timed_out_is_played_again_within_its_group(redis: RedisClient, life: Life) -> None:
    failure = make_scored(FIRST.group_id, 0, status=Status.TIMEOUT)
    async with life() as killed:
        await killed.ask([FIRST, SECOND])
        await put(redis, failure, *(make_scored(SECOND.group_id, sample) for sample in range(2)))
        await next_group(killed)
        assert (await requested(redis))[2:] == [(FIRST.group_id, (0,), 1)]

    async with life() as restarted:
        await restarted.ask([FIRST])
        await put(redis, failure, make_scored(FIRST.group_id, 1), make_scored(FIRST.group_id, 0, total=3.0))
        group = await next_group(restarted)

    assert group.failed == []
    assert [s.reward.total for s in group.trajectories if s.reward] == [3.0, 1.0]


async def test_a_failure_that_came_before_its_group_was_asked_for_is_played_again(
    redis: RedisClient, life: Life
) -> None:
    async with life() as collector:
        await put(redis, make_scored(FIRST.group_id, 0, status=Status.TIMEOUT), make_scored(FIRST.group_id, 1))
        await put(redis, *(make_scored(SECOND.group_id, sample) for sample in range(2)))
        await collector.ask([SECOND])
        await next_group(collector)

        await collector.ask([FIRST])

        assert FIRST.group_id not in collector.ready
        assert (FIRST.group_id, (0,), 1) in await requested(redis)


@pytest.mark.parametrize(
    ("others", "replays"),
    [
        pytest.param([make_scored(FIRST.group_id, 1)], 3, id="another sample of the group was good: this one fails"),
        pytest.param([], 1, id="nothing good was seen: the task or the fleet may be the reason"),
    ],
)
async def test_a_sample_is_not_played_again_for_ever(
    redis: RedisClient, life: Life, others: list[ScoredTrajectory], replays: int
) -> None:
    async with life(max_replacements=3) as collector:
        await collector.ask([FIRST])
        await put(redis, *others)
        for replay in range(replays + 1):
            failure = make_scored(FIRST.group_id, 0, status=Status.TIMEOUT)
            trajectory = failure.trajectory.model_copy(update={"replay": replay})
            await put(redis, failure.model_copy(update={"trajectory": trajectory}))
        if not others:
            await put(redis, make_scored(FIRST.group_id, 1))

        group = await next_group(collector)

    assert group.failure_reason() == "timeout"
    assert [replay for _, _, replay in await requested(redis)] == list(range(replays + 1))


async def test_what_was_lost_without_a_trace_is_played_anew_after_a_stall(
    redis: RedisClient, life: Callable[..., Any]
) -> None:
    """It stands as produced: the same request would bring nothing."""
    async with life(stall_timeout_s=0.2) as collector:
        await collector.ask([FIRST])
        await put(redis, make_scored(FIRST.group_id, 1), '{"unreadable": true}')

        with pytest.raises(Stalled):
            await next_group(collector)

        (_, first, replay), (_, again, later) = await requested(redis)
        assert (first, replay, again) == ((0, 1), 0, (0,))
        assert later > 1_000_000_000


@pytest.mark.parametrize("sampling", [True, False], ids=["tokens are sampled", "nothing moves"])
async def test_long_replies_are_no_stall(
    redis: RedisClient, life: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, sampling: bool
) -> None:
    monkeypatch.setattr("gymfleet_trainer.run.collect._RECEIVE_S", 0.01)
    polls = 0

    async def glance(_: NoFleet, *, timeout_s: float) -> dict[str, Policy]:
        nonlocal polls
        polls += 1
        if polls == 100:
            await put(redis, *(make_scored(FIRST.group_id, sample) for sample in range(2)))
        return {"http://r": POLICY.model_copy(update={"tokens_sampled": polls if sampling else 0})}

    monkeypatch.setattr(NoFleet, "glance", glance)
    async with life(stall_timeout_s=0.3, policy_poll_s=0.001) as collector:
        await collector.ask([FIRST])

        if sampling:
            assert (await next_group(collector)).complete
        else:
            with pytest.raises(Stalled):
                await next_group(collector)

    assert len(await requested(redis)) == (1 if sampling else 2)


async def test_a_measurement_leaves_training_groups_that_complete_meanwhile_alone(
    redis: RedisClient, life: Life
) -> None:
    async with life() as collector:
        await collector.ask([FIRST, HELD_OUT])
        measured = make_scored(HELD_OUT.group_id, 0)
        task = measured.trajectory.task.model_copy(update={"split": "test"})
        trajectory = measured.trajectory.model_copy(update={"purpose": "eval", "task": task})
        await put(redis, *(make_scored(FIRST.group_id, sample) for sample in range(2)))
        await put(redis, measured.model_copy(update={"trajectory": trajectory}))

        async with asyncio.timeout(20):
            group = await collector.next_group(lambda group_id: group_id.startswith("before."))

        assert group.group_id == HELD_OUT.group_id
        assert list(collector.ready) == [FIRST.group_id]
        pending: Any = await redis.xpending(STREAM, TRAINER_GROUP)
        assert pending["pending"] == 3


def test_an_expert_without_a_move_that_fits_is_no_fault() -> None:
    empty = make_scored(DEMONSTRATION.group_id, 0, turns=(), strategy="expert")
    played = empty.trajectory.model_copy(update={"purpose": "demonstration"})

    assert Referee(find, VOCAB_SIZE, FORMATS).fault(empty.model_copy(update={"trajectory": played})) == ""


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        ({"format": "tags"}, "format is 'tags', 'react' was asked for"),
        ({"format_version": 2}, "format 'react' is of version 2, not 1"),
    ],
)
def test_an_episode_in_another_format_is_refused(told: dict[str, Any], fault: str) -> None:
    scored = make_scored(DEMONSTRATION.group_id, 0, strategy="expert")
    played = scored.trajectory.model_copy(update={"purpose": "demonstration", **told})

    assert Referee(find, VOCAB_SIZE, FORMATS).fault(scored.model_copy(update={"trajectory": played})) == fault
