"""How a stage gets at what earlier ones left."""

import asyncio
import os
from collections.abc import Set as AbstractSet
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
from gymfleet_contracts.stages import PlannedStage
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_trainer.errors import CheckpointFailed, RunDirectoryError
from gymfleet_trainer.run.checkpoint import Checkpoints
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.run.progress import Reporter
from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.run.torch_thread import TorchThread
from gymfleet_trainer.settings import TrainerSettings
from gymfleet_trainer.stages.collect import Collect
from gymfleet_trainer.stages.filter import Filter, FilterOptions

from tests.fixtures.scored import RUN_ID, make_recipe, make_scored, make_turn
from tests.fixtures.trainer_plans import make_planner, stage_of
from tests.unit.trainer.test_playing import CURRENT, ScriptedCollector

VOCAB_SIZE = 100


def context(directory: RunDirectory, *data: str, before: dict[str, str] | None = None) -> RunContext:
    """A run whose current stage reads `data`."""
    planned = PlannedStage("best", "filter", "stages.best", {"data": list(data)}, before or {})
    learner: Any = SimpleNamespace(vocab_size=VOCAB_SIZE)
    nothing: Any = None
    return RunContext(
        make_recipe(), nothing, directory, nothing, nothing, learner, nothing, nothing, nothing, nothing, nothing,
        nothing, nothing, Filter(planned, FilterOptions(data=data)),
    )  # fmt: skip


@pytest.mark.parametrize(("limit", "played"), [(None, 100), (20, 20), (40, 40)])
def test_a_stage_that_may_take_so_many_environment_steps_plays_no_more(
    tmp_path: Path, limit: int | None, played: int
) -> None:
    """Each episode is a turn."""
    limited = {} if limit is None else {"max_env_steps": limit}
    recipe = make_recipe(stages=[{"kind": "collect", "name": "shown", "num_tasks": 100, **limited}])
    collector, nothing = cast("Any", ScriptedCollector(lambda *_: {}, backwards=False)), cast("Any", None)
    state = RunState(run_id=RUN_ID, recipe_hash="h", age=3, version=CURRENT, ages={CURRENT: 3})
    run = RunContext(
        recipe, TrainerSettings(), RunDirectory(tmp_path), state, nothing, nothing, nothing, nothing, nothing,
        collector, make_planner(recipe), Reporter(RunDirectory(tmp_path), RUN_ID), nothing, stage_of(recipe, Collect),
        _published_age=state.age,
    )  # fmt: skip

    asyncio.run(run.stage.run(run))

    assert len(run.taken() or ()) == len(collector.asked) == played
    assert state.counts["env_steps.shown"] == played


def test_data_are_episodes_of_stages_and_of_files_in_the_order_in_which_they_are_named(tmp_path: Path) -> None:
    directory, other = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "other")
    mine, theirs = [make_scored("collect.t000000")], [make_scored("collect.t000000", run_id="other")]
    directory.trajectories("round2.collect", mine)
    other.trajectories("shown", theirs)

    path = str(other.episodes("shown"))
    run = context(directory, path, "collect", before={"collect": "round2.collect"})

    assert run.episodes() == [*theirs, *mine]


@pytest.mark.parametrize(
    "turn", [make_turn(prompt=(5, VOCAB_SIZE)), make_turn(response=(5, VOCAB_SIZE))], ids=["read", "written"]
)
def test_episodes_of_a_model_with_more_tokens_are_refused(tmp_path: Path, turn: Any) -> None:
    directory = RunDirectory(tmp_path)
    directory.trajectories("sound", [make_scored(turns=(make_turn(response=(5, VOCAB_SIZE - 1)),))])
    directory.trajectories("strange", [make_scored(turns=(turn,))])
    names = {"sound": "sound", "strange": "strange"}

    assert len(context(directory, "sound", before=names).episodes()) == 1
    with pytest.raises(RunDirectoryError, match="strange has token 100, which is beyond the model's 100: its episodes"):
        context(directory, "strange", before=names).episodes()


def test_episodes_of_a_model_whose_tokens_are_not_known_are_refused(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    played = make_scored(sample=1)
    trajectory = played.trajectory.model_copy(update={"turns": (make_turn((), ()),) * 2})
    directory.trajectories("collected", [make_scored(), ScoredTrajectory(trajectory=trajectory, reward=None)])

    with pytest.raises(RunDirectoryError, match=r"collected has an episode without tokens \(run-1/.*/1\), which .* "):
        context(directory, "collected", before={"collected": "collected"}).episodes()


def test_held_out_episodes_of_another_run_are_refused(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    measured = make_scored("after.t000000")
    trajectory = measured.trajectory.model_copy(update={"purpose": "eval"})
    directory.trajectories("after", [make_scored(), measured.model_copy(update={"trajectory": trajectory})])

    with pytest.raises(
        RunDirectoryError, match=r"after\.jsonl holds held-out episodes \(run-1/after\.t000000/0\): what"
    ):
        context(directory, str(directory.episodes("after"))).episodes()


def test_what_is_left_is_written_and_taken_once(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    run, episodes = context(directory, "x.jsonl"), [make_scored(sample=sample) for sample in range(2)]
    assert run.taken() is None

    run.leave(episodes)

    assert directory.read_records(directory.episodes("best")) == episodes
    assert run.taken() == episodes
    assert run.taken() is None


def test_what_is_left_is_durable_as_the_state_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink().name))
    run = context(RunDirectory(tmp_path), "x.jsonl")

    run.leave([])
    run.leave([make_scored()])

    assert synced.count("best.jsonl") == 2


class Deliveries:
    """Deliveries of settled groups, and those that were acknowledged."""

    num_held = 0

    def __init__(self) -> None:
        self.closed = {"a"}
        self.acknowledged: set[str] = set()

    def settled(self) -> frozenset[str]:
        return frozenset(self.closed)

    async def acknowledge(self, settled: AbstractSet[str]) -> int:
        self.acknowledged |= settled
        return len(settled)

    async def keep_search_trees(self, _: RunDirectory) -> None:
        pass


class SlowWrite:
    """A learner that writes until it is told to stop, and then well or not."""

    def __init__(self, *, finishes_apart: bool) -> None:
        self.written, self.failure, self.finishes_apart = Event(), "", finishes_apart

    def begin_checkpoint(self, directory: Path) -> None:
        (directory / "weights").touch()

    def finish_checkpoint(self) -> float:
        assert self.written.wait(60)
        if self.failure:
            raise OSError(28, self.failure)
        return 2.5


def writing(
    path: Path, worker: TorchThread, *, finishes_apart: bool = False
) -> tuple[RunContext, Deliveries, SlowWrite]:
    """A run at step 1 that is about to write a checkpoint, which contains group a."""
    run, deliveries = context(RunDirectory(path), "x.jsonl"), Deliveries()
    learner = SlowWrite(finishes_apart=finishes_apart)
    run.state, run.checkpoints = RunState(run_id="run-1", recipe_hash="h", step=1), Checkpoints(path / "c", keep=2)
    run.collector, run.learner, run.worker = deliveries, learner, worker  # type: ignore[assignment]
    return run, deliveries, learner


@pytest.mark.parametrize("finishes_apart", [False, True])
def test_what_a_checkpoint_contains_is_acknowledged_once_it_is_written(tmp_path: Path, finishes_apart: bool) -> None:
    async def go() -> None:
        with TorchThread(1) as worker:
            run, deliveries, learner = writing(tmp_path, worker, finishes_apart=finishes_apart)
            await run.begin_checkpoint()
            run.commit_checkpoint()
            run.state.step = 2
            deliveries.closed.add("later")
            await asyncio.sleep(0.05)
            assert (run.checkpoints.latest(), deliveries.acknowledged) == (None, set())

            learner.written.set()
            await run.settle_checkpoint()

            last = run.checkpoints.latest()
            assert last is not None
            assert (last[1].step, deliveries.acknowledged) == (1, {"a"}), "as it was when the checkpoint began"
            assert run.state.seconds["checkpoint_write"] == 2.5
            assert 0 < run.state.seconds["checkpoint"] < 60

    asyncio.run(go())


def test_a_learner_that_finishes_apart_updates_meanwhile_and_what_it_waited_is_counted(tmp_path: Path) -> None:
    async def go() -> None:
        with TorchThread(1) as worker:
            run, _, learner = writing(tmp_path, worker, finishes_apart=True)
            await run.begin_checkpoint()
            run.commit_checkpoint()
            await asyncio.sleep(0.05)

            await asyncio.wait_for(worker.run(lambda: None), 30)
            await asyncio.wait_for(run.see_to_checkpoint(100.0), 30)
            assert run.checkpoints.latest() is None

            learner.written.set()
            await run.settle_checkpoint()
            assert run.checkpoints.latest() is not None
            assert 100 < run.state.seconds["checkpoint"] < 160

    asyncio.run(go())


def test_a_write_that_fails_ends_the_run_at_the_next_point_and_acknowledges_nothing(tmp_path: Path) -> None:
    async def go() -> None:
        with TorchThread(1) as worker:
            run, deliveries, learner = writing(tmp_path, worker)
            await run.begin_checkpoint()
            run.commit_checkpoint()
            learner.failure = "No space left on device"
            learner.written.set()

            with pytest.raises(CheckpointFailed, match="No space left on device"):
                await run.settle_checkpoint()
            run.abandon_checkpoint()

            assert (run.checkpoints.latest(), deliveries.acknowledged) == (None, set())

    asyncio.run(go())


def test_a_write_that_failed_meanwhile_ends_the_run_after_the_update(tmp_path: Path) -> None:
    async def go() -> None:
        with TorchThread(1) as worker:
            run, _, learner = writing(tmp_path, worker, finishes_apart=True)
            await run.begin_checkpoint()
            run.commit_checkpoint()
            learner.failure = "No space left on device"
            learner.written.set()

            async def steps() -> None:
                while True:
                    await run.see_to_checkpoint(0.0)
                    await asyncio.sleep(0.01)

            with pytest.raises(CheckpointFailed, match="No space left on device"):
                await asyncio.wait_for(steps(), 30)
            run.abandon_checkpoint()

    asyncio.run(go())


def test_a_run_that_ends_abandons_what_it_writes(tmp_path: Path) -> None:
    async def go() -> None:
        with TorchThread(1) as worker:
            run, deliveries, learner = writing(tmp_path, worker)
            await run.begin_checkpoint()
            run.commit_checkpoint()
            await asyncio.sleep(0.05)

            run.abandon_checkpoint()
            learner.written.set()
            await worker.run(lambda: None)

            assert (run.checkpoints.latest(), deliveries.acknowledged) == (None, set())

    asyncio.run(go())
