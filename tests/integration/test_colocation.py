"""A trainer whose engines share its GPU: when they sleep, over HTTP, with engines that say what was done with them."""

# ruff: noqa: F811 - fixtures of another module are arguments here

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gymfleet_contracts.recipe import Recipe, RecipeError
from gymfleet_contracts.stages import PlannedStage
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_trainer.errors import Stalled
from gymfleet_trainer.model.batching import TrainSequence, sequences_from_trajectory
from gymfleet_trainer.publish import colocation
from gymfleet_trainer.publish.colocation import engines_asleep
from gymfleet_trainer.publish.policy_endpoint import VersionRefused
from gymfleet_trainer.publish.publisher import Publisher
from gymfleet_trainer.run.checkpoint import Checkpoints
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.run.group_planner import PlannedGroup
from gymfleet_trainer.run.groups import Group
from gymfleet_trainer.run.lifecycle import _require_engines_for
from gymfleet_trainer.run.plan import stages_of
from gymfleet_trainer.run.torch_thread import TorchThread
from gymfleet_trainer.settings import TrainerSettings
from gymfleet_trainer.stage import Stage
from gymfleet_trainer.stages._reward_model import Divided
from gymfleet_trainer.stages.bradley_terry import BradleyTerry
from gymfleet_trainer.stages.preference import LearnPreferences
from gymfleet_trainer.stages.reinforce import Reinforce, Steps
from gymfleet_trainer.stages.sft import Supervised

from tests.fixtures.scored import make_recipe, make_scored, make_turn
from tests.fixtures.trainer_plans import make_planner, stage_of
from tests.integration.test_policy_fleet import (
    ONE,
    TWO,
    Model,
    Site,
    Trainer,
    site,  # noqa: F401 - a fixture
    trainer,  # noqa: F401 - a fixture
)


class Learner(Model):
    """It learns nothing, and notes what its engines do meanwhile."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.saw: list[str] = []

    def _note(self, what: str) -> None:
        asleep = {world.engines[0].asleep for world in self._site.worlds.values()}
        self.saw.append(f"{what}: {'asleep' if asleep == {True} else 'awake'}")

    def batch_parity(self, *_: Any) -> None:
        self._note("parity")

    def update(self, *_: Any) -> dict[str, float]:
        self._note("update")
        return {"num_updates": 1, "num_nonfinite": 0, "grad_norm": 1.0}

    def release_memory(self) -> None:
        self._note("release")

    def save_weights(self, directory: Path) -> None:
        self._note("publish")
        super().save_weights(directory)

    def begin_checkpoint(self, directory: Path) -> None:
        self._note("checkpoint")

    def finish_checkpoint(self) -> float:
        return 0.0

    @property
    def finishes_apart(self) -> bool:
        return True

    @property
    def waited_s(self) -> float:
        return 0.0


def run_of(recipe: Recipe, trainer: Trainer, learner: Learner, worker: TorchThread) -> RunContext:
    """A run at the end of a collection: what it asked for is there."""
    directory, state = trainer.publisher._directory, trainer.state
    checkpoints = Checkpoints(directory.checkpoints, keep=2)
    publisher = Publisher(trainer.fleet, learner, worker, directory, checkpoints, recipe)
    collector: Any = SimpleNamespace(
        env_steps=lambda _: 0,
        settle=lambda _: None,
        settled=frozenset,
        acknowledge=_nothing,
        keep_search_trees=_nothing,
        num_held=0,
    )
    reporter: Any = SimpleNamespace(advance=lambda *_, **__: None)
    nothing: Any = None
    stage = stage_of(recipe, Reinforce)
    return RunContext(
        recipe, TrainerSettings(), directory, state, checkpoints, learner, worker, trainer.fleet, publisher,  # type: ignore[arg-type]
        collector, make_planner(recipe), reporter, nothing, stage,
    )  # fmt: skip


async def _nothing(*_: Any) -> int:
    return 0


@pytest.mark.parametrize("colocated", [True, False])
async def test_engines_sleep_during_the_update_and_are_awake_for_the_version(
    colocated: bool,
    site: Site,
    trainer: Trainer,
) -> None:
    await site.start(ONE, TWO)
    recipe = make_recipe(
        placement={"colocated": colocated},
        publish={"probe_prompts": 2, "probe_max_tokens": 2},
        inference={"max_model_len": 64},
        rollout={"limits": {"max_context_tokens": 64}},
    )
    learner = Learner(site)
    with TorchThread(1) as worker:
        run = run_of(recipe, trainer, learner, worker)
        await run.publish()
        learner.saw.clear()
        steps = Steps(run, stage_of(recipe, Reinforce))

        async def collect() -> list[Group]:
            request = steps._open(PlannedGroup(0))
            samples = {place: make_scored(request.group_id, place, version=1) for place in range(2)}
            return [Group(request, samples=samples)]

        steps.collect = collect  # type: ignore[method-assign]
        await steps._step()
        await run.settle_checkpoint()

    during = "asleep" if colocated else "awake"
    released = [f"release: {during}"] if colocated else []
    assert learner.saw == [
        f"parity: {during}", f"update: {during}", *released, "publish: awake", "checkpoint: awake",
    ]  # fmt: skip
    slept = ["sleep", "wake"] if colocated else []
    assert site.worlds[ONE].engines[0].did == ["load v000001", *slept, "load v000002"]
    assert site.live() == {ONE: 2, TWO: 2}


class Scholar(Learner):
    """It is told to train without any episode of its own."""

    def begin(self, *_: Any) -> None:
        self._note("begin")

    def sequences(self, episodes: list[ScoredTrajectory], roles: Any) -> list[TrainSequence]:
        return [row for scored in episodes for row in sequences_from_trajectory(scored, roles=roles)]

    def _trained(self, *_: Any) -> dict[str, float]:
        self._note("train")
        return {"loss": 1.0, "num_trained_tokens": 1}

    sft_epoch = update_rows = reward_epoch = _trained

    def save_reward_model(self, directory: Path) -> None:
        self._note("leave")

    def end(self) -> None:
        self._note("end")


class Judged(BradleyTerry):
    """A reward model whose rows are there already."""

    def _divided(self, _: RunContext) -> Divided:
        return Divided([], [], [], [])

    def rows(self, *_: Any) -> list[TrainSequence]:
        return []


@pytest.mark.parametrize(
    ("kind", "leaves"),
    [
        pytest.param(Supervised, [], id="sft"),
        pytest.param(LearnPreferences, [], id="preference"),
        pytest.param(Judged, ["leave: asleep"], id="reward model"),
    ],
)
async def test_engines_sleep_while_a_stage_trains_that_plays_nothing(
    kind: type[Stage[Any]],
    leaves: list[str],
    site: Site,
    trainer: Trainer,
) -> None:
    await site.start(ONE, TWO)
    recipe = make_recipe(placement={"colocated": True})
    learner = Scholar(site)
    options = {"data": "collect", "epochs": 1}
    planned = PlannedStage("learns", "learns", "stages.learns", options, {"collect": "collect"})
    with TorchThread(1) as worker:
        run = run_of(recipe, trainer, learner, worker)
        pair = [
            make_scored("collect.t000000", place, total=1.0 - place, turns=(make_turn(response=(20 + place, 9)),))
            for place in range(2)
        ]
        run.directory.trajectories("collect", pair)
        run.reporter.begin = lambda *_, **__: None  # type: ignore[method-assign]
        run.stage = kind(planned, kind.Options(**options))

        await run.stage.run(run)

    assert learner.saw == ["begin: asleep", "train: asleep", *leaves, "end: asleep", "release: asleep"]
    assert [site.worlds[url].engines[0].did for url in (ONE, TWO)] == [["sleep", "wake"]] * 2


async def test_the_lease_is_renewed_as_long_as_it_takes(
    site: Site,
    trainer: Trainer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(colocation, "_LEASE_S", 1.0)
    monkeypatch.setattr(colocation, "_RENEW_EVERY_S", 0.1)
    await site.start(ONE)

    async with engines_asleep(trainer.fleet):
        await asyncio.sleep(2.5)
        assert site.worlds[ONE].policy.state().asleep

    assert site.worlds[ONE].engines[0].did == ["sleep", "wake"]


async def test_an_update_that_fails_wakes_the_engines(site: Site, trainer: Trainer) -> None:
    await site.start(ONE)

    with pytest.raises(ZeroDivisionError):
        async with engines_asleep(trainer.fleet):
            raise ZeroDivisionError

    assert not site.worlds[ONE].policy.state().asleep


async def test_a_trainer_that_dies_leaves_them_to_their_lease(
    site: Site,
    trainer: Trainer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await site.start(ONE)

    await trainer.fleet.sleep(0.05)  # and nothing more comes

    async with asyncio.timeout(10):
        assert (await site.worlds[ONE].ask()).token_ids == (0, 0)


async def test_engines_that_cannot_sleep_are_told_of_before_anything_is_played(
    site: Site,
    trainer: Trainer,
) -> None:
    await site.start(ONE)
    recipe = make_recipe(placement={"colocated": True})
    _require_engines_for(recipe, await trainer.fleet.present())
    site.worlds[ONE].policy._sleep_mode = False

    with pytest.raises(RecipeError, match=r"those of http://127\.0\.0\.1:\d+ were not started for it: start the"):
        _require_engines_for(recipe, await trainer.fleet.present())
    with pytest.raises(VersionRefused, match=r"The engines cannot sleep: .* not started for it"):
        await trainer.fleet.sleep(60)
    _require_engines_for(make_recipe(), await trainer.fleet.present())


async def test_nobody_there_is_a_stall(site: Site, trainer: Trainer) -> None:
    site.resolver.addresses["rollout.fleet"] = [ONE]

    with pytest.raises(Stalled, match="rollout replicas should sleep: no answer from the rollout service at"):
        await trainer.fleet.sleep(60)


def test_staleness_and_sleep_exclude_each_other() -> None:
    rl = {"steps": 1, "groups_per_step": 1, "group_size": 2, "max_staleness": 1}

    with pytest.raises(RecipeError, match=r"stages\.reinforce\.max_staleness = 1 has .* placement\.colocated .* = 0"):
        stages_of(make_recipe(rl=rl, placement={"colocated": True}))
    assert stages_of(make_recipe(rl=rl))
    assert stages_of(make_recipe(placement={"colocated": True}))
