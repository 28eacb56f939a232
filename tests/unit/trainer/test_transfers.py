"""Where versions lie: on the disk, or in shared memory that has room for three of them."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from gymfleet_contracts.recipe import RecipeError
from gymfleet_kit.shared_weights import SHARED_MEMORY, HeldFolder
from gymfleet_trainer.model.policy_model import PolicyModel
from gymfleet_trainer.publish.transfers import transfer_of
from gymfleet_trainer.publish.transfers.broadcast import Broadcast
from gymfleet_trainer.publish.transfers.shared_memory import SharedMemory

from tests.fixtures.scored import make_recipe
from tests.models import build_tiny_model

SHARED = {"transfer": "shared_memory"}


@pytest.fixture
def run_id() -> Iterator[str]:
    name = f"test-{secrets.token_hex(4)}"
    yield name
    assert not (SHARED_MEMORY / f"gymfleet-weights-{name}").exists(), "it was swept"


def test_versions_lie_on_the_disk_unless_the_recipe_says_otherwise(tmp_path: Path) -> None:
    adapter = make_recipe(publish=SHARED, model={"path": "base", "lora": {}})

    assert transfer_of(make_recipe(), tmp_path / "weights", "run", "nowhere").root == tmp_path / "weights"
    adapted = transfer_of(adapter, tmp_path / "weights", "run", "nowhere")
    assert adapted.root == tmp_path / "weights", "an adapter is a file"


def test_what_is_sent_is_written_to_the_runs_directory_first(tmp_path: Path) -> None:
    transfer = transfer_of(make_recipe(publish={"transfer": "broadcast"}), tmp_path / "weights", "run", "nowhere")

    assert isinstance(transfer, Broadcast)
    assert transfer.root == tmp_path / "weights"


def test_adapters_are_not_sent() -> None:
    with pytest.raises(ValueError, match=r'"broadcast" sends whole weights, and \[model\.lora\] .* give "disk"'):
        make_recipe(publish={"transfer": "broadcast"}, model={"path": "base", "lora": {}})


def test_a_recipe_puts_versions_into_shared_memory(tmp_path: Path, run_id: str) -> None:
    source = build_tiny_model(tmp_path / "model", tie_embeddings=True, seed=0)

    transfer = transfer_of(make_recipe(publish=SHARED), tmp_path / "weights", run_id, str(source))

    assert transfer.root == SHARED_MEMORY / f"gymfleet-weights-{run_id}"
    assert transfer.root.is_dir()
    transfer.close()
    assert not transfer.root.exists()


def test_room_is_needed_for_three_versions_of_the_engines_dtype(
    tmp_path: Path, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = build_tiny_model(tmp_path / "model", tie_embeddings=True, seed=0)
    numbers = sum(parameter.numel() for parameter in PolicyModel.from_pretrained(source).parameters())
    sizes: list[int] = []

    def noted(run: str, size_bytes: int) -> SharedMemory:
        sizes.append(size_bytes)
        return SharedMemory(run, size_bytes)

    monkeypatch.setattr("gymfleet_trainer.publish.transfers.SharedMemory", noted)
    for dtype in ("float32", "bfloat16"):
        recipe = make_recipe(publish=SHARED, inference={"dtype": dtype})
        transfer_of(recipe, tmp_path, run_id, str(source)).close()

    assert sizes == [4 * numbers, 2 * numbers]


def test_too_little_memory_is_refused_in_a_line_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"has \d+ MiB left, and three versions take 3221225472; .*disk") as refused:
        SharedMemory("run", 1 << 50, tmp_path)

    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_what_the_run_has_there_already_counts_as_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = SharedMemory("run", 1, tmp_path)
    (first.root / "v000001").mkdir()
    (first.root / "v000001" / "model.safetensors").write_bytes(bytes(100))
    keeper = HeldFolder.of(first.root)  # a rollout service, while the run is resumed
    assert keeper is not None
    first.close()

    class Room:
        f_bavail, f_frsize = 200, 1

    monkeypatch.setattr("os.statvfs", lambda _: Room)
    second = SharedMemory("run", 100, tmp_path)
    assert (second.root / "v000001" / "model.safetensors").is_file()
    with pytest.raises(RecipeError, match="three versions"):
        SharedMemory("other", 100, tmp_path)


def test_workers_of_a_cluster_may_be_anywhere(tmp_path: Path, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = build_tiny_model(tmp_path / "model", tie_embeddings=True, seed=0)
    recipe = make_recipe(publish=SHARED, trainer={"workers": 2})
    transfer_of(recipe, tmp_path, run_id, str(source)).close()
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    transfer_of(make_recipe(publish=SHARED), tmp_path, run_id, str(source)).close()

    with pytest.raises(RecipeError, match='may be on any node of RAY_ADDRESS; give "disk"'):
        transfer_of(recipe, tmp_path, run_id, str(source))


def test_no_shared_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r'shared_memory": .*/none is not there to be written; .*"disk"'):
        SharedMemory("run", 1, tmp_path / "none")


def test_a_new_run_sweeps_what_a_killed_one_left(tmp_path: Path) -> None:
    HeldFolder.made("killed", tmp_path).let_go()
    living = HeldFolder.made("living", tmp_path)

    transfer = SharedMemory("run", 1, tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["gymfleet-weights-living", "gymfleet-weights-run"]
    transfer.close()
    assert list(tmp_path.iterdir()) == [living.path]
