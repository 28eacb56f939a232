"""Versions that a trainer sends: the service keeps the live one for its engines, and refuses in a line what fails."""

import asyncio
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from gymfleet_contracts.rollout import StageVersion
from gymfleet_contracts.weights import WeightsBroadcast
from gymfleet_rollout.errors import PolicyUpdateFailed
from gymfleet_rollout.inference.base import WeightsRejected
from gymfleet_rollout.received_weights import ReceivedWeights
from gymfleet_trainer.model.weight_files import write_weights
from gymfleet_trainer.publish.transfers.broadcast import Broadcast
from safetensors.torch import load_file

from tests.fixtures.numbered_engine import World, numbered_weights

HERE = "http://127.0.0.1:1"
TIMEOUT_S = 30.0


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    (tmp_path / "memory").mkdir()
    return tmp_path / "memory"


@pytest.fixture
async def world(tmp_path: Path, memory: Path) -> World:
    world = World(lambda number: numbered_weights(tmp_path, number), received_dir=memory)
    (tmp_path / "0" / "config.json").write_text("{}")
    await world.policy.start()
    return world


def written(tmp_path: Path, number: int, **tensors: torch.Tensor) -> Path:
    """A version at the trainer's, in buckets of one tensor."""
    path = tmp_path / "trainer" / str(number)
    path.mkdir(parents=True)
    write_weights(path, (tensors or {"w": torch.full((2,), float(number))}).items(), 1)
    return path


async def sent(world: World, path: Path, urls: Collection[str] = (HERE,), timeout_s: float = TIMEOUT_S) -> None:
    body = world.body(int(path.name), weights_path=str(path))
    async with Broadcast(path.parent, timeout_s=timeout_s).offer(body, urls) as offer:
        try:
            await world.policy.stage(offer.bodies[HERE])
        finally:
            for url in urls:
                offer.answered(url)


def kept(memory: Path) -> list[str]:
    return sorted(path.name for path in memory.glob("gymfleet-weights-received-*/v*"))


def folders(memory: Path) -> list[str]:
    return [path.name for path in memory.iterdir()]


async def test_engines_load_what_was_received_and_only_the_live_version_is_kept(
    world: World, memory: Path, tmp_path: Path
) -> None:
    for number in (1, 2):
        await sent(world, written(tmp_path, number))
        assert kept(memory) == [f"v00000{one}" for one in (1, 2) if one <= number], "the one before it may come back"
        await world.policy.commit(number)

    assert kept(memory) == ["v000002"]
    found = load_file(world.engines[0].weights / "model.safetensors")
    assert found["w"].tolist() == [2.0, 2.0]
    assert world.engines[0].weights.parent.parent == memory
    await sent(world, written(tmp_path, 3))
    await world.policy.refuse(3)
    assert kept(memory) == ["v000002"]
    assert world.engines[0].weights.name == "v000002"


async def test_the_folder_goes_with_the_last_version_in_it(world: World, memory: Path, tmp_path: Path) -> None:
    await sent(world, written(tmp_path, 1))
    await world.policy.commit(1)
    await world.policy.stage(world.body(2))
    assert kept(memory) == ["v000001"]

    await world.policy.commit(2)

    assert folders(memory) == []


async def test_a_service_that_ends_leaves_nothing(world: World, memory: Path, tmp_path: Path) -> None:
    await sent(world, written(tmp_path, 1))
    await world.policy.commit(1)

    await world.policy.close()

    assert folders(memory) == []


async def test_requests_are_answered_while_a_version_is_received(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, 1)
    order: list[str] = []
    receive = ReceivedWeights.receive

    def noted(self: ReceivedWeights, *given: Any) -> Path:
        found = receive(self, *given)
        order.append("received" if not world.engines[0].interrupted.is_set() else "too late")
        return found

    monkeypatch.setattr(ReceivedWeights, "receive", noted)

    await sent(world, path)

    assert order == ["received"]
    assert world.engines[0].interrupted.is_set()


async def test_a_request_that_is_repeated_is_not_received_again(world: World, tmp_path: Path) -> None:
    path = written(tmp_path, 1)
    await sent(world, path)

    await sent(world, path)

    assert world.engines[0].num_loads == 1


async def test_what_lacks_a_tensor_is_refused_before_an_engine_has_it(
    world: World, memory: Path, tmp_path: Path
) -> None:
    with pytest.raises(PolicyUpdateFailed, match=r"lacks w \(1 tensors\)"):
        await sent(world, written(tmp_path, 1, other=torch.zeros(1)))

    assert world.engines[0].num_loads == 0
    assert kept(memory) == []


async def test_a_replica_that_does_not_come_is_left_out_in_time(world: World, tmp_path: Path) -> None:
    path = written(tmp_path, 1, w=torch.zeros(2))
    body = world.body(1, weights_path=str(path))

    async with Broadcast(path.parent, timeout_s=1.0).offer(body, [HERE, "http://127.0.0.1:2"]) as offer:
        answer = await world.policy.stage(offer.bodies[HERE])

    assert answer.version == 1


async def test_no_room_is_one_line(world: World, memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(memory)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=(1 << 20) + 5))

    with pytest.raises(PolicyUpdateFailed, match=r"has 1 MiB left, and the version takes 4: .*RECEIVED_DIR") as refused:
        await sent(world, written(tmp_path, 1, w=torch.zeros(1 << 20)))

    assert "\n" not in str(refused.value)


async def test_a_trainer_that_cannot_be_reached_is_one_line(world: World, tmp_path: Path) -> None:
    path = written(tmp_path, 1)
    async with Broadcast(path.parent, timeout_s=TIMEOUT_S).offer(
        world.body(1, weights_path=str(path)), [HERE]
    ) as offer:
        body = offer.bodies[HERE]
        assert body.broadcast is not None
        nowhere = body.broadcast.model_copy(update={"port": 1})
        with pytest.raises(
            PolicyUpdateFailed, match=r"^the trainer at 127\.0\.0\.1:1 cannot be reached .*\"disk\""
        ) as told:
            await world.policy.stage(body.model_copy(update={"broadcast": nowhere}))
        offer.answered(HERE)

    assert "\n" not in str(told.value)


async def test_a_place_that_is_none_is_one_line(tmp_path: Path, world: World) -> None:
    path = written(tmp_path, 1)
    received = ReceivedWeights(tmp_path / "0", tmp_path / "none")
    async with Broadcast(path.parent, timeout_s=TIMEOUT_S).offer(
        world.body(1, weights_path=str(path)), [HERE]
    ) as offer:
        broadcast = offer.bodies[HERE].broadcast
        assert broadcast is not None
        with pytest.raises(WeightsRejected, match=r"^the version cannot be kept in .*none: "):
            await asyncio.to_thread(received.receive, 1, broadcast)
        offer.answered(HERE)


@pytest.mark.parametrize("change", [{"seat": 0}, {"port": 0}, {"token": "x" * 32}, {"timeout_s": 0}, {"host": ""}])
def test_an_offer_is_checked(change: dict[str, Any]) -> None:
    tensor = {"name": "w", "dtype": "F32", "shape": [2], "begin": 0, "end": 8}
    bucket = {"file": "model.safetensors", "size_bytes": 8, "checksum": "0" * 32, "tensors": [tensor]}
    fields = {"host": "h", "port": 1, "token": "a" * 32, "seat": 1, "timeout_s": 1, "manifest": {"buckets": [bucket]}}
    WeightsBroadcast.model_validate(fields)

    with pytest.raises(ValueError, match=next(iter(change))):
        WeightsBroadcast.model_validate(fields | change)


def test_whole_weights_are_not_sent_to_engines_with_adapters(tmp_path: Path) -> None:
    world = World(lambda number: numbered_weights(tmp_path, number), max_lora_rank=4)
    path = written(tmp_path, 1)

    async def asked() -> StageVersion:
        async with Broadcast(path.parent).offer(world.body(1, weights_path=str(path)), [HERE]) as offer:
            offer.answered(HERE)
            return offer.bodies[HERE]

    body = asyncio.run(asked())
    with pytest.raises(PolicyUpdateFailed, match="whole weights are sent, and this service was started for adapters"):
        asyncio.run(world.policy.stage(body))
