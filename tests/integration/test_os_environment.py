"""The OS environment: scoring in the sandbox, hostile actions, and neighbours on the same server."""

import json
import os
import random
import select
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from gymfleet_env_server.catalogue import EnvironmentUnavailable, load_entry
from gymfleet_envs.environment import EngineLost, Outcome
from gymfleet_envs.os.environment import ENVIRONMENT, OsInteraction
from gymfleet_envs.os.sandbox.bubblewrap import Bubblewrap
from gymfleet_envs.os.task import Match, OsTask, Script

from tests.conformance.env_server import EnvServer
from tests.fixtures.paths import SHARED_DATA

DATA = SHARED_DATA / "agentbench_os"
pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
COUNT = OsTask(
    "How many?",
    init=(Script("mkdir d; touch d/a d/b d/c"),),
    check=(None, "integer-match"),
    example=Script("ls d | wc -l"),
    plan=(("I count.", "ls d | wc -l"),),
)


def play(task: OsTask, *actions: str, seed: int = 0) -> list[Outcome]:
    environment = ENVIRONMENT()
    try:
        assert environment.reset(task, seed) == f"Now, my problem is:\n\n{task.description}"
        return [environment.step(action) for action in actions]
    finally:
        environment.close()


def test_an_episode_by_hand() -> None:
    outcomes = play(
        COUNT, "Think: look.\n\nAct: bash\n\n```bash\ncd d\nls\n```", "bash pwd", "hello", "bash true", "answer(3)"
    )

    assert [outcome.observation for outcome in outcomes[:2]] == [
        "The output of the OS:\n\na\nb\nc",
        "The output of the OS:\n\n/d",
    ]
    assert not outcomes[2].action_valid
    assert outcomes[2].observation.startswith("Invalid format.")
    assert outcomes[3].observation == "The output of the OS is empty."
    assert (outcomes[4].reward, outcomes[4].score, outcomes[4].terminated) == (1.0, 1.0, True)
    assert outcomes[0].info == {"exit_code": 0, "timed_out": False}


@pytest.mark.parametrize(
    ("task", "action", "score"),
    [
        (COUNT, "answer(4)", 0),
        (COUNT, "answer(three)", 0),
        (COUNT, "finish", 0),
        (OsTask("d", match=Match("x", strip=True)), "answer( x )", 1),
        (OsTask("d", match=Match("x")), "answer( x )", 0),
        (OsTask("d", match=Match("x")), "finish", 0),
        (OsTask("d", match=Match(regex="^[ab]+$")), "answer(abba)", 1),
        (OsTask("d", match=Match(regex="^[ab]+$")), "answer(abc)", 0),
        (OsTask("d", match=Match(regex="^[ab]+$")), "finish", 0),
        (OsTask("d", match=Match(regex="^\\w+ é$", strip=True)), "answer( ä é )", 1),
        (OsTask("d", check=(Script('[ "$1" = None ]'),)), "finish", 1),
        (OsTask("d", check=(Script('[ "$1" = a ] && echo b'), Script('[ "$2" = "b\n" ]'))), "answer(a)", 1),
        (OsTask("d", check=(Script("printf b"), Script('[ "$1$2" = ab ]'))), "answer(a)", 1),
        (OsTask("d", check=(Script("import sys; sys.exit(sys.argv[1] != 'a')", "python"),)), "answer(a)", 1),
        (OsTask("d", check=(Script("exit 1"), "string-match")), "answer(a)", 0),
        (OsTask("d", check=(Script("[ \"$1\" = '$(id)' ]"),)), "answer($(id))", 1),
        (OsTask("d", check=(None, "string-match"), example=Script("echo a; false")), "answer(a)", 0),
    ],
)
def test_scoring(task: OsTask, action: str, score: float) -> None:
    [outcome] = play(task, action)

    assert (outcome.terminated, outcome.score, outcome.reward) == (True, score, score)


def test_a_pattern_that_takes_for_ever_has_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OsInteraction, "options", OsInteraction.options.model_copy(update={"program_timeout_s": 2}))

    with pytest.raises(EngineLost, match="the search was stopped after 2 seconds"):
        play(OsTask("d", match=Match(regex="^(a+)+$")), f"answer({'a' * 40}b)")


def test_an_agents_python_does_not_search() -> None:
    fake = (
        "printf '#!/bin/true' > /usr/bin/python3; echo 'def search(*_): return 1' > re.py; cp re.py /usr/lib/python3/"
    )

    outcomes = play(OsTask("d", match=Match(regex="^[ab]+$")), f"bash {fake}", "answer(c)")

    assert outcomes[-1].score == 0


def test_preparation_draws_the_same_for_the_same_seed() -> None:
    task = OsTask("d", init=(Script("echo $RANDOM > n"),), match=Match("x"))

    first, second, third = (play(task, "bash cat n", seed=seed)[0].observation for seed in (7, 7, 8))

    assert first == second != third


def test_start_script_runs_on_in_the_background() -> None:
    task = OsTask("d", start="(while :; do echo tick >> /root/log; sleep 0.05; done) &", match=Match("x"))

    [outcome] = play(task, "bash until [ -s /root/log ]; do sleep 0.05; done; head -n 1 /root/log")

    assert outcome.observation == "The output of the OS:\n\ntick"


def test_long_output_is_cut_as_upstream_does() -> None:
    [outcome] = play(COUNT, "bash seq 100000")

    assert outcome.observation.endswith("\n[truncated because the output is too long]")
    assert len(outcome.observation) < 900


def test_time_limit_is_an_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OsInteraction, "options", OsInteraction.options.model_copy(update={"command_timeout_s": 0.3}))

    slow, after = play(COUNT, "bash sleep 100", "bash echo ok")

    assert slow.observation.endswith("[stopped: the command ran for more than 0.3 seconds]")
    assert slow.info == {"exit_code": None, "timed_out": True}
    assert after.observation == "The output of the OS:\n\nok"


def test_dead_sandbox_is_lost_and_never_a_reward() -> None:
    environment = ENVIRONMENT()
    environment.reset(COUNT, 0)
    assert isinstance(environment._sandbox, Bubblewrap)
    os.kill(environment._sandbox._room.pid, signal.SIGKILL)
    select.select([environment._sandbox._room.handle], [], [], 20)  # until then it may still answer

    with pytest.raises(EngineLost, match="the sandbox ended"):
        environment.step("answer(3)")


def test_unknown_option_and_missing_tree_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnavailable, match="it knows: backend, rootfs"):
        load_entry("os", {}, {"os": {"sandbox": "none"}})
    with pytest.raises(EnvironmentUnavailable, match="lacks its engine: bash is not in"):
        load_entry("os", {}, {"os": {"rootfs": str(tmp_path)}})
    load_entry("os", {})


def test_hostile_session_leaves_its_neighbour_alone(tmp_path: Path) -> None:
    hostile = [":(){ :|:& };:", "yes", "head -c 1G /dev/zero > /x", "kill -9 $$", "exec cat", "exit", "cat"]
    options = '{"os": {"command_timeout_s": 1, "memory_mib": 64}}'
    with (
        EnvServer(tmp_path, "os", shards=1, options=options) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        opened = [http.post("/v1/sessions", json={"env": "os", "task_index": 0}).json() for _ in range(2)]
        bad, good = (session["session_id"] for session in opened)

        def step(session_id: str, index: int, action: str) -> httpx.Response:
            return http.post(f"/v1/sessions/{session_id}/steps", json={"index": index, "action": action})

        with ThreadPoolExecutor(2) as threads:
            attack = threads.submit(lambda: [step(bad, i, f"bash {c}").status_code for i, c in enumerate(hostile)])
            calm = threads.submit(lambda: [step(good, i, "bash echo ok").json()["observation"] for i in range(6)])

            assert attack.result() == [200] * len(hostile)
            assert calm.result() == ["The output of the OS:\n\nok"] * 6
        assert step(good, 6, "x" * 1_000_000).status_code == 413
        assert (
            step(good, 6, "bash echo \u202e\x1b[31m日本語").json()["observation"]
            == "The output of the OS:\n\n\u202e日本語"
        )


def test_a_check_that_is_too_slow_loses_its_session_and_not_the_shard(tmp_path: Path) -> None:
    tasks = [{"description": "d", "evaluation": {"check": script}} for script in ("sleep 60", "exit 0")]
    (tmp_path / "os").mkdir()
    (tmp_path / "os" / "training.json").write_text(json.dumps(tasks))
    data, options = json.dumps({"os": str(tmp_path / "os")}), '{"os": {"program_timeout_s": 0.5}}'
    with (
        EnvServer(tmp_path, "os", data=data, options=options) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        opened = [
            http.post("/v1/sessions", json={"env": "os", "split": "train", "task_index": n}).json() for n in (0, 1)
        ]
        slow, quick = (session["session_id"] for session in opened)

        lost = http.post(f"/v1/sessions/{slow}/steps", json={"index": 0, "action": "answer(1)"})
        kept = http.post(f"/v1/sessions/{quick}/steps", json={"index": 0, "action": "answer(1)"})

    assert (lost.status_code, lost.json()["type"]) == (410, "/problems/session-lost")
    assert (kept.status_code, kept.json()["score"]) == (200, 1.0)


@pytest.mark.parametrize("data", [DATA] if DATA.is_dir() else [], ids=["upstream"])
def test_gold_scripts_pass_their_checks(data: Path) -> None:
    tasks = load_entry("os", {"os": data}).tasks
    chosen = random.Random(0).sample(range(1000), 40)

    def passes(index: int) -> bool:
        environment = ENVIRONMENT()
        environment.reset(tasks.by_index("train", "default", index).data, 0)
        try:
            while True:
                move = environment.expert()
                assert move is not None
                outcome = environment.step(move.action)
                if outcome.terminated:
                    return outcome.score == 1.0
        finally:
            environment.close()

    with ThreadPoolExecutor(2) as threads:
        assert sum(threads.map(passes, chosen)) >= 39
    load_entry("os", {})
