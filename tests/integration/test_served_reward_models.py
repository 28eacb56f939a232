"""Reward models behind vLLM's pooling server: a scripted one, and a real one against the embedded model."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.reward import ScoreRequest
from gymfleet_contracts.trajectory import ScoredTrajectory, Trajectory
from gymfleet_reward.composer import Scorer
from gymfleet_reward.models.reward_models import RewardModels
from gymfleet_reward.models.tables import EmbeddedTable, ServedTable, UnusableModel
from gymfleet_reward.settings import RewardSettings
from pydantic import ValidationError

from tests.fixtures.chat_server import ChatServer, Scripted
from tests.fixtures.paths import ROOT
from tests.fixtures.rewards import make_spec
from tests.fixtures.trajectories import make_trajectory, make_turn
from tests.models import build_reward_model, build_tokenizer
from tests.vllm_server import pooling_server


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymfleet_reward.evaluation._FIRST_PAUSE_S", 0.0)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer("/classify", "/pooling") as server:
        yield server


def base(server: ChatServer) -> str:
    return server.url.removesuffix("/v1/chat/completions")


def score(table: dict[str, Any], episodes: list[Trajectory], **options: Any) -> list[ScoredTrajectory]:
    component = "process_reward_model" if table.get("scores") == "turns" else "reward_model"
    models = RewardModels(RewardSettings.model_validate({"models": {"rm": {"kind": "vllm", **table}}}).models)
    models.start()
    scorer = Scorer(models=models)
    spec = make_spec(goal={"enabled": False}, **{component: {"model": "rm", **options}})
    try:
        return scorer.score([ScoreRequest(trajectory=one, reward=spec) for one in episodes])
    finally:
        scorer.close()
        models.close()


def classes(*values: float) -> Scripted:
    rows = [
        {"index": place, "label": "LABEL_0", "probs": [value], "num_classes": 1} for place, value in enumerate(values)
    ]
    return Scripted(json.dumps({"data": rows[::-1]}).encode())  # in whatever order


def test_episodes_are_asked_for_in_batches_with_tokens_and_key(
    server: ChatServer, tokenizer: Path, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("secret\n")
    server.script.extend([classes(0.5, -2.0), classes(3.0)])
    table = {
        "url": base(server), "model": "judge-7b", "tokenizer": str(tokenizer), "key_file": str(tmp_path / "key"),
        "batch_size": 2,
    }  # fmt: skip

    found = score(table, [make_trajectory(sample=sample) for sample in range(3)])

    assert [one.reward and one.reward.total for one in found] == [0.5, -2.0, 3.0]
    assert [(len(asked["input"]), asked["model"], asked["use_activation"]) for asked in server.asked] == [
        (2, "judge-7b", False), (1, "judge-7b", False),
    ]  # fmt: skip
    assert all(isinstance(token, int) for token in server.asked[0]["input"][0])
    assert set(server.keys) == {"Bearer secret"}


def test_turns_are_read_at_their_ends(server: ChatServer, tokenizer: Path) -> None:
    table = {"url": base(server), "model": "m", "tokenizer": str(tokenizer), "scores": "turns"}
    turns = (make_turn(1, observation="a", text="b"), make_turn(1, observation="c", text="d"))
    models = RewardModels(RewardSettings.model_validate({"models": {"rm": {"kind": "vllm", **table}}}).models)
    with models._entries["rm"].held() as entry:
        transcript = entry.transcripts.by_turns(make_trajectory(turns=turns))
    values = [[float(place)] for place in range(len(transcript.ids))]
    server.script.append(Scripted(json.dumps({"data": [{"index": 0, "data": values}]}).encode()))

    (one,) = score(table, [make_trajectory(turns=turns)])

    assert one.reward is not None, one.reward_error
    assert [row[-1] for row in one.reward.token_rewards] == [float(end) for end in transcript.ends]
    assert transcript.ends[1] == len(values) - 1
    assert server.asked[0]["task"] == "token_classify"
    models.close()


@pytest.mark.parametrize(
    ("answers", "reason", "num_asked"),
    [
        ([Scripted(status=500)] * 3, "ServerFailed: the server of 'rm' answered 500", 3),
        ([Scripted(status=429)] * 3, "ServerFailed: the server of 'rm' answered 429", 3),
        ([Scripted(status=400)], "ComponentError: the server of 'rm' answered 400", 1),
        ([Scripted(status=307, headers={"Location": "http://127.0.0.1:1"})], "answered 307", 1),
        ([Scripted(b"{}")] * 3, "the server of 'rm' answered no numbers", 3),
        ([Scripted(b'{"data": [{"index": 0, "probs": [NaN]}]}')] * 3, "answered no numbers", 3),
        ([Scripted(b'{"data": [{"index": 0, "probs": ["1"]}]}')] * 3, "answered no numbers", 3),
        ([Scripted(b'{"data": [{"index": 0, "probs": [1e999]}]}')] * 3, "no", 3),
        ([Scripted(b'{"data": []}')] * 3, "answered for 0 of 1 transcripts", 3),
        ([Scripted(b'{"data": [{"index": 1, "probs": [1]}]}')] * 3, "answered for 1 of 1 transcripts", 3),
        ([Scripted(b'{"data": [{"index": 0, "probs": [0.5, 0.5]}]}')], "the reward model 'rm' has 2 labels", 1),
        ([Scripted(b" " * (2 << 20))] * 3, "answered more than ", 3),
        ([Scripted(classes(1.0).body, cut=True)] * 3, "is away: ", 3),
        ([Scripted(classes(1.0).body, delay_s=1.0)] * 3, "is away: ReadTimeout", 3),
    ],
)
def test_what_is_no_answer_is_a_failure_in_one_line(
    server: ChatServer, tokenizer: Path, answers: list[Scripted], reason: str, num_asked: int
) -> None:
    server.script.extend(answers)
    table = {"url": base(server), "model": "m", "tokenizer": str(tokenizer), "timeout_s": 0.4}

    (one,) = score(table, [make_trajectory()])

    assert one.reward is None
    assert reason in str(one.reward_error)
    assert "\n" not in str(one.reward_error)
    assert len(server.asked) == num_asked


def test_an_answer_without_tokens_is_a_failure_of_the_server(server: ChatServer, tokenizer: Path) -> None:
    server.script.extend([Scripted(b'{"data": [{"index": 0, "data": []}]}')] * 3)
    table = {"url": base(server), "model": "m", "tokenizer": str(tokenizer), "scores": "turns"}

    (one,) = score(table, [make_trajectory()])

    assert "ServerFailed: the server of 'rm' answered for 0 of " in str(one.reward_error)


def test_an_outage_that_passes_costs_nothing(server: ChatServer, tokenizer: Path) -> None:
    server.script.extend([Scripted(status=503), classes(1.25)])

    (one,) = score({"url": base(server), "model": "m", "tokenizer": str(tokenizer)}, [make_trajectory()])

    assert one.reward is not None, one.reward_error
    assert one.reward.total == 1.25


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"url": "http://user:pass@host"}, "put the key into key_file"),
        ({"kind": "vlm"}, "does not match any of the expected tags"),
        ({"modle": "m"}, "Extra inputs are not permitted"),
        ({"step_tag": "<s>"}, 'step_tag is for scores = "turns"'),
        ({"max_tokens": 0}, "greater than or equal to 1"),
    ],
)
def test_a_table_that_says_nonsense_is_refused(tokenizer: Path, change: dict[str, Any], reason: str) -> None:
    table = {"kind": "vllm", "url": "http://h", "model": "m", "tokenizer": str(tokenizer), **change}

    with pytest.raises(ValidationError, match=reason):
        RewardSettings.model_validate({"models": {"rm": table}})


def test_the_tables_of_the_docs_are_tables() -> None:
    page = (ROOT / "docs/reward-models.md").read_text("utf-8")
    tables = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL)]

    found = [RewardSettings.model_validate({"models": one}).models for one in tables]

    assert [{name: table.kind for name, table in one.items()} for one in found] == [
        {"helpful": "embedded"}, {"bradley_terry": "embedded"}, {"steps": "vllm"},
    ]  # fmt: skip
    kinds = (EmbeddedTable, ServedTable)
    named = set(re.findall(r"^\| `(\w+)` \|", page.split("## Settings")[1], re.MULTILINE))
    assert named == {key for kind in kinds for key in kind.model_fields}


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "cannot be read: No such file"), ("a b", "holds no key"), ("é", "not ASCII")]
)
def test_a_key_that_cannot_be_used_is_one_line_without_it(
    tokenizer: Path, tmp_path: Path, content: str | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "key").write_text(content)
    table = {
        "kind": "vllm", "url": "http://h", "model": "m", "tokenizer": str(tokenizer), "key_file": str(tmp_path / "key"),
    }  # fmt: skip

    with pytest.raises(UnusableModel, match=reason):
        RewardModels(RewardSettings.model_validate({"models": {"rm": table}}).models)


def test_a_service_whose_model_cannot_be_used_ends_with_one_line(tmp_path: Path) -> None:
    table = {"rm": {"kind": "embedded", "path": str(tmp_path)}}
    done = subprocess.run(
        [sys.executable, "-m", "gymfleet_reward.main"],
        env={"GYMFLEET_REWARD_MODELS": json.dumps(table)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 2
    assert done.stderr.startswith(f"error: GYMFLEET_REWARD_MODELS: the reward model 'rm': {tmp_path}/tokenizer.json is")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.long
@pytest.mark.parametrize("turns", [False, True])
def test_vllm_says_what_the_embedded_model_says(tmp_path: Path, *, turns: bool) -> None:
    path = build_reward_model(tmp_path / "model", turns=turns, seed=3)
    scores = "turns" if turns else "episode"
    episodes = [make_trajectory((2,) * num_turns, sample=num_turns) for num_turns in (1, 3, 2)]
    common = {"scores": scores, "max_tokens": 512}
    embedded = RewardModels(
        RewardSettings.model_validate({"models": {"rm": {"kind": "embedded", "path": str(path), **common}}}).models
    )
    embedded.start()
    said = embedded.of_turns("rm", episodes) if turns else embedded.of_episodes("rm", episodes, cut_front=False)
    embedded.close()

    with pooling_server(path, tmp_path / "vllm.log", max_model_len=512) as url:
        table = {"url": url, "model": "judge-7b", "tokenizer": str(path), **common}
        found = score(table, episodes)
        (refused,) = score({**table, "model": "judge-8b"}, episodes[:1])

    for one, values in zip(found, said.numbers, strict=True):
        assert one.reward is not None, one.reward_error
        rewards = [row[-1] for row in one.reward.token_rewards] if turns else [one.reward.total]
        assert rewards == pytest.approx(list(values) if isinstance(values, tuple) else [values], abs=1e-4)
    assert "answered 404" in str(refused.reward_error)
