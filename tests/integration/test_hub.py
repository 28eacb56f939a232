"""Data and checkpoints on the hub: what is pushed is what comes back, and nothing that a stranger put there is run."""

import io
import json
import pickle
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from gymfleet_cli.main import run
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.data.columns import record_of
from gymfleet_kit.data.reading import records
from safetensors.numpy import load_file, save_file

from tests.fixtures.hub_server import LFS_BYTES, TOKEN, HubServer, Repo
from tests.fixtures.paths import ROOT
from tests.fixtures.ports import free_port
from tests.fixtures.trajectories import make_trajectory

Capture = pytest.CaptureFixture[str]
# The library's own upload by LFS has it from its HTTP client.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # as `make test` has it, so that no test asks the real one
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # the stand-in speaks LFS
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def episodes(tmp_path: Path) -> Path:
    path = tmp_path / "episodes.jsonl"
    found = [make_trajectory((3, 2), sample=n, success=n > 0, score=float(n > 0)) for n in range(40)]
    lines = (ScoredTrajectory(trajectory=one, reward=None).model_dump_json() for one in found)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "checkpoint-000004"
    (directory / "model").mkdir(parents=True)
    (directory / "model/config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    (directory / "model/tokenizer.json").write_text("{}")
    save_file({"w": np.arange(LFS_BYTES, dtype=np.float32)}, directory / "model/model.safetensors")
    (directory / "model/optimizer.pt").write_bytes(pickle.dumps([1]))
    return directory


def test_a_data_set_comes_back_as_it_was(hub: HubServer, episodes: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run(["data", "push", str(episodes), "lab/maze-episodes"]) == 0
    assert f"{hub.url}/datasets/lab/maze-episodes: 40 episodes as train" in capsys.readouterr().out
    repo = hub.repos["datasets/lab/maze-episodes"]
    assert repo.private
    assert sorted(repo.files) == ["README.md", "data/train.parquet"]
    assert any(call.startswith("PUT /lfs/") for call in hub.calls), "the table went by LFS"

    assert run(["data", "pull", "lab/maze-episodes", str(tmp_path / "back")]) == 0

    table = tmp_path / "back/data/train.parquet"
    assert sorted(path.name for path in (tmp_path / "back").rglob("*") if path.is_file()) == ["train.parquet"]
    found = [record_of(raw) for _, raw in records(table)]
    assert found == [ScoredTrajectory.model_validate_json(line) for line in episodes.read_bytes().splitlines()]
    assert "left out: README.md" in capsys.readouterr().err
    assert not list(tmp_path.glob("back.partial"))


def test_the_card_says_what_there_is(hub: HubServer, episodes: Path) -> None:
    assert run(["data", "push", str(episodes), "lab/e"]) == 0
    assert run(["data", "push", str(episodes), "lab/e", "--split", "validation"]) == 0

    card = hub.repos["datasets/lab/e"].files["README.md"].decode()
    assert card.startswith(
        "---\nconfigs:\n- config_name: default\n  data_files:\n"
        "  - split: train\n    path: data/train.parquet\n"
        "  - split: validation\n    path: data/validation.parquet\n"
    )
    for line in ("| records | 40 |", "| of textcraft | 40 |", "| solved | 39 |", "| not solved | 1 |"):
        assert line in card
    columns = pq.read_schema(io.BytesIO(hub.repos["datasets/lab/e"].files["data/train.parquet"])).names
    assert [name for name in columns if f"| `{name}` |" not in card] == []


def test_a_public_place_gets_nothing_that_should_be_private(hub: HubServer, episodes: Path, capsys: Capture) -> None:
    hub.repos["datasets/lab/open"] = Repo(private=False)

    assert run(["data", "push", str(episodes), "lab/open"]) == 1
    assert "is there already and is public: add --public" in capsys.readouterr().err
    assert hub.repos["datasets/lab/open"].files == {}
    assert run(["data", "push", str(episodes), "lab/open", "--public"]) == 0
    assert run(["data", "push", str(episodes), "lab/new", "--public"]) == 0
    assert not hub.repos["datasets/lab/new"].private


def test_a_checkpoint_comes_back_without_its_pickles(
    hub: HubServer, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert run(["models", "push", str(model), "lab/policy"]) == 0
    repo = hub.repos["models/lab/policy"]
    assert sorted(repo.files) == ["README.md", "config.json", "model.safetensors", "tokenizer.json"]
    assert "Qwen3ForCausalLM; " in repo.files["README.md"].decode()
    assert repo.private
    assert "left out: optimizer.pt" in capsys.readouterr().err
    repo.files |= {"pytorch_model.bin": b"x", "modeling.py": b"import os", "sub/model.safetensors": b""}

    assert run(["models", "pull", "lab/policy", str(tmp_path / "model")]) == 0

    assert sorted(path.name for path in (tmp_path / "model").rglob("*") if path.is_file()) == [
        "config.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    assert np.array_equal(load_file(tmp_path / "model/model.safetensors")["w"], np.arange(LFS_BYTES))
    assert "left out: README.md, modeling.py, pytorch_model.bin" in capsys.readouterr().err


def test_a_run_has_its_last_model_pushed(hub: HubServer, model: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    (run_dir / "checkpoints").mkdir(parents=True)
    model.rename(run_dir / "checkpoints" / model.name)
    (run_dir / "checkpoints/latest").write_text(f"{model.name}\n")

    assert run(["models", "push", str(run_dir), "lab/policy"]) == 0

    assert "model.safetensors" in hub.repos["models/lab/policy"].files


@pytest.mark.parametrize(
    ("files", "told"),
    [
        pytest.param({"../evil.json": b"{}"}, "could lead out of its directory", id="upwards"),
        pytest.param({"/etc/evil.json": b"{}"}, "could lead out of its directory", id="absolute"),
        pytest.param({"a\\..\\b.json": b"{}"}, "could lead out of its directory", id="backslash"),
        pytest.param({"model.safetensors": pickle.dumps([1])}, "is no safetensors file", id="a pickle by that name"),
        pytest.param({"model.safetensors": b"\xff" * 16}, "is no safetensors file", id="a header without an end"),
        pytest.param(
            {"config.json": b'{"auto_map": {"AutoModel": "x.Y"}}'}, "names code of the model's own", id="code"
        ),
        pytest.param({"config.json": b"{"}, "config.json is no JSON", id="no JSON"),
    ],
)
def test_what_strangers_put_there_is_refused(
    files: dict[str, bytes], told: str, hub: HubServer, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert run(["models", "push", str(model), "lab/policy"]) == 0
    hub.repos["models/lab/policy"].files |= files

    assert run(["models", "pull", "lab/policy", str(tmp_path / "deep" / "model")]) == 1

    assert told in capsys.readouterr().err
    assert not (tmp_path / "deep" / "model").exists()
    assert not list(tmp_path.rglob("evil.json"))


def test_sizes_are_limited_and_believed_only_when_they_are_true(
    hub: HubServer, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert run(["models", "push", str(model), "lab/policy"]) == 0

    assert run(["models", "pull", "lab/policy", str(tmp_path / "m"), "--max-bytes", "5000"]) == 1
    assert "--max-bytes allows 5,000" in capsys.readouterr().err
    hub.sizes["model.safetensors"] = 10
    assert run(["models", "pull", "lab/policy", str(tmp_path / "m"), "--max-bytes", "5000"]) == 1
    assert "was said to have 10" in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_failures_are_one_line_without_the_token(
    hub: HubServer, episodes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert run(["data", "pull", "lab/none", str(tmp_path / "x")]) == 1
    assert "lab/none" in capsys.readouterr().err
    hub.repos["models/lab/pickled"] = Repo(private=True, files={"pytorch_model.bin": b"x"})
    assert run(["models", "pull", "lab/pickled", str(tmp_path / "x")]) == 1
    assert "weights in pickles are not fetched" in capsys.readouterr().err
    assert run(["data", "push", str(episodes), "noowner"]) == 2
    assert run(["data", "push", str(episodes), "lab/.."]) == 2
    assert run(["models", "push", str(tmp_path), "lab/policy"]) == 2
    assert run(["data", "pull", "lab/none", str(tmp_path)]) == 2
    assert run(["data", "push", str(episodes), "lab/e", "--split", "../x"]) == 2
    capsys.readouterr()
    monkeypatch.setenv("HF_TOKEN", "hf_wrong_secret")
    assert run(["data", "push", str(episodes), "lab/e"]) == 1
    said = capsys.readouterr()
    assert "401" in said.err
    assert "hf_wrong_secret" not in said.err + said.out
    assert said.err.count("\n") == 1
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    assert run(["data", "pull", "lab/e", str(tmp_path / "x")]) == 1


def test_the_commands_of_the_page_do_what_it_says(
    hub: HubServer, episodes: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/hugging-face.md").read_text("utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "runs").mkdir()
    model.rename(tmp_path / "runs/maze")
    monkeypatch.chdir(tmp_path)

    for command in "".join(blocks).splitlines():
        words = shlex.split(command, comments=True)
        if words[0] == "gymfleet":
            assert run(words[1:]) == 0, command

    assert (tmp_path / "policy/config.json").is_file()
    assert json.loads((tmp_path / "policy/config.json").read_text())
    assert (tmp_path / "data/data/train.parquet").is_file()
