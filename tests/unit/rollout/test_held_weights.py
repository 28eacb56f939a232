"""A rollout service holds the folder in shared memory that its live version lies in, and no other."""

from pathlib import Path

import pytest
import torch
from gymfleet_kit.shared_weights import HeldFolder, sweep
from gymfleet_rollout.errors import PolicyUpdateFailed
from gymfleet_rollout.held_weights import HeldWeights
from gymfleet_rollout.inference.base import WeightsRejected
from safetensors.torch import save_file

from tests.fixtures.numbered_engine import World


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    (tmp_path / "shm").mkdir()
    return tmp_path / "shm"


@pytest.fixture
async def world(tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    def weights(number: int) -> Path:
        """Version 0 on the disk; 1 and 2 of the first run, 3 of the second, 4 of one on another machine."""
        run = {0: tmp_path / "disk", 3: memory / "gymfleet-weights-b", 4: memory / "gymfleet-weights-far"}
        path = run.get(number, memory / "gymfleet-weights-a") / str(number)
        if number != 4:
            path.mkdir(parents=True, exist_ok=True)
            save_file({"w": torch.zeros(2)}, path / "model.safetensors")
        return path

    monkeypatch.setattr("gymfleet_rollout.policy.HeldWeights", lambda: HeldWeights(memory))
    world = World(weights)
    await world.policy.start()
    return world


def there(memory: Path) -> list[str]:
    return sorted(path.name for path in memory.iterdir())


def left(memory: Path) -> list[str]:
    """What is there after everyone sweeps."""
    sweep(memory)
    return there(memory)


async def test_the_live_versions_folder_is_held_until_another_run_publishes(world: World, memory: Path) -> None:
    for version in (1, 2):
        await world.policy.stage(world.body(version))
        assert left(memory) == ["gymfleet-weights-a"], "staged"
        await world.policy.commit(version)
        assert left(memory) == ["gymfleet-weights-a"], "live"

    await world.policy.stage(world.body(3))
    assert left(memory) == ["gymfleet-weights-a", "gymfleet-weights-b"], "one is staged, and the other may come back"
    await world.policy.commit(3)
    assert there(memory) == ["gymfleet-weights-b"], "swept by whoever had it last"

    await world.policy.close()
    assert there(memory) == []


async def test_a_refused_versions_folder_is_let_go(world: World, memory: Path) -> None:
    await world.policy.stage(world.body(1))
    await world.policy.refuse(1)

    assert there(memory) == []


async def test_a_folder_is_let_go_where_its_version_cannot_be_loaded(world: World, memory: Path) -> None:
    body = world.body(1)
    save_file({"v": torch.zeros(2)}, Path(body.weights_path) / "model.safetensors")

    with pytest.raises(PolicyUpdateFailed, match="lacks w"):
        await world.policy.stage(body)

    assert left(memory) == []


async def test_a_folder_is_let_go_where_an_engine_refuses_its_version(world: World, memory: Path) -> None:
    world.engines[0].load_failure = WeightsRejected("bucket 2 has another checksum")

    with pytest.raises(PolicyUpdateFailed, match="bucket 2 has another checksum"):
        await world.policy.stage(world.body(1))

    assert there(memory) == []


async def test_what_another_has_is_not_swept(world: World, memory: Path) -> None:
    body = world.body(1)
    trainer = HeldFolder.of(Path(body.weights_path).parent)
    await world.policy.stage(body)
    await world.policy.refuse(1)

    assert trainer is not None
    assert trainer.path.is_dir()


async def test_a_service_on_another_machine_says_what_would_be_right(world: World) -> None:
    with pytest.raises(
        PolicyUpdateFailed, match=r"shared memory that this service sees.*elsewhere .disk. is right"
    ) as no:
        await world.policy.stage(world.body(4))

    assert "\n" not in str(no.value)
    assert world.engines[0].num_loads == 0
    assert (await world.ask()).token_ids == (0, 0)
