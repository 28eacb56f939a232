"""Faster float32 matrix products on CPUs for which PyTorch's default library is not optimised.

PyTorch sends float32 products to MKL, which leaves the wide vector units of other vendors' CPUs unused. oneDNN uses
them, but is chosen only when reduced precision is allowed. If that permission changes no result, because the CPU
has no reduced-precision unit that oneDNN would use, it gives a factor of two and costs nothing.
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
"""One entry per thread (or nesting level) inside the context; the first entry holds the previous setting."""

_TOLERANCE = 1e-6
"""Relative tolerance; two exact float32 products summed in different orders differ far less, bfloat16 by 1e-3."""


@contextmanager
def fast_float32_matmul(device: torch.device | str) -> Iterator[None]:
    """Run float32 products on the CPU in oneDNN within the context, if they are as exact there. Else change nothing.

    The setting applies to the whole process: it stays until the last of several threads has left the context.
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


def onednn_is_exact() -> bool:
    """Return whether oneDNN computes exact float32 products here although it may use less precision. Measured once."""
    with _LOCK:  # the setting is the process's: two threads that measured at once would each see the other's
        return _measured()


@lru_cache(maxsize=1)
def _measured() -> bool:
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
    """Return products in the shapes of a forward and a backward pass, and a batched one."""
    batched = rows.view(4, 128, 128)
    return [rows @ columns, rows.T @ rows, columns.T @ rows.T, torch.bmm(batched, batched.transpose(1, 2))]
