import json
import math
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from gymfleet_kit.run_events import read_events
from gymfleet_trainer.errors import RunDirectoryError
from gymfleet_trainer.run import run_directory
from gymfleet_trainer.run.progress import Reporter
from gymfleet_trainer.run.run_directory import RunDirectory, recipe_hash, write_atomically

from tests.fixtures.scored import make_recipe, make_scored


@pytest.fixture
def recipe_path(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text("# as written\n")
    return path


def test_a_run_keeps_its_id_and_its_recipe(tmp_path: Path, recipe_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    with directory:
        first = directory.claim(make_recipe(), recipe_path)
        again = directory.claim(make_recipe(), recipe_path)

    assert first == again
    assert first.startswith("tiny-")
    assert (tmp_path / "run" / "recipe.toml").read_text() == "# as written\n"


def test_two_directories_never_share_an_id(tmp_path: Path, recipe_path: Path) -> None:
    ids = set()
    for name in ("a", "b"):
        with RunDirectory(tmp_path / name) as directory:
            ids.add(directory.claim(make_recipe(), recipe_path))

    assert len(ids) == 2


def test_another_recipe_is_refused_by_name(tmp_path: Path, recipe_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as directory:
        directory.claim(make_recipe(), recipe_path)
        with pytest.raises(RunDirectoryError, match=r"another recipe \(tiny, hash .*another run directory"):
            directory.claim(make_recipe(seed=1), recipe_path)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second trainer waits for the first one's end a moment only."""
    monkeypatch.setattr(run_directory, "_LOCK_S", 0.2)


def test_a_second_trainer_waits_for_one_that_is_about_to_end(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path / "run")
    first.lock()
    ending = threading.Timer(0.3, first.__exit__)
    ending.start()

    with RunDirectory(tmp_path / "run"):
        ending.join()


@pytest.mark.usefixtures("hasty")
def test_a_second_trainer_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    second = RunDirectory(tmp_path / "run")
    with RunDirectory(tmp_path / "run"), pytest.raises(RunDirectoryError, match="another process is training"):
        second.__enter__()

    with second:
        pass


LEFT_WRITING = """
import sys, threading
from gymfleet_trainer import main
from gymfleet_trainer.learning.background_write import BackgroundWrite
from gymfleet_trainer.run import plan

ended = threading.Event()

def write():
    ended.wait()
    print("writing", flush=True)
    sys.stdin.read()

def interrupted(_):
    BackgroundWrite(write, lambda: None)
    raise KeyboardInterrupt

plan.stages_of = interrupted
try:
    main.main(["run", sys.argv[1], "--run-dir", sys.argv[2]])
finally:
    ended.set()
"""


@pytest.mark.usefixtures("hasty")
def test_a_trainer_keeps_the_directory_as_long_as_a_thread_of_it_writes(tmp_path: Path) -> None:
    recipe, run_dir = tmp_path / "recipe.toml", tmp_path / "run"
    recipe.write_text(
        """name = "tiny"
        environments = [{ name = "maze" }]
        model = { scratch = {} }
        stages = [{ kind = "measure", num_tasks = 1 }]
        """
    )

    with subprocess.Popen(
        [sys.executable, "-c", LEFT_WRITING, str(recipe), str(run_dir)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as trainer:  # fmt: skip
        assert trainer.stdin is not None
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "writing\n", "its main thread is done with it"
        with pytest.raises(RunDirectoryError, match="another process is training"):
            RunDirectory(run_dir).lock()
        trainer.stdin.close()

    with RunDirectory(run_dir):
        pass


def test_the_hash_is_of_the_meaning() -> None:
    assert recipe_hash(make_recipe()) == recipe_hash(make_recipe(seed=0))
    assert recipe_hash(make_recipe()) != recipe_hash(make_recipe(seed=1))


def test_what_was_written_after_the_checkpoint_is_cut_off(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as directory:
        directory.metric("rl_step", step=1)
        offsets = directory.offsets()
        directory.metric("rl_step", step=2)
        directory.trajectories("train", [make_scored()])
        directory.truncate(offsets)
        directory.metric("rl_step", step=2)

    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert (tmp_path / "run" / "trajectories" / "train.jsonl").read_text() == ""


def test_a_file_shorter_than_the_checkpoint_saw_is_not_padded(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as directory:
        directory.metric("rl_step", step=1)
        size = directory.offsets()["metrics.jsonl"]
        directory.truncate({"metrics.jsonl": 10 * size})

    assert (tmp_path / "run" / "metrics.jsonl").stat().st_size == size


def test_metrics_are_json_even_where_a_figure_is_not_a_number(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as directory:
        directory.metric("rl_step", loss=math.nan, ratio=math.inf, reward=0.5)

    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text(), parse_constant=pytest.fail)
    assert (line["loss"], line["ratio"], line["reward"], line["kind"]) == (None, None, 0.5, "rl_step")


def test_what_a_stage_left_is_read_again(tmp_path: Path) -> None:
    left = [make_scored("collect.t000000", sample) for sample in range(3)]

    with RunDirectory(tmp_path / "run") as directory:
        directory.trajectories("repeat1.collect", left)

        assert directory.episodes("repeat1.collect") == tmp_path / "run/trajectories/repeat1.collect.jsonl"
        assert directory.read_records(directory.episodes("repeat1.collect")) == left


def test_a_damaged_file_of_episodes_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(f'{make_scored().model_dump_json()}\n{{"trajectory": {{}}}}\n')

    with pytest.raises(RunDirectoryError, match=r"other\.jsonl, line 2: no episode of ours: trajectory\.") as caught:
        RunDirectory(tmp_path).read_records(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"], ids=["absent", "no text"])
def test_a_file_of_episodes_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "other.jsonl"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(RunDirectoryError, match=r"the records in .*other\.jsonl cannot be read: "):
        RunDirectory(tmp_path).read_records(path)


def test_what_the_stages_left_is_listed_as_of_the_last_one(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)

    directory.stages([{"name": "collect"}])
    directory.stages([{"name": "collect"}, {"name": "sft", "model": directory.relative(tmp_path / "models" / "sft")}])

    assert json.loads((tmp_path / "stages.json").read_text()) == [
        {"name": "collect"}, {"name": "sft", "model": "models/sft"},
    ]  # fmt: skip


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))

    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "new")

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_progress_says_how_far_and_how_long(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as directory:
        reporter = Reporter(directory, "run-1")
        reporter.begin("rl", step=2, total=10, unit="steps")
        assert reporter.current.eta_s is None, "nothing was measured yet"
        reporter.advance(4, "half", metrics={"success": 0.25})

    written = json.loads((tmp_path / "run" / "progress.json").read_text())
    assert (written["phase"], written["step"], written["total"], written["unit"]) == ("rl", 4, 10, "steps")
    assert written["eta_s"] == pytest.approx(6 / written["rate"])
    assert written["metrics"] == {"success": 0.25}


def test_metrics_and_episodes_are_events_too_which_are_never_cut(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as directory:
        directory.trajectories("before", [make_scored(sample=0), make_scored(sample=1)])
        offsets = directory.offsets()
        directory.metric("rl_step", stage="reinforce", step=1, loss=math.nan)
        directory.trajectories("before", [make_scored(sample=1, total=0.5)])
        directory.truncate(offsets)
    with RunDirectory(tmp_path) as directory:
        directory.event("run_resumed", {"step": 0})

    events = read_events(tmp_path, 0, 10)
    lines = (tmp_path / "trajectories" / "before.jsonl").read_bytes().splitlines(keepends=True)

    assert [event.kind for event in events] == ["episodes", "rl_step", "episodes", "run_resumed"]
    assert events[1].data == {"step": 1, "loss": None}
    assert events[1].stage == "reinforce"
    for line, (name, place) in zip(lines, events[0].places.items(), strict=True):
        assert json.loads(line)["trajectory"]["trajectory_id"] == name
        whole = (tmp_path / place.file).read_bytes()
        assert whole[place.offset : place.offset + place.length] == line
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def said(name: str, path: Path) -> None:
    (path / "said").write_text(name)


def test_a_reward_service_finds_the_last_model_of_a_stage_behind_one_link(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    link = tmp_path / "run" / "reward-models" / "rm"
    for name in ("loop1.rm", "loop2.rm", "loop2.rm"):
        directory.save_model(directory.models / name, partial(said, name))

        directory.link_reward_model(directory.models / name)

        assert (link / "said").read_text() == name
    assert [path.name for path in link.parent.iterdir()] == ["rm"]
    (tmp_path / "run").rename(tmp_path / "moved")
    assert (tmp_path / "moved" / "reward-models" / "rm" / "said").read_text() == "loop2.rm"


def test_a_model_is_durable_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state that says that a stage left it is synced, too, and may not outlive it."""
    synced: list[str] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        sync(descriptor)
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fsync", noted)
    directory = RunDirectory(tmp_path)

    directory.save_model(directory.models / "sft", lambda place: (place / "weights").touch())

    assert synced == ["weights", ".sft.writing", "models"]
