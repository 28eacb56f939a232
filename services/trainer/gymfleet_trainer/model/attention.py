"""Causal attention over packed segments, registered with transformers under our own name.

Segments are placed end to end in one row. Each attends to itself and to the segments that it continues, if any; there
is no padding. The segments' bounds are passed as a keyword argument through the model's forward to `packed_attention`.
A layer with a sliding window sees only the last of these tokens; a layer with soft-capped scores squeezes them by tanh.
"""

import inspect
from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn
from transformers import AttentionInterface

from gymfleet_trainer.model.cpu_attention import MAX_SEGMENT, blocked_attention, visible
from gymfleet_trainer.model.segments import Segments

PACKED_ATTENTION: Final = "gymfleet_packed"
"""The `attn_implementation` to load a model with."""


def packed_attention(
    module: nn.Module,  # noqa: ARG001  (the interface passes it)
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    segments: Segments | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend causally within segments and to the segments that they continue, by transformers' attention interface.

    Args:
        module: the attention layer; unused.
        query: (1, H, T, D).
        key: (1, H_kv, T, D) with H a multiple of H_kv.
        value: (1, H_kv, T, D).
        attention_mask: must be None; bounds come from `segments`.
        scaling: factor of the scores, `D ** -0.5` when None.
        dropout: must be 0, or the old log-probabilities would not be those of the sampler.
        sliding_window: how many tokens each token attends to at most, including itself; all before it when None.
        softcap: bound of the scores, which become `softcap * tanh(scores / softcap)`; unbounded when None.
        s_aux: must be None: there are no attention sinks.
        segments: bounds within the row.

    Returns:
        (1, T, H, D), and None for the weights, which are never formed.
    """
    if segments is None:
        raise ValueError(f"{PACKED_ATTENTION} attention needs `segments`: call the model through PolicyModel")
    if attention_mask is not None or dropout or query.shape[0] != 1:
        raise ValueError(f"{PACKED_ATTENTION} attention takes one packed row, without a mask and without dropout")
    if s_aux is not None:
        raise ValueError(f"{PACKED_ATTENTION} attention has no sinks: require_supported refuses such models")
    device = query.device.type
    if torch.is_autocast_enabled(device):
        # Norms leave query and key in float32 here, but the kernels need one dtype for query, key and value.
        query, key, value = (tensor.to(torch.get_autocast_dtype(device)) for tensor in (query, key, value))
    window = None if sliding_window is None or sliding_window >= segments.longest else sliding_window
    if query.is_cuda and _has_kernel(window, softcap) and query.dtype != torch.float32:
        return _varlen(query, key, value, scaling, segments, window), None
    if device == "cpu" and query.dtype in (torch.float32, torch.float64) and segments.longest <= MAX_SEGMENT:
        return blocked_attention(query, key, value, scaling, segments, window=window, softcap=softcap), None
    return _per_segment(query, key, value, scaling, segments, window, softcap), None


def _has_kernel(window: int | None, softcap: float | None) -> bool:
    return _VARLEN is not None and softcap is None and (window is None or _VARLEN_WINDOWS)


def _per_segment(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    segments: Segments,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """Make one fused call per segment. Split and concatenate: slices would cost a full-size gradient per segment."""
    grouped = query.shape[1] != key.shape[1]
    queries, keys, values = (torch.split(tensor, list(segments.lengths), dim=2) for tensor in (query, key, value))
    attended = []
    for place, q in enumerate(queries):
        before = segments.paths.ancestors[place] if segments.paths is not None else ()
        k, v = (_along(parts, before, place) for parts in (keys, values))
        plain = not before and (window is None or window >= q.shape[2])
        mask = None if plain and softcap is None else visible(q.shape[2], k.shape[2], window, q.device)
        if softcap is not None:
            attended.append(_capped(q, k, v, mask, scaling, softcap))
            continue
        attended.append(
            F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped)
        )
    return torch.cat(attended, dim=2).transpose(1, 2)


def _capped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None, softcap: float
) -> Tensor:
    """Compute soft-capped attention, which no fused kernel supports, with all scores in memory."""
    heads, kv_heads, num_queries, dim = query.shape[1], key.shape[1], query.shape[2], query.shape[3]
    stacked = query.reshape(1, kv_heads, heads // kv_heads * num_queries, dim)
    scores = stacked @ key.transpose(2, 3) * (dim**-0.5 if scaling is None else scaling)
    capped = softcap * torch.tanh(scores.view(1, heads, num_queries, -1) / softcap)
    if mask is not None:
        capped = capped.masked_fill(~mask, -torch.inf)
    probabilities = torch.softmax(capped, -1, dtype=torch.promote_types(query.dtype, torch.float32)).to(query.dtype)
    attended = probabilities.view(1, kv_heads, heads // kv_heads * num_queries, -1) @ value
    return attended.view(1, heads, num_queries, value.shape[3])


def _along(parts: Sequence[Tensor], before: tuple[int, ...], place: int) -> Tensor:
    return torch.cat([parts[index] for index in (*before, place)], dim=2) if before else parts[place]


def _varlen(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, segments: Segments, window: int | None = None
) -> Tensor:
    """Run one flash-attention kernel for all segments.

    Where there are more keys than queries, its causal mask is aligned to the last of both.
    """
    heads, longest, longest_path = query.shape[1], max(segments.lengths), segments.longest
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    bounds = path_bounds = segments.cu_seqlens
    if (paths := segments.paths) is not None:
        k, v, path_bounds = k[paths.tokens], v[paths.tokens], paths.cu_seqlens
    options: dict[str, Any] = dict(_VARLEN_CAUSAL) if window is None else {"window_size": (window - 1, 0)}
    if k.shape[1] != heads:
        if _VARLEN_GROUPED:
            options["enable_gqa"] = True
        else:
            k, v = (tensor.repeat_interleave(heads // tensor.shape[1], dim=1) for tensor in (k, v))
    if "scale" in _VARLEN_PARAMETERS:
        options["scale"] = scaling
    elif scaling is not None:
        q = q * (scaling * q.shape[-1] ** 0.5)
    output: Tensor = _VARLEN(q, k, v, bounds, path_bounds, longest, longest_path, **options)
    return output[None]


def _find_varlen() -> Any:
    try:
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415  (newer than the oldest torch we run on)
    except ImportError:
        return None
    return varlen_attn


_VARLEN: Final = _find_varlen()
_VARLEN_PARAMETERS: Final = frozenset(inspect.signature(_VARLEN).parameters) if _VARLEN is not None else frozenset()
# torch 2.10 takes `is_causal`; later versions take a window that is unbounded backwards and empty forwards.
_VARLEN_WINDOWS: Final = "window_size" in _VARLEN_PARAMETERS
_VARLEN_CAUSAL: Final[dict[str, Any]] = {"window_size": (-1, 0)} if _VARLEN_WINDOWS else {"is_causal": True}
_VARLEN_GROUPED: Final = "enable_gqa" in _VARLEN_PARAMETERS

AttentionInterface.register(PACKED_ATTENTION, packed_attention)
