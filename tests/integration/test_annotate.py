"""`gymfleet data annotate`: stored episodes get their rewards from a real reward service, each once, none is lost."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymfleet_cli.annotating import groups, scoring
from gymfleet_cli.annotating.service import reward_service
from gymfleet_cli.main import run
from gymfleet_contracts.session import TaskRef
from gymfleet_contracts.trajectory import FinishReason, ScoredTrajectory, Status, Trajectory
from gymfleet_kit.data.arrow import SCHEMAS
from gymfleet_kit.data.columns import row_of
from gymfleet_kit.sealing import Opener, new_private_key

from tests.fixtures.chat_server import ChatServer
from tests.fixtures.paths import ROOT
from tests.fixtures.ports import free_port
from tests.fixtures.trajectories import make_trajectory

Capture = pytest.CaptureFixture[str]
GYMFLEET = str(Path(sys.executable).with_name("gymfleet"))
DEADLINE_S = 60.0
RANK = """
from gymfleet_reward.component import Component, ComponentOptions


class Rank(Component[ComponentOptions]):
    per = "group"

    def score_batch(self, episodes):
        return [sum(other.score < one.score for other in episodes) for one in episodes]
"""
PICKY = """
import time
from pathlib import Path

from gymfleet_reward.component import Component, ComponentError, ComponentOptions


class Picky(Component[ComponentOptions]):
    def score(self, episode):
        with Path(__file__).with_name("asked").open("a") as log:
            log.write(episode.trajectory_id + "\\n")
        if episode.task.task_id == "bad" and not Path(__file__).with_name("mended").exists():
            raise ComponentError("the task is bad")
        if episode.task.task_id == "slow":
            time.sleep(0.05)
        return 0.25
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("components")
    (directory / "rank.py").write_text(RANK)
    (directory / "picky.py").write_text(PICKY)
    return directory


@pytest.fixture(scope="module")
def service(place: Path) -> Iterator[tuple[str, str]]:
    """The command's own service, once for all tests."""
    with reward_service(None, (f"{place}/picky.py", f"{place}/rank.py")) as (url, key):
        assert key is not None
        yield url, key


@pytest.fixture
def to(service: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The option that names the service."""
    monkeypatch.setenv("GYMFLEET_API_KEY", service[1])
    return ["--reward", service[0]]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two groups of two, whose episodes stand in turn; one of an episode that was not played to its end."""
    found = [
        episode("g0", 1, score=0.0),
        episode("g1", 0, score=0.5),
        episode("g0", 0, score=1.0),
        episode("g1", 1, status=Status.ENV_ERROR, turns=(), error="gone", finish_reason=FinishReason.ERROR, score=0.0),
    ]
    return written(tmp_path / "in.jsonl", found)


def episode(group_id: str, sample: int, *, score: float, task_id: str = "t", **changes: Any) -> Trajectory:
    task = TaskRef(env="maze", split="train", level="small", task_id=task_id)
    return make_trajectory(
        (3, 2), group_id=group_id, sample=sample, score=score, success=score >= 1, task=task, **changes
    )


def written(path: Path, trajectories: list[Trajectory]) -> Path:
    lines = [ScoredTrajectory(trajectory=one, reward=None).model_dump_json() for one in trajectories]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def annotated(path: Path) -> dict[str, ScoredTrajectory]:
    found = [ScoredTrajectory.model_validate_json(line) for line in path.read_bytes().splitlines()]
    names = [f"{one.trajectory.group_id}/{one.trajectory.sample}" for one in found]
    assert len(set(names)) == len(names), "none is there twice"
    return dict(zip(names, found, strict=True))


def annotate(source: Path, out: Path, to: list[str], *more: str) -> int:
    return run(["data", "annotate", str(source), str(out), *to, *more])


def totals(path: Path) -> dict[str, float | None]:
    return {name: None if one.reward is None else one.reward.total for name, one in annotated(path).items()}


def test_each_episode_gets_the_sum_of_the_components(
    source: Path, to: list[str], tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "out.jsonl"
    components = ["--component", "goal", "--component", "length"]

    assert annotate(source, out, to, *components, "--set", "length.weight=-0.5", "--set", "length.min_tokens=4") == 0

    # Replies of three and two tokens, where four are wanted: (1 + 2) / 2 tokens too few, half of it lost.
    assert totals(out) == {"g0/0": 1.0 - 0.75, "g0/1": -1.0 - 0.75, "g1/0": -1.0 - 0.75, "g1/1": None}
    found = annotated(out)
    assert found["g0/1"].trajectory == episode("g0", 1, score=0.0), "a failed episode is kept as it was"
    assert found["g1/1"].reward_error is None
    assert "out.jsonl: 4 of 4 episodes · 3 rewarded · 1 not played to their end" in capsys.readouterr().out


def test_a_group_is_seen_whole_wherever_its_episodes_stand(
    source: Path, to: list[str], place: Path, tmp_path: Path
) -> None:
    more = [episode("g2", sample, score=1 / (1 + sample)) for sample in (2, 0, 1)]
    lines = written(tmp_path / "more.jsonl", more).read_text().splitlines(keepends=True)
    first = source.read_text().splitlines(keepends=True)
    source.write_text("".join([lines[0], first[0], lines[1], first[2], lines[2]]))

    assert annotate(source, tmp_path / "out.jsonl", to, "--component", f"{place}/rank.py", "--batch", "1") == 0

    assert totals(tmp_path / "out.jsonl") == {"g0/0": 1.0, "g0/1": 0.0, "g2/0": 2.0, "g2/1": 1.0, "g2/2": 0.0}


def test_part_of_a_group_has_no_reward_where_the_whole_is_wanted(
    to: list[str], place: Path, tmp_path: Path, capsys: Capture
) -> None:
    episodes = [episode("g0", sample, score=0.0) for sample in (0, 2)] + [episode("g1", 0, score=1.0)]
    source = written(tmp_path / "in.jsonl", episodes)

    assert annotate(source, tmp_path / "out.jsonl", to, "--component", f"{place}/rank.py") == 1

    assert totals(tmp_path / "out.jsonl") == {"g0/0": None, "g0/2": None, "g1/0": 0.0}
    reason = "it has 3 episodes, here are the samples [0, 2]"
    assert reason in str(annotated(tmp_path / "out.jsonl")["g0/2"].reward_error)
    said = capsys.readouterr()
    assert "2 episodes have no reward, the last one because: group: " in said.err
    assert "2 without a reward by group" in said.out
    assert annotate(source, tmp_path / "goal.jsonl", to, "--component", "goal") == 0, "which needs no whole groups"


def test_a_component_that_fails_gives_no_reward_and_says_why(
    to: list[str], place: Path, tmp_path: Path, capsys: Capture
) -> None:
    episodes = [episode(f"g{n}", 0, score=1.0, task_id="bad" if n == 1 else "t") for n in range(3)]
    source = written(tmp_path / "in.jsonl", episodes)

    assert annotate(source, tmp_path / "out.jsonl", to, "--component", f"{place}/picky.py", "--component", "goal") == 1

    assert totals(tmp_path / "out.jsonl") == {"g0/0": 1.25, "g1/0": None, "g2/0": 1.25}
    assert annotated(tmp_path / "out.jsonl")["g1/0"].reward_error == "picky: ComponentError: the task is bad"
    said = capsys.readouterr()
    assert "2 rewarded · 1 without a reward by picky" in said.out
    assert "1 episodes have no reward, the last one because: picky: ComponentError: the task is bad" in said.err


def test_an_episode_for_which_a_component_failed_is_scored_again(
    to: list[str], place: Path, tmp_path: Path, capsys: Capture
) -> None:
    episodes = [episode(f"g{n}", 0, score=1.0, task_id="bad" if n < 2 else "t") for n in range(4)]
    source, out = written(tmp_path / "in.jsonl", episodes[1:]), tmp_path / "out.jsonl"
    components = ("--component", f"{place}/picky.py")
    assert annotate(written(tmp_path / "other.jsonl", episodes[:1]), out, to, *components) == 1
    assert annotate(source, out, to, *components) == 1
    assert annotate(source, out, to, *components) == 1, "as long as it fails"
    assert "scored again, since a component failed: 1 episodes" in " ".join(capsys.readouterr().err.split())
    asked = (place / "asked").read_text().count(episodes[2].trajectory_id)

    (place / "mended").touch()
    try:
        assert annotate(source, out, to, *components) == 0
    finally:
        (place / "mended").unlink()

    assert totals(out) == {"g0/0": None, "g1/0": 0.25, "g2/0": 0.25, "g3/0": 0.25}, "the other file's stays as it was"
    assert (place / "asked").read_text().count(episodes[2].trajectory_id) == asked
    assert list(tmp_path.glob("*.kept")) == []


def test_a_killed_annotation_goes_on(to: list[str], place: Path, tmp_path: Path) -> None:
    source = written(tmp_path / "in.jsonl", [episode(f"g{n}", 0, score=1.0, task_id="slow") for n in range(60)])
    out = tmp_path / "out.jsonl"
    (place / "asked").unlink(missing_ok=True)
    more = ["--component", f"{place}/picky.py", "--batch", "4", "--concurrency", "1"]
    with subprocess.Popen([GYMFLEET, "data", "annotate", str(source), str(out), *to, *more]) as process:
        deadline = time.monotonic() + DEADLINE_S
        while not out.is_file() or out.read_bytes().count(b"\n") < 8:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_S)
    time.sleep(0.5)  # for what the service was asked
    kept = out.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    out.write_bytes(kept[:-9])
    num_kept = kept.count(b"\n") - 1
    assert num_kept < 60
    (place / "asked").unlink()

    assert annotate(source, out, to, *more) == 0

    assert out.read_bytes().startswith(b"".join(kept.splitlines(keepends=True)[:-1]))
    assert len(totals(out)) == 60
    assert set(totals(out).values()) == {0.25}
    assert len((place / "asked").read_text().splitlines()) == 60 - num_kept, "what was there is not scored again"


def test_tables_are_read_as_lines_are(source: Path, to: list[str], tmp_path: Path) -> None:
    rows = [row_of(ScoredTrajectory.model_validate_json(line)) for line in source.read_bytes().splitlines()]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMAS["episodes"]), tmp_path / "in.parquet")

    assert annotate(source, tmp_path / "lines.jsonl", to, "--component", "goal") == 0
    assert annotate(tmp_path / "in.parquet", tmp_path / "rows.jsonl", to, "--component", "goal") == 0

    assert (tmp_path / "lines.jsonl").read_bytes() == (tmp_path / "rows.jsonl").read_bytes()


RECIPE = """
name = "scores"
environments = [{{ name = "maze", reward = {{ goal = {{ success = 3.0 }} }} }}{more}]
model = {{ path = "model" }}
reward = {{ goal = {{ success = 7.0 }} }}
stages = [{{ kind = "reinforce", algorithm = "grpo", steps = 1 }}]
"""


def test_a_recipe_says_how_each_environment_is_scored(
    source: Path, to: list[str], tmp_path: Path, capsys: Capture
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.format(more=', { name = "wordle" }'))
    lines = source.read_text().replace('"env":"maze"', '"env":"wordle"', 1)
    source.write_text(lines)  # g0/1, which failed

    assert annotate(source, tmp_path / "out.jsonl", to, "--recipe", str(recipe)) == 0
    assert totals(tmp_path / "out.jsonl")["g0/0"] == 3.0
    source.write_text(lines.replace('"score":0.0,"success":false', '"score":1.0,"success":true', 1))
    assert annotate(source, tmp_path / "solved.jsonl", to, "--recipe", str(recipe)) == 0
    assert totals(tmp_path / "solved.jsonl")["g0/1"] == 7.0
    recipe.write_text(RECIPE.format(more=""))
    assert annotate(source, tmp_path / "other.jsonl", to, "--recipe", str(recipe)) == 2
    assert "the recipe has no environment wordle" in capsys.readouterr().err


def test_sealed_data_needs_the_key(to: list[str], tmp_path: Path) -> None:
    source = written(tmp_path / "in.jsonl", [episode("g0", 0, score=1.0, sealed="AAAA")])
    more = ["--component", "exact_match", "--set", "exact_match.ground_truth_from=private.answer"]

    assert annotate(source, tmp_path / "out.jsonl", to, *more) == 1

    reason = annotated(tmp_path / "out.jsonl")["g0/0"].reward_error
    assert reason is not None
    assert "sealed: give the service GYMFLEET_REWARD_SEAL_KEY" in reason


def test_what_was_sealed_while_it_was_collected_is_opened_for_the_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (ROOT / "docs/adding-an-environment.md").read_text("utf-8")
    (block,) = [one for one in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "class Sums" in one]
    (tmp_path / "sums.py").write_text(block)
    private = new_private_key()
    monkeypatch.setenv("GYMFLEET_ENV_SEAL_KEY", Opener(private).public_key)
    monkeypatch.setenv("GYMFLEET_REWARD_SEAL_KEY", private)

    def adds(body: dict[str, Any]) -> str:
        asked = re.findall(r"(\d+) \+ (\d+) = ", body["messages"][0]["content"])[-1]
        return f"Thought: I add. Action: {sum(map(int, asked))}"

    with ChatServer() as model:
        model.rule = adds
        more = ["--model-url", model.url, "--model", "adder", "--episodes", "1"]
        assert run(["collect", f"{tmp_path}/sums.py", f"{tmp_path}/in.jsonl", *more]) == 0
    options = ["--component", "exact_match", "--set", "exact_match.ground_truth_from=private.answer"]
    assert run(["data", "annotate", f"{tmp_path}/in.jsonl", f"{tmp_path}/out.jsonl", *options]) == 0

    assert list(totals(tmp_path / "out.jsonl").values()) == [1.0]


@pytest.mark.parametrize(
    ("more", "code", "told"),
    [
        pytest.param([], 2, "give either --component", id="nothing"),
        pytest.param(["--component", "goal", "--recipe", "x.toml"], 2, "give either --component", id="both"),
        pytest.param(["--component", "gaol"], 2, "gaol", id="unknown component"),
        pytest.param(["--component", "goal", "--set", "length.weight=1"], 2, "of one of goal", id="another's option"),
        pytest.param(["--component", "goal", "--set", "goal.wait=1"], 2, "wait", id="unknown option"),
    ],
)
def test_what_cannot_be_scored_is_refused(
    more: list[str], code: int, told: str, source: Path, to: list[str], tmp_path: Path, capsys: Capture
) -> None:
    assert annotate(source, tmp_path / "out.jsonl", to, *more) == code
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists() or (tmp_path / "out.jsonl").read_bytes() == b""


def test_files_that_do_not_fit_are_refused(source: Path, to: list[str], tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out.jsonl"
    assert annotate(source, out, to, "--component", "goal") == 0
    before = out.read_bytes()

    assert annotate(source, out, to, "--component", "goal", "--set", "goal.weight=2") == 2
    assert "episodes that were scored otherwise" in capsys.readouterr().err
    assert annotate(source, source, to, "--component", "goal") == 2
    assert annotate(source, tmp_path / "out.parquet", to, "--component", "goal") == 2
    assert annotate(tmp_path / "none.jsonl", out, to, "--component", "goal") == 2
    assert out.read_bytes() == before

    said = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
    (tmp_path / "said.jsonl").write_text(said)
    capsys.readouterr()
    assert annotate(tmp_path / "said.jsonl", tmp_path / "o2.jsonl", to, "--component", "goal") == 1
    assert "said.jsonl, line 1: no episode" in capsys.readouterr().err
    source.write_text(source.read_text() + source.read_text().splitlines()[0] + "\n")
    assert annotate(source, tmp_path / "o3.jsonl", to, "--component", "goal") == 1
    assert "in.jsonl, line 5: the episode run/g0/1 is there twice" in capsys.readouterr().err


def test_memory_is_bounded(
    source: Path, to: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(groups, "MAX_HELD_CHARS", 400)

    assert annotate(source, tmp_path / "out.jsonl", to, "--component", "goal") == 1

    assert "in.jsonl, line 2: 2 groups have begun and are not whole: sort the file by group_id" in (
        capsys.readouterr().err
    )


def test_a_service_that_is_away_loses_nothing(
    source: Path, to: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(scoring, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(scoring, "_LONGEST_PAUSE_S", 0.02)
    out = tmp_path / "out.jsonl"

    away = ["--reward", f"http://127.0.0.1:{free_port()}"]
    assert annotate(source, out, away, "--component", "goal") == 1
    assert "the reward service at http://127.0.0.1:" in capsys.readouterr().err
    monkeypatch.setenv("GYMFLEET_API_KEY", "another")
    assert annotate(source, out, to, "--component", "goal") == 1
    assert "refuses with status 401" in capsys.readouterr().err

    assert out.read_bytes() == b"", "a failure is no reward"


def test_the_command_of_the_page_does_what_the_page_says(source: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs/data-annotate.md").read_text("utf-8")
    command, told = re.findall(r"^```\w*\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    source.rename(tmp_path / "episodes.jsonl")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    done = subprocess.run(
        ["bash", "-euc", command], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        env={**os.environ, "PATH": path},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout == told
    told_rewards = json.loads((tmp_path / "rewarded.jsonl.reward.json").read_text())
    assert told_rewards[""]["efficiency"]["weight"] == 0.5
