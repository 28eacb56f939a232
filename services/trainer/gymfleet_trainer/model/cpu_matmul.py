"""Faster float32 matrix products on CPUs where PyTorch's default library is not at home.

PyTorch sends float32 products to MKL, which leaves the wide vector units of other vendors' CPUs unused; oneDNN does
not, but is asked only when reduced precision is allowed. Where that permission changes no result, because the CPU
has no reduced-precision unit that oneDNN would use, it is worth a factor of two and costs nothing.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

_LOCK = threading.Lock()
_INSIDE: list[str] = []
"""One entry per thread (or nesting) inside; the first holds what was set before."""

_TOLERANCE = 1e-6
"""Relative; two exact float32 products that sum in different orders stay well below it, bfloat16 is at 1e-3."""


@contextmanager
def fast_float32_matmul(device: torch.device | str) -> Iterator[None]:
    """Inside, float32 products on the CPU run in oneDNN, if they are as exact there. Nothing changes elsewhere.

    The setting is the process's: it stays until the last of several threads has left.
    """
    if torch.device(device).type != "cpu" or not onednn_is_exact():
        yield
        return
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    with _LOCK:
        if not _INSIDE:
            _INSIDE.append(_onednn_products().fp32_precision)
            _onednn_products().fp32_precision = "bf16"
        else:
            _INSIDE.append("")


def _leave() -> None:
    with _LOCK:
        if len(_INSIDE) > 1:
            _INSIDE.pop()
        else:
            _onednn_products().fp32_precision = _INSIDE.pop()


@lru_cache(maxsize=1)
def onednn_is_exact() -> bool:
    """Whether oneDNN computes float32 products in float32 on this CPU although it may do less. Measured once."""
    if not torch._C._has_mkldnn:  # noqa: SLF001
        return False
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(512, 128, generator=generator)
    columns = torch.randn(128, 384, generator=generator)
    backend = _onednn_products()
    before = backend.fp32_precision
    try:
        backend.fp32_precision = "ieee"
        exact = _products(rows, columns)
        backend.fp32_precision = "bf16"
        permitted = _products(rows, columns)
    finally:
        backend.fp32_precision = before
    return all(bool((p - e).norm() <= _TOLERANCE * e.norm()) for p, e in zip(permitted, exact, strict=True))


def _onednn_products() -> Any:
    return torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


def _products(rows: Tensor, columns: Tensor) -> list[Tensor]:
    """The shapes of a forward and a backward pass, and a batched one."""
    batched = rows.view(4, 128, 128)
    return [rows @ columns, rows.T @ rows, columns.T @ rows.T, torch.bmm(batched, batched.transpose(1, 2))]
