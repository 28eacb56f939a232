"""What episodes share is computed once: by hand, and against batches in which every row stands whole."""

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_trainer.learning.algorithm import Sample
from gymfleet_trainer.learning.engine import UpdateEngine
from gymfleet_trainer.learning.options import ReinforceOptions
from gymfleet_trainer.learning.plugins import algorithm_of
from gymfleet_trainer.model import attention, trees
from gymfleet_trainer.model.attention import PACKED_ATTENTION, packed_attention
from gymfleet_trainer.model.batching import PackedBatch, TrainSequence, pack
from gymfleet_trainer.model.cpu_attention import MAX_SEGMENT
from gymfleet_trainer.model.critic import ValueModel
from gymfleet_trainer.model.policy_model import PolicyModel
from gymfleet_trainer.model.segments import Segments
from torch import Tensor, nn
from transformers import Starcoder2Config, Starcoder2ForCausalLM

from tests.fixtures.forked_groups import forked_group
from tests.fixtures.train_sequences import train_sequence

VOCAB: Final = 24
WHOLE: Final = 1 << 16
NEVER: Final = 1 << 20
"""Tokens that no row has: nothing is shared."""
PRECISION: Final = 1e-10


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small are slower on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small_model() -> PolicyModel:
    torch.manual_seed(0)
    config = Starcoder2Config(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.25, tie_word_embeddings=False,
        sliding_window=None, bos_token_id=0, eos_token_id=0, use_cache=False, attn_implementation=PACKED_ATTENTION,
    )  # fmt: skip
    return PolicyModel(Starcoder2ForCausalLM(config).double(), compute_dtype=torch.float64)


@pytest.fixture(autouse=True)
def single_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one token is worth a segment: rows made by hand are short."""
    monkeypatch.setattr(trees, "SHORTEST", 1)


def row(token_ids: list[int], mask: str, name: str) -> TrainSequence:
    return train_sequence(token_ids, mask, name=f"run/g/{name}")


# --- by hand


def three_rows() -> list[TrainSequence]:
    """Two go the same way and part at the fifth token; the third parts at the third. The second has fewer trained."""
    return [
        row([1, 2, 3, 4, 5], ".x.xx", "0"),
        row([1, 2, 3, 4, 6, 7], ".x..xx", "1"),
        row([1, 2, 8], ".xx", "2"),
    ]


def test_what_rows_share_stands_once() -> None:
    (batch,) = pack(three_rows(), WHOLE)

    assert (batch.num_tokens, batch.num_computed) == (14, 8)
    assert batch.indices == (0, 1, 2)
    assert batch.tokens.tolist() == [1, 2, 3, 4, 5, 1, 2, 3, 4, 6, 7, 1, 2, 8], "the rows are whole for the losses"
    inputs = batch.inputs
    assert inputs.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert inputs.positions.tolist() == [0, 1, 2, 3, 4, 4, 5, 2]
    assert inputs.segments.lengths == (2, 2, 1, 2, 1)
    assert inputs.segments.cu_seqlens.tolist() == [0, 2, 4, 5, 7, 8]
    paths = inputs.segments.paths
    assert paths is not None
    assert paths.ancestors == ((), (0,), (0, 1), (0, 1), (0,))
    assert paths.lengths == (2, 4, 5, 6, 3)
    assert paths.cu_seqlens.tolist() == [0, 2, 6, 11, 17, 20]
    assert paths.tokens.tolist() == [0, 1, 0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1, 2, 3, 5, 6, 0, 1, 7]
    # Trained are 2, 4, 5 of the first row, 2, 6, 7 of the second and 2, 8 of the third: six different tokens.
    assert inputs.targets.tolist() == [2, 4, 5, 6, 7, 8]
    assert inputs.states.tolist() == [0, 2, 3, 3, 5, 1], "a branch's first token is predicted where its parent ends"
    assert inputs.uses is not None
    assert inputs.uses.tolist() == [0, 1, 2, 0, 3, 4, 0, 5]
    predicted = torch.tensor([0.2, 0.4, 0.5, 0.6, 0.7, 0.8])
    assert batch.scattered(predicted)[batch.trained].tolist() == predicted[[0, 1, 2, 0, 3, 4, 0, 5]].tolist()


def test_the_same_episode_twice_is_computed_once() -> None:
    rows = [row([1, 2, 3], ".xx", str(number)) for number in range(2)]

    (batch,) = pack(rows, WHOLE)

    assert batch.num_computed == 3
    assert batch.inputs.segments.lengths == (3,)


def test_a_row_that_another_goes_on_from_has_no_segment_of_its_own() -> None:
    (batch,) = pack([row([1, 2, 3, 4], "..xx", "0"), row([1, 2, 3], "..x", "1")], WHOLE)

    assert batch.inputs.segments.lengths == (3, 1)
    assert batch.inputs.targets.tolist() == [3, 4]
    assert batch.inputs.uses is not None
    assert batch.inputs.uses.tolist() == [0, 1, 0]


def test_groups_share_what_both_begin_with() -> None:
    (batch,) = pack([row([1, 2], ".x", "0"), replace(row([1, 3], ".x", "1"), trajectory_id="run/h/0")], WHOLE)

    assert batch.num_computed == 3


def test_what_only_follows_alike_is_not_shared() -> None:
    (batch,) = pack([row([1, 2, 2], ".xx", "0"), row([3, 2, 2], ".xx", "1")], WHOLE)

    assert batch.shared is None
    assert (batch.num_tokens, batch.num_computed) == (6, 6)
    assert batch.inputs.tokens.tolist() == batch.tokens.tolist()


def test_a_beginning_that_is_too_short_for_a_segment_stands_in_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "SHORTEST", 3)
    # The first two share a third token more than all do, which is too few behind these.
    rows = [row([1, 2, 3, *rest], "....x", str(place)) for place, rest in enumerate([[4, 5], [4, 6], [7, 7]])]

    (batch,) = pack(rows, WHOLE)
    (unlike,) = pack([one for one in rows if one is not rows[1]], WHOLE)
    (short,) = pack([replace(one, token_ids=[place, *one.token_ids[1:]]) for place, one in enumerate(rows)], WHOLE)

    assert batch.inputs.segments.lengths == (3, 2, 2, 2)
    assert batch.inputs.tokens.tolist() == [1, 2, 3, 4, 5, 4, 6, 7, 7]
    assert unlike.inputs.segments.lengths == (3, 2, 2)
    assert short.shared is None


@pytest.mark.parametrize("seed", range(20))
def test_every_row_can_be_read_back_and_no_beginning_stands_twice(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(trees, "SHORTEST", rng.choice([1, 2, 4]))
    rows = [
        row([rng.randrange(2) for _ in range(length)], "." * length, str(place))
        for place, length in enumerate(rng.choices(range(1, 12), k=rng.randint(2, 24)))
    ]

    (batch,) = pack(rows, WHOLE)

    inputs = batch.inputs
    bounds = inputs.segments.cu_seqlens.tolist()
    paths = inputs.segments.paths
    if paths is None:
        beginnings = [tuple(one.token_ids[: trees.SHORTEST]) for one in rows if len(one.token_ids) >= trees.SHORTEST]
        assert len(beginnings) == len(set(beginnings))
        return
    read = []
    for place, before in enumerate(paths.ancestors):
        spans = [range(bounds[one], bounds[one + 1]) for one in (*before, place)]
        read.append([token for span in spans for token in inputs.tokens[list(span)].tolist()])
        assert [position for span in spans for position in inputs.positions[list(span)].tolist()] == list(
            range(len(read[-1]))
        )
    whole = {tuple(one.token_ids) for one in rows}
    assert whole <= set(map(tuple, read))
    if int(trees.SHORTEST) == 1:
        assert batch.num_computed == len({tokens[:end] for tokens in whole for end in range(1, len(tokens) + 1)})


# --- packing


def long_rows(number: int, first: int = 1) -> list[TrainSequence]:
    """Each 10 tokens, of which 6 are shared."""
    return [
        replace(
            row([first, 2, 3, 4, 5, 6, 10 + place, 1, 1, 1], "......xxxx", str(place)),
            trajectory_id=f"run/{first}/{place}",
        )
        for place in range(number)
    ]


def test_rows_that_share_tokens_share_a_micro_batch_and_what_they_share_counts_once() -> None:
    rows = [one for pair in zip(long_rows(4, 7), long_rows(4, 8), strict=True) for one in pair]

    batches = pack(rows, 22)

    assert [batch.num_computed for batch in batches] == [22, 22], "6 + 4 * 4 tokens of each group"
    assert sorted(batch.indices for batch in batches) == [(0, 2, 4, 6), (1, 3, 5, 7)]
    (one,) = pack(rows, 44)
    assert (one.num_computed, one.num_tokens) == (44, 80)


def test_a_tree_above_the_limit_is_divided_evenly() -> None:
    batches = pack(long_rows(5), 15)

    assert [batch.num_computed for batch in batches] == [14, 14, 10]
    assert sorted(index for batch in batches for index in batch.indices) == list(range(5))
    assert [batch.num_computed for batch in pack(long_rows(5), 25)] == [18, 14], "not 22 and 10"


def test_a_tree_is_divided_where_a_worker_would_be_idle() -> None:
    assert [batch.num_computed for batch in pack(long_rows(8), WHOLE)] == [6 + 8 * 4]
    assert [batch.num_computed for batch in pack(long_rows(8), WHOLE, multiple_of=2)] == [6 + 4 * 4, 6 + 4 * 4]
    both = pack([*long_rows(8, 7), *long_rows(8, 8)], WHOLE, multiple_of=2)
    assert [batch.num_computed for batch in both] == [38, 38], "each has one"
    assert len(pack(long_rows(2), WHOLE, multiple_of=3)) == 2, "there is no more to divide"


def test_branches_that_share_the_most_stay_together() -> None:
    rows = [row([1, 2, inner, 4, 10 + place], "....x", str(place)) for place, inner in enumerate([7, 8, 7, 8])]

    assert sorted(batch.indices for batch in pack(rows, 6)) == [(0, 2), (1, 3)]


def test_rows_of_one_unit_are_not_separated_by_what_others_share() -> None:
    rows = [replace(one, unit=f"pair {place % 2}") for place, one in enumerate(long_rows(4))]

    batches = pack(rows, 15)

    assert sorted(batch.indices for batch in batches) == [(0, 2), (1, 3)]
    assert all(len(batch.places_by_unit) == 1 for batch in batches)


@pytest.mark.parametrize("seed", range(20))
def test_no_micro_batch_computes_more_than_the_limit(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(trees, "SHORTEST", rng.choice([1, 3, 5]))
    rows = [
        replace(row([rng.randrange(2) for _ in range(length)], "." * length, str(place)), unit=f"pair {place // 2}")
        for place, length in enumerate(rng.choices(range(1, 16), k=30))
    ]

    batches = pack(rows, 40)

    assert max(batch.num_computed for batch in batches) <= 40
    assert sorted(index for batch in batches for index in batch.indices) == list(range(30))
    assert all(set(map(len, batch.places_by_unit.values())) == {2} for batch in batches)


# --- attention

LENGTHS: Final = (5, 3, 1, 140, 7)
PARENTS: Final = (-1, 0, 1, 1, -1)


def tree_of(lengths: tuple[int, ...]) -> Segments:
    """Segments that go on from each other as `PARENTS` says."""
    paths: list[tuple[int, ...]] = []
    for place, parent in enumerate(PARENTS):
        paths.append((*(paths[parent] if parent >= 0 else ()), place))
    rows = []
    for path in paths:
        tokens = [token for place in path for token in [place + 1] * lengths[place]]
        rows.append(row(tokens, "." * len(tokens), str(path[-1])))
    (batch,) = pack(rows, WHOLE)
    return batch.inputs.segments


def by_rows(qkv: list[Tensor], segments: Segments, window: int | None = None) -> Tensor:
    """Every segment's queries in the whole row that leads there, one row after the other."""
    assert segments.paths is not None
    bounds = segments.cu_seqlens.tolist()
    outputs = []
    for place, before in enumerate(segments.paths.ancestors):
        where = [token for one in (*before, place) for token in range(bounds[one], bounds[one + 1])]
        query, key, value = (tensor[:, :, where] for tensor in qkv)
        distance = torch.arange(len(where))[:, None] - torch.arange(len(where))[None]
        mask = (distance >= 0) & (distance < (window or len(where)))
        whole = F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)
        outputs.append(whole[:, :, -segments.lengths[place] :])
    return torch.cat(outputs, dim=2).transpose(1, 2)


def projections(num_tokens: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, num_tokens, heads, 8) for heads in (4, 2, 2)]
    return [torch.randn(s, generator=generator).to(dtype).transpose(1, 2).requires_grad_() for s in shapes]


def attend(qkv: list[Tensor], segments: Segments, sliding_window: int | None = None) -> Tensor:
    query, key, value = qkv
    output, _ = packed_attention(
        nn.Identity(), query, key, value, None, segments=segments, sliding_window=sliding_window
    )
    return output


@pytest.mark.parametrize(
    ("lengths", "dtype", "tolerance"),
    [
        pytest.param(LENGTHS, torch.float64, 1e-12, id="in blocks"),
        pytest.param(LENGTHS, torch.float32, 1e-5, id="in blocks, float32"),
        pytest.param((5, 3, 1, MAX_SEGMENT, 7), torch.float64, 1e-12, id="the path is too long: the fused kernel"),
        pytest.param(LENGTHS, torch.bfloat16, 0.05, id="the fused kernel"),
    ],
)
def test_a_segment_attends_to_those_that_it_goes_on_from(
    lengths: tuple[int, ...], dtype: torch.dtype, tolerance: float
) -> None:
    segments = tree_of(lengths)
    qkv = projections(sum(lengths), dtype)
    upstream = torch.randn(1, sum(lengths), 4, 8, generator=torch.Generator().manual_seed(1)).to(dtype)

    actual = attend(qkv, segments)
    expected = by_rows(qkv, segments)

    assert torch.allclose(actual, expected, atol=tolerance)
    pairs = zip(torch.autograd.grad(actual, qkv, upstream), torch.autograd.grad(expected, qkv, upstream), strict=True)
    for actual_grad, expected_grad in pairs:
        assert torch.allclose(actual_grad, expected_grad, atol=20 * tolerance)


@pytest.mark.parametrize("window", [None, 100])
def test_a_kernel_for_many_lengths_gets_the_keys_of_whole_paths(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for flash-attention: the causal mask is aligned to the last query and the last key."""

    def varlen(
        q: Tensor, k: Tensor, v: Tensor, q_ends: Tensor, k_ends: Tensor, longest: int, path: int,
        window_size: tuple[int, int] = (-1, 0),
    ) -> Tensor:  # fmt: skip
        assert window_size == ((-1, 0) if window is None else (window - 1, 0)), "so many before it, none after it"
        assert (longest, path) == (max(LENGTHS), 5 + 3 + 140)
        outputs = []
        for place in range(len(LENGTHS)):
            own, keys = slice(*q_ends[place : place + 2].tolist()), slice(*k_ends[place : place + 2].tolist())
            size, width = own.stop - own.start, keys.stop - keys.start
            mask = torch.ones(size, width, dtype=torch.bool).tril(width - size)
            if window_size[0] >= 0:
                mask = mask.triu(width - size - window_size[0])
            parts = (q[own].transpose(0, 1), k[keys].transpose(0, 1), v[keys].transpose(0, 1))
            outputs.append(F.scaled_dot_product_attention(*parts, mask).transpose(0, 1))
        return torch.cat(outputs)

    monkeypatch.setattr(attention, "_VARLEN", varlen)
    monkeypatch.setattr(attention, "_VARLEN_CAUSAL", {})
    monkeypatch.setattr(attention, "_VARLEN_GROUPED", False)
    monkeypatch.setattr(attention, "_VARLEN_PARAMETERS", frozenset())
    segments = tree_of(LENGTHS)
    query, key, value = qkv = projections(sum(LENGTHS), torch.float64)

    actual = attention._varlen(query, key, value, None, segments, window)

    assert torch.allclose(actual, by_rows(qkv, segments, window), atol=1e-12)


@pytest.mark.parametrize("window", [1, 4, 100, 147, 148])
@pytest.mark.parametrize(
    ("lengths", "dtype", "tolerance"),
    [
        pytest.param(LENGTHS, torch.float64, 1e-12, id="in blocks"),
        pytest.param((5, 3, 1, MAX_SEGMENT, 7), torch.float64, 1e-12, id="the path is too long: the fused kernel"),
        pytest.param(LENGTHS, torch.bfloat16, 0.05, id="the fused kernel"),
    ],
)
def test_a_window_reaches_into_what_a_segment_goes_on_from(
    lengths: tuple[int, ...], dtype: torch.dtype, tolerance: float, window: int
) -> None:
    segments = tree_of(lengths)
    qkv = projections(sum(lengths), dtype)
    upstream = torch.randn(1, sum(lengths), 4, 8, generator=torch.Generator().manual_seed(1)).to(dtype)

    actual = attend(qkv, segments, sliding_window=window)
    expected = by_rows(qkv, segments, window)

    assert torch.allclose(actual, expected, atol=tolerance)
    pairs = zip(torch.autograd.grad(actual, qkv, upstream), torch.autograd.grad(expected, qkv, upstream), strict=True)
    for actual_grad, expected_grad in pairs:
        assert torch.allclose(actual_grad, expected_grad, atol=20 * tolerance)


# --- models


def forked_rows(seed: int = 0) -> list[TrainSequence]:
    group = forked_group(random.Random(seed), "reinforce.s000001-g00", VOCAB)
    return algorithm_of(ReinforceOptions()).rows([Sample(scored, 0) for scored in group])


def packed(rows: list[TrainSequence], *, shared: bool) -> PackedBatch:
    with pytest.MonkeyPatch.context() as patch:
        if not shared:
            patch.setattr(trees, "SHORTEST", NEVER)
        (batch,) = pack(rows, WHOLE, dtype=torch.float64)
    assert (batch.shared is not None) == shared
    return batch


@pytest.mark.parametrize("seed", range(3))
def test_log_probabilities_entropies_values_and_gradients_are_those_of_whole_rows(seed: int) -> None:
    rows, model = forked_rows(seed), small_model()
    critic = ValueModel(model)
    nn.init.normal_(critic.head.weight)
    found = []
    for shared in (True, False):
        batch = packed(rows, shared=shared)
        assert batch.indices == tuple(range(len(rows)))
        told = model.token_logprobs(batch, temperature=0.7, with_entropy=True)
        assert told.entropy is not None
        values = (told.logprobs, told.entropy, critic.values(batch))
        weights = torch.linspace(-1.0, 2.0, batch.num_tokens, dtype=torch.float64)
        loss = sum((value.square() * weights * factor).sum() for value, factor in zip(values, (1, 3, 0.2), strict=True))
        parameters = [*model.parameters(), *critic.parameters()]
        found.append((values, torch.autograd.grad(loss, parameters)))  # type: ignore[arg-type]

    (ours, own_grads), (theirs, their_grads) = found
    for actual, expected in zip((*ours, *own_grads), (*theirs, *their_grads), strict=True):
        assert torch.allclose(actual, expected, atol=PRECISION, rtol=0)
    assert max(float(grad.abs().max()) for grad in own_grads) > 1.0


# --- whole updates

BASE: Final[dict[str, Any]] = {
    "steps": 3, "groups_per_step": 3, "group_size": 5, "updates_per_step": 2, "epochs_per_step": 2,
    "tokens_per_microbatch": 60,
    "optimizer": {"learning_rate": 0.01, "betas": [0.9, 0.95], "eps": 1e-4, "max_grad_norm": 100.0},
}  # fmt: skip
CRITIC: Final[dict[str, Any]] = {"optimizer": {**BASE["optimizer"], "learning_rate": 0.02}}


def updated(options: dict[str, Any], batches: list[list[list[ScoredTrajectory]]]) -> tuple[list[Any], list[Tensor]]:
    """The metrics of each update, and the weights after the last."""
    section = ReinforceOptions.model_validate({**BASE, **options})
    engine = UpdateEngine(small_model(), algorithm_of(section), section, temperature=0.8)
    told = []
    for groups in batches:
        samples = [[Sample(scored, 0) for scored in group] for group in groups]
        told.append(engine.update([one for group in samples for one in engine.algorithm.rows(group)]))
    return told, [*engine.model.parameters(), *(engine.critic.parameters() if engine.critic else ())]


def forked_batches() -> list[list[list[ScoredTrajectory]]]:
    rng = random.Random(5)
    return [[forked_group(rng, f"reinforce.s{step:06d}-g{place:02d}", VOCAB) for place in range(3)] for step in (1, 2)]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="grpo"),
        pytest.param({"tokens_per_microbatch": 10}, id="grpo, each row alone, or nearly"),
        pytest.param({"tokens_per_microbatch": WHOLE}, id="grpo, in one micro-batch"),
        pytest.param({"aggregation": "sequence_mean_token_sum", "dual_clip": 1.1}, id="grpo, the sums of sequences"),
        pytest.param({"aggregation": "sequence_mean_token_mean", "entropy_coefficient": 0.1}, id="grpo, their means"),
        pytest.param({"kl": {"coefficient": 0.2}}, id="grpo, held to a reference"),
        pytest.param({"algorithm": "ppo", "critic": CRITIC}, id="ppo"),
        pytest.param(
            {"algorithm": "ppo", "critic": {**CRITIC, "warmup_steps": 1},
             "kl": {"coefficient": 0.2, "placement": "reward"}},
            id="ppo, penalised rewards",
        ),
    ],
)  # fmt: skip
def test_an_update_is_that_of_whole_rows(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    batches = forked_batches()

    told, weights = updated(options, batches)
    monkeypatch.setattr(trees, "SHORTEST", NEVER)
    plain, wanted = updated(options, batches)

    start = small_model()
    assert any((before - after).abs().max() > 1e-3 for before, after in zip(start.parameters(), weights, strict=False))
    for actual, expected in zip(weights, wanted, strict=True):
        assert torch.allclose(actual, expected, atol=PRECISION, rtol=0)
    for ours, theirs in zip(told, plain, strict=True):
        assert theirs["num_shared_tokens"] == 0
        kept = {name for name in ours if name not in ("update_s", "num_shared_tokens") and not math.isnan(ours[name])}
        assert {name: ours[name] for name in kept} == pytest.approx({name: theirs[name] for name in kept}, rel=1e-9)
        warms_up = math.isnan(ours["grad_norm"])
        assert ours["num_shared_tokens"] > 0 or warms_up or options.get("tokens_per_microbatch") == 10


def test_a_shared_update_is_the_same_every_time() -> None:
    first, second = (updated({"algorithm": "ppo", "critic": CRITIC}, forked_batches())[1] for _ in range(2))

    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_an_episode_cut_at_a_shared_node_goes_on_to_a_state_of_its_own() -> None:
    """PPO appends the last prompt to a cut row: behind what others go on from differently."""
    first = train_sequence([3, 4, 5, 9, 9], ".xx.x")
    second = train_sequence([3, 4, 5, 3, 4, 5], ".xx.xx")
    model = small_model()
    critic = ValueModel(model)
    nn.init.normal_(critic.head.weight)

    (together,) = pack([first, second], WHOLE, dtype=torch.float64)
    apart = [pack([one], WHOLE, dtype=torch.float64)[0] for one in (first, second)]

    assert together.num_computed == 3 + 2 + 3
    parts = torch.split(critic.values(together), list(together.lengths))
    for index, part in zip(together.indices, parts, strict=True):
        assert torch.allclose(part, critic.values(apart[index]), atol=PRECISION, rtol=0)
