"""The trainer as a process against real services: a whole run, and every way in which one ends early."""

import asyncio
import json
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from gymfleet_contracts.recipe import load_recipe
from gymfleet_contracts.recipe_sections import ScratchModel
from gymfleet_contracts.streams import POLICY_OWNER, TRAINER_GROUP, trajectories_scored
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.run_events import read_events
from gymfleet_kit.shared_weights import SHARED_MEMORY
from gymfleet_kit.streams import connect, disconnect
from gymfleet_trainer.errors import PublishRefused, TooManyFailures
from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.publish.publisher import Publisher
from gymfleet_trainer.publish.rollout_replicas import RolloutReplicas
from gymfleet_trainer.run.build import corpus
from gymfleet_trainer.run.checkpoint import Checkpoints
from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.run.torch_thread import TorchThread
from gymfleet_trainer.settings import TrainerSettings
from redis import Redis
from safetensors.torch import load_file

from tests.fixtures.ports import free_port
from tests.fixtures.trainer_runs import TrainerRun
from tests.fixtures.wire_cutter import WireCutter
from tests.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def read_lines(path: Path) -> list[dict[str, Any]]:
    # Not `splitlines`: an untrained model also writes the line ends that Unicode knows.
    return [json.loads(line) for line in path.read_text().split("\n") if line]


@pytest.mark.parametrize("max_staleness", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_whole_run(maze_fleet: Fleet, tiny_model: Path, tmp_path: Path, max_staleness: int) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=3, max_staleness=max_staleness)

    summary = run.finish()

    assert summary["num_eval_episodes"] == 5
    assert summary["gain"] == summary["success_after"] - summary["success_before"]
    assert summary["interval_before"][0] <= summary["success_before"] <= summary["interval_before"][1]
    assert summary["groups"]["trained"] == 6
    assert summary["policy_versions_published"] == 4
    assert 0 <= summary["parity_mean_abs"] < 1e-4
    assert 0 <= summary["parity_batch_mean_abs"] < 1e-4
    assert summary["tokens_trained"] > 0
    assert summary["seconds"]["steps"]["update"] > 0
    written = [line for line in run.metrics("checkpoint") if line["stage"] == "reinforce"]
    assert [line["step"] for line in written] == [1, 2, 3]
    assert all(line["write_s"] > 0 and line["blocked_s"] > 0 for line in written)
    assert summary["seconds"]["checkpoint_write"] > 0
    assert summary["seconds"]["steps"]["checkpoint"] > 0
    steps = run.metrics("rl_step")
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert max(line["staleness_max"] for line in steps) <= max_staleness
    if max_staleness == 0:
        assert len(run.metrics("batch_parity")) == 3, "the first batch after every publish was compared"
    trajectories = run.run_dir / "trajectories"
    assert len(read_lines(trajectories / "before.jsonl")) == len(read_lines(trajectories / "after.jsonl")) == 5
    tasks = [
        [line["trajectory"]["task"]["task_id"] for line in read_lines(trajectories / f"{name}.jsonl")]
        for name in ("before", "after")
    ]
    assert sorted(tasks[0]) == sorted(tasks[1])
    assert json.loads((run.run_dir / "progress.json").read_text())["phase"] == "done"
    before, after = (load_file(path / "model.safetensors") for path in (tiny_model, run.run_dir / "model"))
    assert before.keys() == after.keys()
    assert any((before[name] != after[name]).any() for name in before)


def test_a_run_whose_versions_lie_in_shared_memory(maze_fleet: Fleet, tiny_model: Path, tmp_path: Path) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=2, sft="", more='transfer = "shared_memory"')

    summary = run.finish()

    assert summary["policy_versions_published"] == 3
    assert 0 <= summary["parity_mean_abs"] < 1e-4
    assert not (run.run_dir / "weights").exists()
    run_id = json.loads((run.run_dir / "run.json").read_text())["run_id"]
    versions = list((SHARED_MEMORY / f"gymfleet-weights-{run_id}").glob("v*"))
    assert len(versions) == 2, "the rollout service has the last one live, and holds the folder"
    assert all((path / "weights.json").is_file() for path in versions)


def test_a_run_that_sends_its_versions(maze_fleet: Fleet, tiny_model: Path, tmp_path: Path) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=2, sft="", more='transfer = "broadcast"\nbucket_mib = 1')

    summary = run.finish()

    assert summary["policy_versions_published"] == 3
    assert 0 <= summary["parity_mean_abs"] < 1e-4
    sent = max((run.run_dir / "weights").glob("v*"))
    received = [files_of(one) for one in SHARED_MEMORY.glob(f"gymfleet-weights-received-*/{sent.name}")]
    assert files_of(sent) in received, "the last one, as it was sent"


def files_of(version: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in version.glob("*.safetensors")}


def test_a_run_that_ends_before_a_version_is_live_leaves_nothing_in_shared_memory(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    more = 'transfer = "shared_memory"\nparity_tolerance = 1e-15'
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=1, sft="", more=more)

    run.start()

    assert run.wait() == 4, run.tail()
    run_id = json.loads((run.run_dir / "run.json").read_text())["run_id"]
    assert not (SHARED_MEMORY / f"gymfleet-weights-{run_id}").exists()


def test_without_a_learning_rate_nothing_changes_and_a_finished_run_says_so(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=2, learning_rate=0.0, sft="")

    run.finish()

    before, after = (load_file(path / "model.safetensors") for path in (tiny_model, run.run_dir / "model"))
    assert before.keys() == after.keys()
    assert all((before[name] == after[name]).all() for name in before)

    run.start()
    assert run.wait() == 0
    assert "is finished" in run.tail(300)
    run.steps = 3
    run.write_recipe()
    run.start()
    assert run.wait() == 2
    assert "another recipe" in run.tail(400)


@pytest.mark.parametrize(("wanted", "workers"), [(True, 1), (False, 1), pytest.param(True, 2, marks=pytest.mark.long)])
def test_groups_without_a_signal_are_redrawn_if_the_recipe_says_so(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path, wanted: bool, workers: int
) -> None:
    run = TrainerRun(
        maze_fleet, tmp_path, tiny_model, steps=2, sft="",
        options=f"dynamic_sampling = {str(wanted).lower()}\nmax_redraws = 1",
        more=f"[trainer]\nworkers = {workers}\n"
        "[rollout.sampling]\ntop_k = 1  # the episodes of a group are all the same",
    )  # fmt: skip

    summary = run.finish()

    state = run.state()
    assert state is not None
    planned = [f"reinforce.s{step:06d}-g{place:02d}" for step in (1, 2) for place in (0, 1)]
    assert state.trained == [f"{name}-t1-r1" if wanted else name for name in planned]
    redrawn = 4 if wanted else 0
    assert summary["groups"] == {
        "trained": 4, "dropped": redrawn, "zero_variance": 4, "redrawn": redrawn, "not_redrawn": redrawn,
        "unselected": 0, "unspread": 0,
    }  # fmt: skip
    assert [line["groups_redrawn"] for line in run.metrics("rl_step")] == [redrawn // 2] * 2


def test_a_budget_of_environment_steps_ends_the_stage_and_outlives_a_kill(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    """Mazes of eight turns that nothing solves, two groups of three: at most 48 steps each, and redraws count."""
    run = TrainerRun(
        maze_fleet, tmp_path, tiny_model, steps=50, sft="", learning_rate=0.0,
        options="max_env_steps = 150\nmax_redraws = 1\ndynamic_sampling = true",
        # Every group is redrawn, and whatever is said is an action; to say nothing is none.
        more='[rollout.format]\nuse = "plain"\n[rollout.sampling]\ntop_k = 1',
        settings={"RECORDED_GROUPS_PER_STEP": "2"},
    )  # fmt: skip
    run.start()
    run.wait_until(lambda: len(run.metrics("rl_step")) == 1)
    run.kill()

    summary = run.finish()

    steps = run.metrics("rl_step")
    spent = [line["env_steps"] for line in steps]
    assert [line["step"] for line in steps] == list(range(1, len(steps) + 1))
    assert spent == sorted(set(spent))
    assert spent[-2] < 150 <= spent[-1] == summary["counts"]["env_steps.reinforce"]
    recorded = (run.run_dir / "trajectories" / "reinforce.jsonl").read_text(encoding="utf-8").splitlines()
    turns = [turn for line in recorded for turn in ScoredTrajectory.model_validate_json(line).trajectory.turns]
    trained = sum(turn.action is not None for turn in turns)
    assert len(turns) == sum(line["turns"] for line in steps), "all are recorded"
    assert summary["groups"]["redrawn"] == summary["groups"]["trained"] == 2 * len(steps)
    assert spent[-1] > 1.5 * trained, "groups that were redrawn count as those that were trained on"
    assert spent[-1] < len(turns), "a reply that asks for no action takes no step"
    assert [line["name"] for line in run.metrics("eval")] == ["before", "after"]


def test_it_answers_while_it_trains_and_is_interrupted_politely(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=3)
    run.start()
    run.wait_until(lambda: len(run.metrics("rl_step")) == 1)
    assert run.url

    progress = httpx.get(f"{run.url}/v1/run", trust_env=False).json()
    events = httpx.get(f"{run.url}/v1/run/events", params={"after": 1, "limit": 3}, trust_env=False).json()
    metrics = httpx.get(f"{run.url}/metrics", trust_env=False).text
    ready = httpx.get(f"{run.url}/readyz", trust_env=False)
    run.kill(signal.SIGTERM)

    assert (progress["phase"], progress["total"], progress["unit"]) == ("reinforce", 3, "steps")
    assert "gymfleet_trainer_step 1.0" in metrics
    assert [event["number"] for event in events["events"]] == [2, 3, 4]
    assert events["last"] > 4
    assert ready.is_success
    assert run.wait() == 128 + signal.SIGTERM
    assert json.loads((run.run_dir / "progress.json").read_text())["phase"] == "interrupted"
    assert run.finish()["counts"]["resumed"] == 1
    assert [line["step"] for line in run.metrics("rl_step")] == [1, 2, 3]
    told = [event.kind for event in read_events(run.run_dir, 0, 10_000)]
    lives = [kind for kind in told if kind in {"run_started", "interrupted", "run_resumed", "done"}]
    assert lives == ["run_started", "interrupted", "run_resumed", "done"]
    assert told.count("rl_step") >= 3


def test_a_second_trainer_of_the_same_run_is_refused(maze_fleet: Fleet, tiny_model: Path, tmp_path: Path) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=2, sft="")
    with RunDirectory(run.run_dir):
        run.start()

        assert run.wait() == 2
    assert "another process is training" in run.tail()


def test_a_missing_service_is_named(maze_fleet: Fleet, tiny_model: Path, tmp_path: Path) -> None:
    settings = {"ROLLOUT_URL": "http://127.0.0.1:9", "SERVICES_TIMEOUT_S": "1"}
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, settings=settings)
    run.start()

    assert run.wait() == 3
    assert "rollout at http://127.0.0.1:9 says: no answer" in run.tail()


def test_a_run_waits_while_another_has_the_rollout_replicas(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=1, sft="", settings={"SERVICES_TIMEOUT_S": "1"})
    with Redis.from_url(maze_fleet.redis.url) as client:
        client.set(POLICY_OWNER, "maze-of-others", px=60_000)
        run.start()
        assert run.wait() == 3
        assert "after 1 s: run maze-of-others has the rollout replicas: let it end, or give" in run.tail()

        client.pexpire(POLICY_OWNER, 1)
    run.settings = {}
    assert run.finish()["groups"]["trained"] == 2


def test_silence_ends_with_a_reason_and_the_run_can_go_on(maze_fleet: Fleet, tiny_model: Path, tmp_path: Path) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=1, sft="", settings={"STALL_TIMEOUT_S": "1.5"})
    assert maze_fleet.reward.process is not None
    maze_fleet.reward.process.send_signal(signal.SIGSTOP)
    try:
        run.start()
        assert run.wait() == 3
    finally:
        maze_fleet.reward.process.send_signal(signal.SIGCONT)

    assert "no scored trajectory for 1.5 s, twice; 5 groups are open" in run.tail()
    assert "is the reward service running?" in run.tail()
    run.settings = {}
    assert run.finish()["groups"]["trained"] == 2


def test_a_full_disk_is_one_clear_line_and_loses_nothing(maze_fleet: Fleet, tiny_model: Path, tmp_path: Path) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=2)
    weights_bytes = (tiny_model / "model.safetensors").stat().st_size
    run.start(max_file_bytes=weights_bytes * 5 // 4)  # room for the weights, none for the optimiser's moments

    assert run.wait() == 5
    last = run.tail().strip().splitlines()[-1]
    assert last.startswith(f"error: cannot write to {run.run_dir / 'checkpoints'}: ")
    assert "File too large" in last
    assert last.endswith("is intact: make room and run the same command again")
    state = run.state()
    assert state is not None
    with Redis.from_url(maze_fleet.redis.url) as client:
        pending = client.xpending(trajectories_scored(state.run_id), TRAINER_GROUP)["pending"]
    assert pending == 6, "two groups of three: trained, in no checkpoint, hence not acknowledged"

    assert run.finish()["groups"]["trained"] == 4


def test_a_checkpoint_is_measured_without_touching_its_run(maze_fleet: Fleet, tiny_model: Path, tmp_path: Path) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=1, sft="")
    run.finish()
    before = files_of_the_run(run)
    out = tmp_path / "measured.json"

    run.start("eval", "--checkpoint", str(run.run_dir / "model"), "--out", str(out))

    assert run.wait() == 0, run.tail()
    assert json.loads(out.read_text())["num_episodes"] == 5
    assert files_of_the_run(run) == before


def files_of_the_run(run: TrainerRun) -> list[str]:
    paths = (path.relative_to(run.run_dir) for path in run.run_dir.rglob("*"))
    return sorted(str(path) for path in paths if path.parts[0] != ".eval")


def test_the_model_from_scratch_is_built_once(maze_fleet: Fleet, tiny_model: Path, tmp_path: Path) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model)
    scratch = "[model.scratch]\nvocab_size = 400\nhidden_size = 64\nnum_layers = 2\ncorpus_episodes = 8\n"
    text = run.recipe.read_text()
    run.recipe.write_text(text.replace(f'[model]\npath = "{tiny_model}"\n', scratch))
    model = run.run_dir / "model-init"

    run.start()
    assert run.wait() == 2
    assert "run `gymfleet-trainer build`" in run.tail()
    run.start("build")
    assert run.wait() == 0, run.tail()
    built = (model / "model.safetensors").stat().st_mtime_ns
    with RunDirectory(run.run_dir):  # as a run that is under way
        run.start("build")
        assert run.wait() == 0, run.tail()

    assert (model / "model.safetensors").stat().st_mtime_ns == built
    assert run.tail().strip().endswith(str(model))
    assert {"config.json", "tokenizer.json", "build.json"} <= {path.name for path in model.iterdir()}


async def test_the_model_is_built_although_the_gateway_starts_later(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    recipe = load_recipe(TrainerRun(maze_fleet, tmp_path, tiny_model).recipe)
    port = free_port()
    settings = TrainerSettings(gateway_url=f"http://127.0.0.1:{port}", services_timeout_s=30)
    with structlog.testing.capture_logs() as lines:
        texts = asyncio.create_task(corpus(recipe, ScratchModel(corpus_episodes=8), settings))
        while not lines:  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0.05)
        async with WireCutter(maze_fleet.gateway.url, port=port):
            assert len(await texts) > 16
    assert {line["event"] for line in lines} == {"corpus.interrupted"}


async def test_who_serves_no_expert_is_not_waited_for(maze_fleet: Fleet, tiny_model: Path, tmp_path: Path) -> None:
    recipe = load_recipe(TrainerRun(maze_fleet, tmp_path, tiny_model).recipe)
    (env,) = recipe.environments
    recipe = recipe.model_copy(update={"environments": (env.model_copy(update={"train_split": "test"}),)})
    settings = TrainerSettings(gateway_url=maze_fleet.gateway.url, services_timeout_s=600)

    with pytest.raises(TooManyFailures, match="could not be watched"):
        await asyncio.wait_for(corpus(recipe, ScratchModel(corpus_episodes=8), settings), 30)


class Misread(LocalLearner):
    """A trainer whose log-probabilities are off, as those of an engine with a misread weight would be."""

    offset = 0.0

    def sampled_logprobs(self, prompts: list[list[int]], samples: list[list[int]]) -> list[list[float]]:
        return [[value + self.offset for value in row] for row in super().sampled_logprobs(prompts, samples)]


async def test_weights_that_the_engine_reads_differently_never_go_live(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    recipe = load_recipe(TrainerRun(maze_fleet, tmp_path, tiny_model).recipe)
    directory = RunDirectory(tmp_path / "run")
    checkpoints = Checkpoints(directory.checkpoints, keep=2)
    state = RunState(run_id="r", recipe_hash="h")
    redis = connect(maze_fleet.redis.url)
    endpoint = RolloutReplicas(TrainerSettings(rollout_url=maze_fleet.rollout.url), redis, "r")
    with directory, TorchThread(1) as worker:
        learner = await worker.run(Misread, recipe, str(tiny_model), tmp_path / "reference")
        publisher = Publisher(endpoint, learner, worker, directory, checkpoints, recipe)
        live = (await endpoint.policy()).live_version

        learner.offset = 0.01
        with pytest.raises(PublishRefused, match=r"mean \|difference\| in log-probability is 0\.0(0999|1)"):
            await publisher.publish(state)
        refused = await endpoint.policy()
        learner.offset = 0.0
        publication = await publisher.publish(state)
        accepted = await endpoint.policy()
    await endpoint.ownership.withdraw()
    await endpoint.aclose()
    await disconnect(redis)

    assert (refused.live_version, refused.staged_version) == (live, None)
    assert accepted.live_version == publication.version > live
    assert publication.parity.mean_abs < 1e-5
    lines = [json.loads(line) for line in (directory.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["publish_refused", "publish_refused", "publish"]
    assert max(path.name for path in directory.weights.iterdir()) == f"v{publication.version:06d}"


async def test_a_version_left_staged_by_a_dead_trainer_is_in_nobodys_way(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    recipe = load_recipe(TrainerRun(maze_fleet, tmp_path, tiny_model).recipe)
    directory = RunDirectory(tmp_path / "run")
    state = RunState(run_id="r", recipe_hash="h")
    redis = connect(maze_fleet.redis.url)
    endpoint = RolloutReplicas(TrainerSettings(rollout_url=maze_fleet.rollout.url), redis, "r")
    with directory, TorchThread(1) as worker:
        learner = await worker.run(Misread, recipe, str(tiny_model), tmp_path / "reference")
        publisher = Publisher(endpoint, learner, worker, directory, Checkpoints(directory.checkpoints, keep=2), recipe)
        endpoint_commit = endpoint.commit
        endpoint.commit = _die  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await publisher.publish(state)
        staged = (await endpoint.policy()).staged_version
        endpoint.commit = endpoint_commit  # type: ignore[method-assign]

        publication = await publisher.publish(state)
    await endpoint.ownership.withdraw()
    await endpoint.aclose()
    await disconnect(redis)

    assert staged is not None
    assert publication.version > staged


async def _die(version: int, urls: Iterable[str]) -> None:
    raise asyncio.CancelledError(version, list(urls))
