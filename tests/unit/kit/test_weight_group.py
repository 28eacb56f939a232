"""A process group for one version: whoever has come gets every bucket, and nobody waits for the dead."""

import subprocess
import sys
import threading
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import pytest
import torch
import torch.distributed as dist
from gymfleet_kit.weight_group import GroupFailed, WeightGroup, WeightStore, address_towards

from tests.fixtures.paths import ROOT
from tests.fixtures.weight_receiver import PATIENCE_S

HOST: Final = "127.0.0.1"
TOKEN: Final = "ab" * 16
SIZE: Final = 1 << 16


def opened(timeout_s: float) -> tuple[WeightStore, int]:
    return WeightStore.opened(dist, token=TOKEN, address=HOST, timeout_s=timeout_s)


def received(port: int, seat: int, sizes: list[int], timeout_s: float = 30, token: str = TOKEN) -> list[torch.Tensor]:
    group = WeightStore.found(dist, HOST, port, token=token, timeout_s=timeout_s).joined(seat)
    found = []
    for size in sizes:
        found.append(torch.zeros(size, dtype=torch.uint8))
        group.broadcast(found[-1])
    return found


def begun(store: WeightStore, seats: list[int], gone: Collection[int] = ()) -> WeightGroup:
    group = store.begun(seats, gone)
    assert group is not None
    return group


def test_all_who_have_come_receive_every_bucket() -> None:
    store, port = opened(30)
    data = [torch.arange(256, dtype=torch.uint8).repeat(8), torch.tensor([7], dtype=torch.uint8)]

    with ThreadPoolExecutor() as pool:
        others = [pool.submit(received, port, seat, [2048, 1]) for seat in (1, 2)]
        group = begun(store, [1, 2])
        for one in data:
            group.broadcast(one)
        found = [other.result() for other in others]

    assert all(torch.equal(got, sent) for tensors in found for got, sent in zip(tensors, data, strict=True))


def test_who_is_gone_is_not_waited_for_and_its_seat_is_left_out() -> None:
    store, port = opened(30)
    gone: set[int] = set()

    with ThreadPoolExecutor() as pool:
        other: Future[list[torch.Tensor]] = pool.submit(received, port, 3, [1])
        threading.Timer(0.2, lambda: gone.update((1, 2))).start()
        begun(store, [1, 2, 3], gone).broadcast(torch.tensor([9], dtype=torch.uint8))

        assert other.result()[0].tolist() == [9]


def test_who_does_not_come_in_time_is_left_out_and_told() -> None:
    store, port = opened(0.5)

    assert store.begun([1], set()) is None

    with pytest.raises(GroupFailed, match=r"^the trainer began to send before this service had come$"):
        received(port, 1, [1])


def test_another_transfers_token_finds_nobody() -> None:
    store, port = opened(30)

    with pytest.raises(GroupFailed, match=r"^the trainer did not begin to send within 0\.3 s$"):
        received(port, 1, [1], timeout_s=0.3, token="cd" * 16)

    assert store.begun([1], {1}) is None, "nobody has come"


def test_a_trainer_that_does_not_listen_is_one_line() -> None:
    store, port = opened(5)
    del store

    with pytest.raises(GroupFailed, match=r"^\[Errno \d+\] Connection refused$"):
        WeightStore.found(dist, HOST, port, token=TOKEN, timeout_s=5)


def test_a_trainer_that_sends_nothing_more_is_one_line() -> None:
    store, port = opened(30)

    with ThreadPoolExecutor() as pool:
        other = pool.submit(received, port, 1, [1], 1.0)
        group = begun(store, [1])

        with pytest.raises(GroupFailed) as failed:
            other.result()

    assert "\n" not in str(failed.value)
    del group


@pytest.mark.parametrize("who", ["receiver", "sender"])
def test_a_process_that_is_killed_in_between_fails_the_others_at_once(who: str) -> None:
    store, port = opened(PATIENCE_S)
    command = [sys.executable, "-m", "tests.fixtures.weight_receiver", str(port), TOKEN, "2", str(SIZE), str(SIZE)]
    sent = torch.ones(SIZE, dtype=torch.uint8)

    def send_on(group: WeightGroup) -> None:
        for _ in range(49):
            group.broadcast(sent)

    with (
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
        ThreadPoolExecutor() as pool,
    ):
        other = pool.submit(received, port, 1, [SIZE] * 50, PATIENCE_S)
        group: WeightGroup | None = begun(store, [1, 2])
        assert group is not None
        group.broadcast(sent)
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        process.kill()
        process.wait()
        if who == "receiver":
            with pytest.raises(GroupFailed) as failed:
                send_on(group)
            assert "\n" not in str(failed.value)
        group = None  # as when the trainer ends

        with pytest.raises(GroupFailed) as told:
            other.result()

    assert "\n" not in str(told.value)


def test_the_own_address_is_one_that_the_others_see() -> None:
    assert address_towards(["127.0.0.1", "no-such-host.invalid"]) == "127.0.0.1"
    assert address_towards([]) == "127.0.0.1"
    outward = address_towards(["127.0.0.1", "192.0.2.1"])  # of TEST-NET-1: nothing is sent to it
    assert outward == address_towards(["192.0.2.1"])
