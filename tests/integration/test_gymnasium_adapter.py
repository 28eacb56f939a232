"""The Gymnasium adapter against a real gateway: Gymnasium's own checker, determinism, batches, failures."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import httpx
import numpy as np
import pytest
from gymfleet_client import SyncGatewayClient
from gymfleet_client.errors import ActionTooLarge, SessionLost, StepOutOfOrder
from gymfleet_client.gymnasium_env import GymfleetEnv, GymfleetVectorEnv, register
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.fixtures import gateway_fleet
from tests.fixtures.gateway_fleet import ServiceProcess
from tests.fixtures.levels_environment import COUNTS

LEVELS = "tests.fixtures.levels_environment:Levels"
ENVIRONMENTS = ("textcraft", "babyai", "maze", "wordle")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    server = gateway_fleet.env_server(tmp_path_factory.mktemp("server"), *ENVIRONMENTS, LEVELS)
    with gateway_fleet.running(server):
        yield server


@pytest.fixture(scope="module")
def url(server: ServiceProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    gateway = gateway_fleet.gateway(tmp_path_factory.mktemp("gateway"), [server.url])
    with gateway_fleet.running(gateway):
        yield gateway.url


@pytest.fixture(params=ENVIRONMENTS)
def env(request: pytest.FixtureRequest, url: str) -> Iterator[GymfleetEnv]:
    made = GymfleetEnv(url, request.param)
    yield made
    made.close()


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_gymnasiums_checker_has_no_complaint(url: str, name: str) -> None:
    assert f"gymfleet/{name}-v0" in register(url)

    made = gymnasium.make(f"gymfleet/{name}-v0", render_mode="ansi").unwrapped
    check_env(made)  # warnings are errors here
    made.close()
    made.close()


def test_an_experts_episode_is_won_and_stays_inside_the_spaces(env: GymfleetEnv, url: str) -> None:
    observation, info = env.reset(seed=5)
    assert observation in env.observation_space
    rewards, scores, ended, truncated = [], [], False, False
    with SyncGatewayClient(url) as native:
        while not (ended or truncated):
            assert env.session is not None
            action = native.expert(env.session.session_id).action
            assert action in env.action_space
            observation, reward, ended, truncated, step_info = env.step(action)
            assert observation in env.observation_space
            assert step_info["task_id"] == info["task_id"]
            assert step_info["action_valid"]
            rewards.append(reward)
            scores.append(step_info["score"])

    assert scores[-1] == 1.0
    assert all(isinstance(reward, float) for reward in rewards)


def test_a_seed_fixes_task_and_episode(env: GymfleetEnv, url: str) -> None:
    other = GymfleetEnv(url, env.environment_spec.name)

    first = [env.reset(seed=3), *(env.reset() for _ in range(3))]
    again = [other.reset(seed=3), *(other.reset() for _ in range(3))]
    elsewhere = other.reset(seed=4)

    assert first == again
    assert len({info["task_id"] for _, info in first}) > 1, "each episode another task"
    assert elsewhere != first[0]
    other.close()


def test_options_name_the_task(url: str) -> None:
    env = GymfleetEnv(url, "maze", split="validation")
    with SyncGatewayClient(url) as native:
        spec = native.environment("maze")

    assert env.reset(seed=0)[1]["split"] == "validation"
    by_index = env.reset(options={"task_index": 4, "split": "test"})
    by_id = env.reset(options={"task_id": by_index[1]["task_id"]})
    harder = env.reset(options={"level": spec.levels[-1]})

    assert by_index[1]["split"] == "test"
    assert (by_id[0], by_id[1]["task_id"]) == (by_index[0], by_index[1]["task_id"])
    assert harder[1]["level"] == spec.levels[-1]
    with pytest.raises(ValueError, match="known: task_id, task_index, split, level"):
        env.reset(options={"difficulty": 1})
    env.close()


def test_only_the_given_tasks_are_played(url: str) -> None:
    with SyncGatewayClient(url) as native:
        level = native.environment("maze").default_level
    ids = [f"{level}.validation.1", f"{level}.test.2"]
    env = GymfleetEnv(url, "maze", task_ids=ids)

    assert {env.reset(seed=seed)[1]["task_id"] for seed in range(8)} == set(ids)
    env.close()
    with pytest.raises(ValueError, match="empty"):
        GymfleetEnv(url, "maze", task_ids=[])


def test_a_level_with_fewer_tasks_than_the_default_is_drawn_from_evenly(tmp_path: Path) -> None:
    server = gateway_fleet.env_server(tmp_path, LEVELS)
    with gateway_fleet.running(server):
        env, other = (GymfleetEnv(server.url, "levels", level="hard") for _ in range(2))

        drawn = [env.reset(seed=seed)[0] for seed in range(20)]

        assert set(drawn) == {f"hard-{number}" for number in range(COUNTS["hard"])}
        assert [other.reset(seed=seed)[0] for seed in reversed(range(20))] == drawn[::-1], "whatever was drawn before"
        with pytest.raises(ValueError, match="no tasks in split 'test'"):
            env.reset(options={"split": "test"})
        env.close()
        other.close()


def test_text_that_is_no_ascii_is_an_action_and_text_that_cannot_be_sent_is_not(url: str) -> None:
    env = GymfleetEnv(url, "maze")
    env.reset(seed=0)

    assert env.step("nach Süden → 南")[4]["action_valid"] is False
    assert "nach Süden → 南" in env.action_space
    assert "\ud800" not in env.action_space
    assert "x" * 4096 in env.action_space
    assert "x" * 4097 not in env.action_space
    assert 5 not in env.action_space
    with pytest.raises(ActionTooLarge):
        env.step("x" * 4097)
    assert env.step("move up")[4]["task_id"], "a refused action took no step"
    env.close()


def test_a_step_needs_an_episode(url: str) -> None:
    env = GymfleetEnv(url, "maze", render_mode="ansi")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("move up")

    observation, _ = env.reset()
    assert env.render() == observation
    with pytest.raises(ValueError, match="ansi"):
        GymfleetEnv(url, "maze", render_mode="human")
    env.close()


def test_sessions_do_not_pile_up(server: ServiceProcess, tmp_path: Path) -> None:
    small = gateway_fleet.env_server(tmp_path, "maze", max_sessions="2")
    with gateway_fleet.running(small):  # without a gateway: an env server speaks the same API
        env = GymfleetEnv(small.url, "maze")
        vector = GymfleetVectorEnv(small.url, "maze", 1)
        for _ in range(4):
            env.reset()
            vector.reset()
        env.close()
        vector.close()
        with SyncGatewayClient(small.url) as native:
            vector = GymfleetVectorEnv(small.url, "maze", 2)
            vector.reset()
            vector.close()
            assert native.environments()[0].name == "maze"


def test_a_lost_session_is_an_error_until_reset(tmp_path: Path) -> None:
    server = gateway_fleet.env_server(tmp_path, "maze")
    gateway = gateway_fleet.gateway(tmp_path, [server.url])
    with gateway_fleet.running(server, gateway):
        env, vector = GymfleetEnv(gateway.url, "maze"), GymfleetVectorEnv(gateway.url, "maze", 2)
        env.reset(seed=0)
        vector.reset(seed=0)
        server.kill()
        server.start()
        server.wait_ready()
        _wait_until_ready(gateway.url)

        for _ in range(2):
            with pytest.raises(SessionLost):
                env.step("move up")
            with pytest.raises(SessionLost) as lost:
                vector.step(["move up", "move up"])
        assert lost.value.__notes__ == ["sub-environments that failed: 0, 1"]
        env.reset(seed=0)
        vector.reset(seed=0)
        assert env.step("move up")[4]["task_id"] == vector.step(["move up"] * 2)[4]["task_id"][0]
        env.close()
        vector.close()


def _wait_until_ready(gateway_url: str) -> None:
    client = httpx.Client(transport=httpx.HTTPTransport(retries=1), trust_env=False, timeout=30)
    deadline = time.monotonic() + gateway_fleet.START_TIMEOUT_S
    with client:
        while not client.get(f"{gateway_url}/readyz").is_success:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize("env", [pytest.param("wordle", id="terminates"), pytest.param("levels", id="is truncated")])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_the_vector_env_plays_what_gymnasiums_own_would(url: str, mode: AutoresetMode, env: str) -> None:
    """Against `SyncVectorEnv` over single adapters: an independent implementation of the autoreset."""
    count = 3
    ours = GymfleetVectorEnv(url, env, count, autoreset_mode=mode)
    theirs = SyncVectorEnv([lambda: GymfleetEnv(url, env)] * count, autoreset_mode=mode)
    assert ours.metadata["autoreset_mode"] is mode
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space

    assert _same(ours.reset(seed=11), theirs.reset(seed=11))
    ends = 0
    for turn in range(16):  # an episode of Wordle has 6 turns, one of the other 3: two ends and more
        actions = tuple("crane" if turn % 2 else f"{place} ?" for place in range(count))
        mine, reference = ours.step(actions), theirs.step(actions)
        assert _same(mine, reference)
        assert mine[0] in ours.observation_space
        ends += int((mine[2] | mine[3]).sum())
    assert ends >= 2 * count
    ours.close()
    theirs.close()


def _same(mine: Any, reference: Any) -> bool:
    if isinstance(mine, np.ndarray) and mine.dtype == object:
        return bool(np.array_equal(mine, reference))
    if isinstance(mine, dict):
        return mine.keys() == reference.keys() and all(_same(mine[key], reference[key]) for key in mine)
    if isinstance(mine, tuple):
        return len(mine) == len(reference) and all(map(_same, mine, reference))
    return bool(data_equivalence(mine, reference, exact=True))


def test_without_autoreset_the_mask_says_what_begins_anew(url: str) -> None:
    vector = GymfleetVectorEnv(url, "wordle", 2, autoreset_mode=AutoresetMode.DISABLED)
    first, _ = vector.reset(seed=1)
    vector.step(["crane", "crane"])

    observations, infos = vector.reset(options={"reset_mask": np.array([False, True])})
    vector.step(["slate", "slate"])

    assert observations[0] != first[0], "still where its step had led"
    assert list(infos["_task_id"]) == [False, True]
    with pytest.raises(ValueError, match="reset_mask"):
        vector.reset(options={"reset_mask": [True, False]})
    ended = False
    while not ended:
        *_, terminations, truncations, _ = vector.step(["slate", "slate"])
        ended = bool((terminations | truncations).any())
    with pytest.raises(gymnasium.error.ResetNeeded):
        vector.step(["slate", "slate"])
    vector.close()


def test_when_one_fails_the_others_keep_their_results(url: str) -> None:
    vector = GymfleetVectorEnv(url, "wordle", 2)
    vector.reset(seed=1)
    session = vector._slots[1].session
    assert session is not None
    with SyncGatewayClient(url) as native:
        native.step(session.session_id, 0, "crane")
        native.step(session.session_id, 1, "crane")  # behind the adapter's back
        with pytest.raises(StepOutOfOrder) as failed:
            vector.step(["slate", "slate"])
        first = vector._slots[0].session
        assert first is not None
        assert native.get(first.session_id).index == 1, "it was stepped"

        vector.reset(options={"reset_mask": np.array([False, True])})
        *_, infos = vector.step(["slate", "slate"])

        assert native.get(first.session_id).index == 1, "and the same step again is the same step"
    assert failed.value.__notes__ == ["sub-environments that failed: 1"]
    assert list(infos["_score"]) == [True, True]
    vector.close()


def test_registered_environments_make_vectors_and_do_not_show_the_key(url: str) -> None:
    register(url, api_key="a secret")

    vector = gymnasium.make_vec("gymfleet/maze-v0", num_envs=2, vectorization_mode="vector_entry_point")
    observations, _ = vector.reset(seed=0)

    assert len(observations) == 2
    assert "a secret" not in repr(gymnasium.spec("gymfleet/maze-v0"))
    vector.close()
