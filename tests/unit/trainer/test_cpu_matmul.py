"""Faster products: as exact as before, also where several threads ask for them at once."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from gymfleet_trainer.model import cpu_matmul
from gymfleet_trainer.model.cpu_matmul import fast_float32_matmul, onednn_is_exact
from torch import Tensor

PAUSE_S = 0.01


class Setting:
    """Of the process; products of bfloat16 are those of a CPU that has a unit for them."""

    fp32_precision = "none"

    def products(self, *_: Tensor) -> list[Tensor]:
        time.sleep(PAUSE_S)
        return [torch.tensor(1.002 if self.fp32_precision == "bf16" else 1.0)]


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Setting]:
    setting = Setting()
    monkeypatch.setattr(cpu_matmul, "_onednn_products", lambda: setting)
    monkeypatch.setattr(cpu_matmul, "_products", setting.products)
    cpu_matmul._measured.cache_clear()
    yield setting
    cpu_matmul._measured.cache_clear()


def test_threads_that_measure_at_once_do_not_mislead_each_other(setting: Setting) -> None:
    def ask(number: int) -> bool:
        time.sleep(number * PAUSE_S / 2)
        with fast_float32_matmul("cpu"):
            return onednn_is_exact()

    with ThreadPoolExecutor(4) as threads:
        assert not any(threads.map(ask, range(4)))

    assert setting.fp32_precision == "none", "no permission to compute in bfloat16 stays behind"


def test_faster_products_are_as_exact() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(300, 200, generator=generator), torch.randn(200, 100, generator=generator)
    before = left @ right

    with fast_float32_matmul("cpu"):
        inside = left @ right

    exact = left.double() @ right.double()
    assert (inside - exact).norm() <= 1e-6 * exact.norm()
    assert torch.equal(left @ right, before), "the setting is gone outside"
