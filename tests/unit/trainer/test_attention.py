"""Packed attention against one fused call a segment, in value and gradient."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from gymfleet_trainer.model.attention import packed_attention
from gymfleet_trainer.model.cpu_attention import MAX_SEGMENT
from gymfleet_trainer.model.segments import Segments
from torch import Tensor, nn

DIM = 8


def projections(lengths: tuple[int, ...], heads: int, kv_heads: int, dtype: torch.dtype) -> list[Tensor]:
    """Query, key and value as transformers passes them: (1, H, T, D), a view of (1, T, H, D)."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, sum(lengths), number, DIM) for number in (heads, kv_heads, kv_heads)]
    return [torch.randn(s, generator=generator).to(dtype).transpose(1, 2).requires_grad_() for s in shapes]


def attend(qkv: list[Tensor], lengths: tuple[int, ...], scaling: float | None = None) -> Tensor:
    segments = Segments(lengths, torch.tensor([0, *lengths]).cumsum(0).to(torch.int32))
    query, key, value = qkv
    output, weights = packed_attention(nn.Identity(), query, key, value, None, scaling=scaling, segments=segments)
    assert weights is None
    return output


def one_by_one(qkv: list[Tensor], lengths: tuple[int, ...], scaling: float | None = None) -> Tensor:
    outputs = [
        F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        for query, key, value in zip(*(torch.split(tensor, list(lengths), dim=2) for tensor in qkv), strict=True)
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (3, 1)])
@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param((1,), id="one token"),
        pytest.param((5, 1, 9), id="short"),
        pytest.param((128, 129, 127, 300), id="around the block size"),
        pytest.param((MAX_SEGMENT + 1, 7), id="beyond what is kept: the fused kernel"),
    ],
)
@pytest.mark.parametrize("scaling", [None, 0.7])
def test_values_and_gradients(lengths: tuple[int, ...], heads: int, kv_heads: int, scaling: float | None) -> None:
    qkv = projections(lengths, heads, kv_heads, torch.float32)
    upstream = torch.randn(1, sum(lengths), heads, DIM, generator=torch.Generator().manual_seed(1))

    actual = attend(qkv, lengths, scaling)
    expected = one_by_one(qkv, lengths, scaling)

    assert actual.shape == (1, sum(lengths), heads, DIM)
    assert torch.allclose(actual, expected, atol=1e-5)
    actual_grads = torch.autograd.grad(actual, qkv, upstream)
    expected_grads = torch.autograd.grad(expected, qkv, upstream)
    for actual_grad, expected_grad in zip(actual_grads, expected_grads, strict=True):
        assert torch.allclose(actual_grad, expected_grad, atol=1e-4)


def test_bfloat16_takes_the_fused_kernel() -> None:
    lengths = (5, 6)
    qkv = projections(lengths, 4, 2, torch.bfloat16)

    assert torch.equal(attend(qkv, lengths), one_by_one(qkv, lengths))


@pytest.mark.parametrize(
    ("lengths", "window", "softcap"),
    [
        pytest.param((5, 2, 9), 1, None, id="each token sees itself alone"),
        pytest.param((5, 2, 9), 4, None, id="within a block"),
        pytest.param((128, 129, 127, 300), 128, None, id="as wide as a block"),
        pytest.param((128, 129, 127, 300), 70, None, id="narrower than a block"),
        pytest.param((300, 40), 150, None, id="wider than a block"),
        pytest.param((300, 40), 300, None, id="as wide as the longest segment: no window"),
        pytest.param((MAX_SEGMENT + 1, 7), 100, None, id="beyond what is kept: the fused kernel"),
        pytest.param((300, 40), None, 0.5, id="soft-capped"),
        pytest.param((300, 40), 150, 0.5, id="soft-capped, with a window"),
        pytest.param((MAX_SEGMENT + 1, 7), 100, 0.5, id="soft-capped, with a window, beyond what is kept"),
        pytest.param((MAX_SEGMENT + 1, 7), None, 0.5, id="soft-capped, beyond what is kept"),
    ],
)
def test_windows_and_soft_caps(lengths: tuple[int, ...], window: int | None, softcap: float | None) -> None:
    qkv = projections(lengths, 4, 2, torch.float64)
    upstream = torch.randn(1, sum(lengths), 4, DIM, generator=torch.Generator().manual_seed(1)).double()

    segments = Segments(lengths, torch.tensor([0, *lengths]).cumsum(0).to(torch.int32))
    query, key, value = qkv
    actual, _ = packed_attention(
        nn.Identity(), query, key, value, None, scaling=0.7, segments=segments, sliding_window=window, softcap=softcap
    )
    expected = in_full(qkv, lengths, 0.7, window, softcap)

    assert torch.allclose(actual, expected, atol=1e-12)
    pairs = zip(torch.autograd.grad(actual, qkv, upstream), torch.autograd.grad(expected, qkv, upstream), strict=True)
    for actual_grad, expected_grad in pairs:
        assert torch.allclose(actual_grad, expected_grad, atol=1e-11)


def in_full(
    qkv: list[Tensor], lengths: tuple[int, ...], scaling: float, window: int | None, softcap: float | None
) -> Tensor:
    """The definition, token by token: which keys a query sees is asked of their distance."""
    outputs = []
    for query, key, value in zip(*(torch.split(tensor[0], list(lengths), dim=1) for tensor in qkv), strict=True):
        keys, values = (tensor.repeat_interleave(2, dim=0) for tensor in (key, value))
        scores = query @ keys.transpose(1, 2) * scaling
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        places = torch.arange(query.shape[1])
        distance = places[:, None] - places[None]
        hidden = (distance < 0) | (distance >= (window or query.shape[1]))
        outputs.append(torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ values)
    return torch.cat(outputs, dim=1).transpose(0, 1)[None]


def test_segments_do_not_see_each_other() -> None:
    lengths = (4, 6)
    qkv = projections(lengths, 4, 2, torch.float32)
    before = attend(qkv, lengths)

    changed = [tensor.detach().clone() for tensor in qkv]
    for tensor in changed:
        tensor[:, :, :4] += 3.0
    after = attend(changed, lengths)

    assert torch.equal(before[:, 4:], after[:, 4:])
    assert not torch.allclose(before[:, :4], after[:, :4])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs `segments`"),
        ({"segments": Segments((5,), torch.tensor([0, 5])), "dropout": 0.1}, "without dropout"),
        ({"segments": Segments((5,), torch.tensor([0, 5])), "s_aux": torch.zeros(2)}, "has no sinks"),
    ],
)
def test_what_it_cannot_do_is_refused(options: dict[str, Any], message: str) -> None:
    query, key, value = projections((5,), 2, 2, torch.float32)

    with pytest.raises(ValueError, match=message):
        packed_attention(nn.Identity(), query, key, value, None, **options)
