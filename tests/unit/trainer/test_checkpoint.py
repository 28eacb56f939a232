import asyncio
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gymfleet_trainer.errors import CheckpointFailed, RunDirectoryError
from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.run.checkpoint import Checkpoints
from gymfleet_trainer.run.lifecycle import _restore
from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.run.torch_thread import TorchThread

from tests.fixtures.scored import RUN_ID, make_recipe
from tests.models import build_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"), tie_embeddings=True, seed=0)


def make_state(**fields: object) -> RunState:
    return RunState.model_validate({"run_id": RUN_ID, "recipe_hash": "h", **fields})


def writes(text: str) -> object:
    def write(directory: Path) -> None:
        (directory / "weights").write_text(text)

    return write


def save(checkpoints: Checkpoints, text: str, **fields: object) -> Path:
    last = checkpoints.latest()
    state = make_state(serial=last[1].serial if last else 0, **fields)
    return checkpoints.save(state, writes(text))  # type: ignore[arg-type]


def test_the_last_checkpoint_is_found_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.latest() is None

    save(checkpoints, "one", step=1, trained=["a"])
    save(checkpoints, "two", step=2, trained=["a", "b"])

    last = Checkpoints(tmp_path, keep=2).latest()
    assert last is not None
    assert (last[0] / "weights").read_text() == "two"
    assert (last[1].step, last[1].trained, last[1].serial) == (2, ["a", "b"], 2)


@pytest.mark.parametrize("keep", [1, 2, 3, 4, 7, 20])
def test_as_many_of_the_last_are_kept_as_asked_for(tmp_path: Path, keep: int) -> None:
    checkpoints = Checkpoints(tmp_path, keep=keep)

    for number in range(1, 10):
        save(checkpoints, str(number))

        kept = sorted(p.name for p in tmp_path.iterdir() if p.name != "latest")
        assert kept == [f"checkpoint-{serial:06d}" for serial in range(max(1, number - keep + 1), number + 1)]


KILLED = """
import os, pathlib, sys
from gymfleet_trainer.run.checkpoint import Checkpoints
from gymfleet_trainer.run.state import RunState

place, moment = pathlib.Path(sys.argv[1]), sys.argv[2]
checkpoints = Checkpoints(place, keep=2)
state = checkpoints.latest()[1]
state.step = 2

def die(*_):
    os.kill(os.getpid(), 9)

def write(directory):
    (directory / "weights").write_text("half")
    if moment == "while writing":
        die()
    (directory / "weights").write_text("two")

original = pathlib.Path.rename
def rename(self, target):
    if moment == "before the rename" and self.name.startswith(".writing"):
        die()
    result = original(self, target)
    if moment == "after the rename" and self.name.startswith(".writing"):
        die()
    return result
pathlib.Path.rename = rename

replace = pathlib.Path.replace
def replaced(self, target):
    if moment == "before the pointer" and pathlib.Path(target).name == "latest":
        die()
    return replace(self, target)
pathlib.Path.replace = replaced
checkpoints.save(state, write)
"""


@pytest.mark.parametrize(
    "moment", ["while writing", "before the rename", "after the rename", "before the pointer", "never"]
)
def test_whenever_the_process_dies_latest_names_a_whole_checkpoint(tmp_path: Path, moment: str) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    save(checkpoints, "one", step=1)

    died = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), moment], check=False, timeout=60)

    assert died.returncode == (0 if moment == "never" else -9)
    last = checkpoints.latest()
    assert last is not None
    assert (last[1].step, (last[0] / "weights").read_text()) == ((2, "two") if moment == "never" else (1, "one"))
    checkpoints.sweep()
    save(checkpoints, "three", step=3)
    again = checkpoints.latest()
    assert again is not None
    assert (again[0] / "weights").read_text() == "three"
    assert not list(tmp_path.glob(".writing-*"))


def test_a_full_disk_is_named_and_the_old_checkpoint_stays(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    save(checkpoints, "one", step=1)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)

    # A real failing write: the kernel answers EFBIG beyond the limit (Python ignores SIGXFSZ).
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, old[1]))
    try:
        with pytest.raises(CheckpointFailed) as failure:
            save(checkpoints, "x" * 100_000, step=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)

    message = str(failure.value)
    assert str(tmp_path) in message
    assert "File too large" in message
    assert "checkpoint-000001) is intact" in message
    assert "\n" not in message
    last = checkpoints.latest()
    assert last is not None
    assert (last[1].step, (last[0] / "weights").read_text()) == (1, "one")
    assert not list(tmp_path.glob(".writing-*")), "the partial one is gone, so that there is room again"


def test_a_published_version_is_remembered_with_its_weights_only(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    save(checkpoints, "one", age=3)

    assert checkpoints.note_version(17, age=3)
    assert not checkpoints.note_version(18, age=4), "weights that no checkpoint holds"

    last = checkpoints.latest()
    assert last is not None
    assert (last[1].ages, last[1].version) == ({17: 3}, 17)


def test_what_was_begun_is_the_last_checkpoint_only_once_it_is_finished(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    save(checkpoints, "one", step=1)
    state = make_state(serial=1, step=2, dropped={"before": "stale"})
    checkpoints.begin(state, lambda directory: None)
    state.step, state.dropped["later"] = 3, "stale"

    def finish() -> None:
        last = checkpoints.latest()
        assert last is not None
        assert last[1].step == 1, "it is not there before it is written"
        (tmp_path / ".writing-000002" / "weights").write_text("two")

    path = checkpoints.commit(finish)

    last = checkpoints.latest()
    assert last is not None
    assert (last[0], (path / "weights").read_text()) == (path, "two")
    assert (last[1].step, last[1].dropped, last[1].serial, state.serial) == (2, {"before": "stale"}, 2, 2)


def test_a_version_that_is_published_while_its_weights_are_written_is_known(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    save(checkpoints, "one", age=3)
    checkpoints.begin(make_state(serial=1, age=4), lambda directory: None)

    assert checkpoints.note_version(18, age=4)

    before = checkpoints.latest()
    assert before is not None
    assert before[1].ages == {}, "it holds other weights"
    checkpoints.commit(lambda: None)
    last = checkpoints.latest()
    assert last is not None
    assert (last[1].ages, last[1].version) == ({18: 4}, 18)


def test_what_was_abandoned_becomes_no_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    save(checkpoints, "one", step=1)
    checkpoints.begin(make_state(serial=1, step=2), lambda directory: None)

    with pytest.raises(ValueError, match="checkpoint-000002 was abandoned"):
        checkpoints.commit(checkpoints.abandon)

    last = checkpoints.latest()
    assert last is not None
    assert last[1].step == 1


def test_a_write_that_fails_in_the_background_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    save(checkpoints, "one", step=1)
    checkpoints.begin(make_state(serial=1, step=2), lambda directory: None)

    def finish() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointFailed, match=r"checkpoint-000001\) is intact"):
        checkpoints.commit(finish)

    assert not list(tmp_path.glob(".writing-*"))


def test_amending_changes_the_state_and_refuses_other_weights(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    save(checkpoints, "one", age=3)

    checkpoints.amend(make_state(age=3, serial=1, dropped={"g": "stale"}))
    with pytest.raises(ValueError, match="other weights"):
        checkpoints.amend(make_state(age=4))

    last = checkpoints.latest()
    assert last is not None
    assert last[1].dropped == {"g": "stale"}


@pytest.mark.parametrize("damaged", ["latest", "checkpoint-000001/state.json"])
@pytest.mark.parametrize("content", [b"", b"\0\0\0", b"\xff\xfe{}"])
def test_a_file_that_is_no_text_is_named(tmp_path: Path, damaged: str, content: bytes) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    save(checkpoints, "one")
    (tmp_path / damaged).write_bytes(content)

    with pytest.raises(RunDirectoryError, match=r"which cannot be read \(.*; restore it, or write the name of another"):
        checkpoints.latest()


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [halved, emptied, zeroed, Path.unlink])
@pytest.mark.parametrize("file", ["model/model.safetensors", "model/config.json", "optimizer.pt"])
def test_a_checkpoint_whose_weights_cannot_be_loaded_is_named(
    tmp_path: Path, tiny: Path, file: str, damage: Callable[[Path], None]
) -> None:
    recipe, directory = make_recipe(), RunDirectory(tmp_path)
    checkpoints = Checkpoints(directory.checkpoints, keep=2)

    async def restored() -> None:
        with TorchThread(1) as worker:
            await _restore(recipe, directory, checkpoints, worker, RUN_ID, str(tiny), LocalLearner)

    asyncio.run(restored())  # the first checkpoint
    asyncio.run(restored())
    damage(directory.checkpoints / "checkpoint-000001" / file)

    with pytest.raises(
        RunDirectoryError, match=r"names checkpoint-000001, which cannot be read \(.+\); restore it, or"
    ):
        asyncio.run(restored())


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    path = save(checkpoints, "one")
    (path / "state.json").write_text(json.dumps({"run_id": 3}))

    with pytest.raises(RunDirectoryError, match=r"checkpoint-000001, which cannot be read"):
        checkpoints.latest()
