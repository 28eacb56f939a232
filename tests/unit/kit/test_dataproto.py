"""Episodes as verl's batch: every tensor of two small episodes by hand, and all of it back."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymfleet_cli.main import run
from gymfleet_contracts.trajectory import Reward, ScoredTrajectory, sampled_by
from gymfleet_kit.data import dataproto
from gymfleet_kit.data.dataproto import batch_of, episodes_of
from gymfleet_kit.data.reading import DataError
from safetensors.numpy import load_file, save_file

from tests.fixtures.paths import ROOT
from tests.fixtures.trajectories import make_trajectory, make_turn

Capture = pytest.CaptureFixture[str]


def turn(prompt: tuple[int, ...], reply: tuple[int, ...], logprobs: tuple[float, ...], **changes: Any) -> Any:
    return make_turn(
        len(reply), prompt_token_ids=prompt, response_token_ids=reply, response_logprobs=logprobs,
        policy_versions=sampled_by(0, len(reply)), **changes,
    )  # fmt: skip


def rewarded(rewards: tuple[tuple[float, ...], ...], **changes: Any) -> ScoredTrajectory:
    total = sum(map(sum, rewards))
    reward = Reward(total=total, components={}, allocation="last_token", token_rewards=rewards, scorers={})
    return ScoredTrajectory(trajectory=make_trajectory(**changes), reward=reward)


@pytest.fixture
def long() -> ScoredTrajectory:
    """Two turns: a reply of two tokens, an observation of one, a reply of three."""
    turns = (
        turn((11, 12, 13), (21, 22), (-0.5, -0.25)),
        turn((31,), (41, 42, 43), (-1.0, -2.0, -0.125)),
    )
    return rewarded(((0.0, 0.5), (0.0, 0.0, 1.0)), turns=turns)


@pytest.fixture
def short() -> ScoredTrajectory:
    return rewarded(((-1.0,),), sample=1, turns=(turn((51,), (61,), (-4.0,)),), success=False, score=0.0)


def test_every_tensor_of_two_episodes(long: ScoredTrajectory, short: ScoredTrajectory) -> None:
    batch = batch_of([long, short], pad_token_id=9)

    expected = {
        "prompts": [[11, 12, 13], [9, 9, 51]],
        "responses": [[21, 22, 31, 41, 42, 43], [61, 9, 9, 9, 9, 9]],
        "input_ids": [[11, 12, 13, 21, 22, 31, 41, 42, 43], [9, 9, 51, 61, 9, 9, 9, 9, 9]],
        "attention_mask": [[1, 1, 1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0, 0, 0, 0]],
        "position_ids": [[0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 0, 1, 1, 1, 1, 1, 1]],
        "response_mask": [[1, 1, 0, 1, 1, 1], [1, 0, 0, 0, 0, 0]],
        "rollout_log_probs": [[-0.5, -0.25, 0, -1.0, -2.0, -0.125], [-4.0, 0, 0, 0, 0, 0]],
        "token_level_scores": [[0, 0.5, 0, 0, 0, 1.0], [-1.0, 0, 0, 0, 0, 0]],
    }
    assert {name: array.tolist() for name, array in batch.tensors.items()} == expected
    floats = {"rollout_log_probs", "token_level_scores"}
    assert {name: array.dtype for name, array in batch.tensors.items()} == {
        name: np.float32 if name in floats else np.int64 for name in expected
    }


def test_columns_name_the_rows(long: ScoredTrajectory, short: ScoredTrajectory) -> None:
    columns = dict(batch_of([long, short]).columns)

    del columns["gymfleet_episode"]
    assert columns == {
        "uid": ["run/g0", "run/g0"], "data_source": ["textcraft"] * 2, "trajectory_id": ["run/g0/0", "run/g0/1"],
        "task_id": ["easy.train.0"] * 2, "split": ["train"] * 2, "success": [True, False], "reward": [1.5, -1.0],
        "__num_turns__": [2, 1], "sequence": [0, 0],
    }  # fmt: skip


def test_a_replaced_context_begins_a_row(long: ScoredTrajectory, short: ScoredTrajectory) -> None:
    turns = (*long.trajectory.turns, turn((71, 72), (81,), (-3.0,), context="replaced"))
    three = rewarded(((0.0, 0.5), (0.0, 0.0, 1.0), (2.0,)), turns=turns)

    batch = batch_of([three, short])

    assert batch.tensors["prompts"].tolist() == [[11, 12, 13], [0, 71, 72], [0, 0, 51]]
    assert batch.tensors["responses"][1].tolist() == [81, 0, 0, 0, 0, 0]
    assert batch.tensors["token_level_scores"][1].tolist() == [2.0, 0, 0, 0, 0, 0]
    assert batch.columns["sequence"] == [0, 1, 0]
    assert episodes_of(batch) == [three, short]


def test_what_is_written_is_read_back(long: ScoredTrajectory, short: ScoredTrajectory, tmp_path: Path) -> None:
    dataproto.write(batch_of([long, short], pad_token_id=7), tmp_path / "batch")

    batch = dataproto.read(tmp_path / "batch")

    assert sorted(path.name for path in (tmp_path / "batch").iterdir()) == [
        "batch.safetensors", "meta_info.json", "non_tensor_batch.json",
    ]  # fmt: skip
    assert batch.meta_info == {"pad_token_id": 7}
    assert episodes_of(batch) == [long, short]


def test_the_tensors_win(long: ScoredTrajectory, short: ScoredTrajectory) -> None:
    batch = batch_of([long, short])
    batch.tensors["token_level_scores"][0, 5] = 8.0
    batch.tensors["input_ids"][1, 3] = 62

    first, second = episodes_of(batch)

    assert first.reward is not None
    assert first.reward.token_rewards == ((0.0, 0.5), (0.0, 0.0, 8.0))
    assert second.trajectory.turns[0].response_token_ids == (62,)


def test_what_is_not_known_is_not_zero(long: ScoredTrajectory, short: ScoredTrajectory) -> None:
    unrewarded = long.model_copy(update={"reward": None})

    assert "token_level_scores" not in batch_of([unrewarded]).tensors
    with pytest.raises(DataError, match="run/g0/0 has no rewards, and others have"):
        batch_of([short, unrewarded])
    by_expert = ScoredTrajectory.model_validate(
        {
            "trajectory": long.trajectory.model_dump()
            | {"policy": {"model": "expert", "version_min": 0, "version_max": 0}, "turns": [
                one.model_dump() | {"response_logprobs": None, "policy_versions": ()} for one in long.trajectory.turns
            ]},
            "reward": long.reward and long.reward.model_dump(),
        }
    )  # fmt: skip
    assert "rollout_log_probs" not in batch_of([by_expert]).tensors
    assert episodes_of(batch_of([by_expert])) == [by_expert]
    with pytest.raises(DataError, match="has no log-probabilities"):
        batch_of([by_expert, short])


def test_episodes_without_tokens_are_refused() -> None:
    empty = ScoredTrajectory(trajectory=make_trajectory((0, 0)), reward=None)

    with pytest.raises(DataError, match="run/g0/0 has no tokens of its own model"):
        batch_of([empty])
    with pytest.raises(DataError, match="no episode"):
        batch_of([])


def test_a_batch_that_is_too_large_is_refused(long: ScoredTrajectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataproto, "MAX_TOKENS", 8)

    with pytest.raises(DataError, match="1 rows of 9 tokens are too many"):
        batch_of([long])


def _change(directory: Path, name: str, column: object) -> None:
    path = directory / "non_tensor_batch.json"
    columns = json.loads(path.read_text()) | {name: column}
    path.write_text(json.dumps({key: value for key, value in columns.items() if value is not None}))


def _shorten(directory: Path) -> None:
    tensors = load_file(directory / "batch.safetensors")
    save_file(
        {name: np.ascontiguousarray(array[:, :4]) for name, array in tensors.items()}, directory / "batch.safetensors"
    )


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        pytest.param(lambda d: (d / "batch.safetensors").unlink(), "cannot be read", id="no tensors"),
        pytest.param(lambda d: (d / "batch.safetensors").write_bytes(b"\x80\x04pickle"), "no tensors", id="a pickle"),
        pytest.param(lambda d: (d / "meta_info.json").write_text("[]"), "an object", id="no object"),
        pytest.param(lambda d: (d / "meta_info.json").write_text("{"), "no JSON", id="no JSON"),
        pytest.param(lambda d: _change(d, "uid", ["a"]), "different numbers of rows", id="a short column"),
        pytest.param(lambda d: _change(d, "uid", "ab"), "a column is a list", id="no list"),
        pytest.param(lambda d: _change(d, "gymfleet_episode", ["{}", None]), "does not fit", id="another episode"),
        pytest.param(lambda d: _change(d, "gymfleet_episode", [None, None]), "does not fit", id="no episode"),
        pytest.param(lambda d: _change(d, "gymfleet_episode", None), "its texts are not known", id="verl's own"),
        pytest.param(_shorten, "longer than its row", id="cut tensors"),
    ],
)
def test_what_others_wrote_is_checked(
    damage: Any, told: str, long: ScoredTrajectory, short: ScoredTrajectory, tmp_path: Path, capsys: Capture
) -> None:
    dataproto.write(batch_of([long, short]), tmp_path / "batch")
    damage(tmp_path / "batch")

    assert run(["data", "dataproto", str(tmp_path / "batch"), str(tmp_path / "back.jsonl")]) == 1

    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
    assert not (tmp_path / "back.jsonl").exists()


def test_the_command_goes_both_ways(
    long: ScoredTrajectory, short: ScoredTrajectory, tmp_path: Path, capsys: Capture
) -> None:
    source, batch, back = tmp_path / "in.jsonl", tmp_path / "batch", tmp_path / "back.jsonl"
    source.write_text(f"{long.model_dump_json()}\n{short.model_dump_json()}\n")

    assert run(["data", "dataproto", str(source), str(batch), "--pad-token-id", "3"]) == 0
    assert load_file(batch / "batch.safetensors")["prompts"].tolist() == [[11, 12, 13], [3, 3, 51]]
    assert run(["data", "dataproto", str(batch), str(back)]) == 0

    assert back.read_text() == source.read_text()
    assert "2 episodes" in capsys.readouterr().out
    assert run(["data", "dataproto", str(source), str(batch)]) == 2
    assert "is there already" in capsys.readouterr().err


def test_the_page_does_what_it_says(
    long: ScoredTrajectory,
    short: ScoredTrajectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    blocks = re.findall(
        r"^```(\w+)\n(.*?)^```", (ROOT / "docs/dataproto.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    (shell,) = [body for kind, body in blocks if kind == "sh"]
    (ours,) = [body for kind, body in blocks if kind == "python" and "gymfleet_kit" in body]
    (tmp_path / "episodes.jsonl").write_text(f"{long.model_dump_json()}\n{short.model_dump_json()}\n")
    monkeypatch.chdir(tmp_path)

    for command in shell.splitlines():
        assert run(shlex.split(command, comments=True)[1:]) == 0
    capsys.readouterr()
    exec(ours, {})  # noqa: S102 - the page's own text

    assert (tmp_path / "back.jsonl").read_text() == (tmp_path / "episodes.jsonl").read_text()
    assert capsys.readouterr().out == "[5 1] ['run/g0', 'run/g0']\nrun/g0/0 5\nrun/g0/1 1\n"
