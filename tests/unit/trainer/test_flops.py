"""The FLOPs counter against a hand count and against PyTorch's own counter."""

import torch
from gymfleet_trainer.model.flops import DecoderShape, forward_flops, training_flops
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3Config, Qwen3ForCausalLM

SHAPE = DecoderShape(
    hidden_size=8, intermediate_size=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, vocab_size=32
)


def test_by_hand() -> None:
    # A layer: q and o 8 x 16 each, k and v 8 x 8 each, three 8 x 16: 256 + 128 + 384 = 768 weights.
    assert SHAPE.matmul_parameters == 2 * 768
    # Lengths 3 and 1: 6 + 1 pairs, two products, 2 layers, 4 heads of 4; the head at 2 positions.
    assert forward_flops(SHAPE, [3, 1], 2) == 2 * 1536 * 4 + 4 * 2 * 16 * 7 + 2 * 8 * 32 * 2
    assert training_flops(SHAPE, [3, 1], 2) == 3 * forward_flops(SHAPE, [3, 1], 2)


def test_against_pytorchs_counter() -> None:
    config = Qwen3Config(
        vocab_size=32, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=4, attn_implementation="eager",
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    length = 6
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, length, dtype=torch.int64))
    shape = DecoderShape.from_config(config)
    assert shape == SHAPE

    # PyTorch counts the whole square of scores, we the pairs that are attended to.
    above = 4 * shape.num_layers * shape.num_heads * shape.head_dim * (length * (length - 1) // 2)
    assert forward_flops(shape, [length], length) + above == counter.get_total_flops()
