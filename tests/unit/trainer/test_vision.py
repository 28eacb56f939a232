"""Images in packed rows: positions, embeddings and log-probabilities are those of transformers' own computation."""

from typing import Any

import pytest
import torch
from gymfleet_kit.chat.image_reader import SEEING
from gymfleet_trainer.errors import UnsupportedModel
from gymfleet_trainer.model.attention import PACKED_ATTENTION
from gymfleet_trainer.model.batching import TrainSequence, pack
from gymfleet_trainer.model.policy_model import PolicyModel, packed_hidden_states
from gymfleet_trainer.model.vision import SeenImage, features_of, positions_of, prepare

from tests.fixtures.small_models import small_model

IMAGE, BEGIN, END = 5, 7, 8
MERGE = 2


def image(start: int, grid: tuple[int, int], config: Any, seed: int) -> SeenImage:
    vision = config.vision_config
    size = getattr(vision, "in_channels", 3) * vision.temporal_patch_size * vision.patch_size**2
    patches = torch.randn(grid[0] * grid[1], size, generator=torch.Generator().manual_seed(seed))
    return SeenImage(start, grid, MERGE, patches)


def row(config: Any, *grids: tuple[int, int], seed: int, begins: tuple[int, ...] = (11, 12, 13)) -> TrainSequence:
    """Text, then each image between its marks with text behind it."""
    ids, images = list(begins), []
    for place, grid in enumerate(grids):
        ids.append(BEGIN)
        images.append(image(len(ids), grid, config, seed * 10 + place))
        ids += [IMAGE] * (grid[0] * grid[1] // MERGE**2)
        ids += [END, *range(20 + place, 24 + place)]
    mask = [token >= 20 for token in ids]
    nothing = [0.0] * len(ids)
    return TrainSequence(ids, mask, nothing, nothing, 0, f"r/g/{seed}", images=tuple(images))


def reference(model: Any, one: TrainSequence) -> torch.Tensor:
    """(L,) log-probabilities of a row's tokens by transformers, 0 where none is trained."""
    ids = torch.tensor([one.token_ids])
    seen = {
        "pixel_values": torch.cat([image.patches for image in one.seen]),
        "image_grid_thw": torch.tensor([(1, *image.grid) for image in one.seen]),
        "mm_token_type_ids": (ids == IMAGE).int(),
    } if one.images else {}  # fmt: skip
    logits = model(input_ids=ids, use_cache=False, **seen).logits[0]
    found = torch.log_softmax(logits.float(), -1)[:-1].gather(-1, ids[0, 1:, None])[:, 0]
    return torch.where(one.mask(), torch.cat([torch.zeros(1), found]), 0.0)


def rows_of(config: Any) -> list[TrainSequence]:
    """With one image, with two, with none; the first two begin with the same tokens and show other images."""
    return [
        row(config, (4, 4), seed=1), row(config, (4, 4), (2, 6), seed=2), row(config, (4, 4), seed=3),
        row(config, seed=4, begins=tuple(range(20, 40))),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", SEEING)
def test_packed_rows_with_images_are_those_of_transformers(kind: str) -> None:
    plain, packed = small_model(kind, attention="eager"), small_model(kind, attention=PACKED_ATTENTION)
    policy = PolicyModel(packed)
    rows = rows_of(plain.config)

    (batch,) = pack(rows, 1000)
    found = policy.token_logprobs(batch).logprobs

    wanted = torch.cat([reference(plain, rows[index]) for index in batch.indices])
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    assert not torch.allclose(reference(plain, rows[0]), reference(plain, rows[2]), atol=1e-3), "images count"


@pytest.mark.parametrize("kind", SEEING)
def test_packing_changes_nothing(kind: str) -> None:
    policy = PolicyModel(small_model(kind, attention=PACKED_ATTENTION))
    rows = rows_of(policy.hf.config)

    (together,) = pack(rows, 1000)
    apart = [policy.token_logprobs(pack([rows[index]], 1000)[0]).logprobs for index in together.indices]

    torch.testing.assert_close(policy.token_logprobs(together).logprobs, torch.cat(apart), atol=2e-6, rtol=0)
    assert together.num_computed == sum(len(one.token_ids) for one in rows), "equal tokens with other images"


@pytest.mark.parametrize("kind", SEEING)
def test_gradients_are_those_of_transformers_and_what_sees_has_none(kind: str) -> None:
    plain, packed = small_model(kind, attention="eager"), small_model(kind, attention=PACKED_ATTENTION)
    packed.requires_grad_(requires_grad=False)
    policy = PolicyModel(packed)
    policy.body.requires_grad_(requires_grad=True)
    rows = rows_of(plain.config)

    torch.autograd.backward(torch.stack([reference(plain, one).sum() for one in rows]).sum())
    torch.autograd.backward(policy.token_logprobs(pack(rows, 1000)[0]).logprobs.sum())

    own = dict(policy.body.named_parameters())
    for name, parameter in plain.model.language_model.named_parameters():
        grad = own[name].grad
        assert grad is not None
        torch.testing.assert_close(grad, parameter.grad, atol=1e-4, rtol=1e-4)
    assert all(parameter.grad is None for parameter in packed.model.visual.parameters())


def test_what_sees_is_never_differentiated() -> None:
    model = small_model("qwen3_vl", attention=PACKED_ATTENTION)
    (batch,) = pack([row(model.config, (4, 4), seed=1)], 1000)
    prepare(model)
    assert batch.images is not None

    seen = features_of(model, batch.images)

    assert all(parameter.requires_grad for parameter in model.model.visual.parameters())
    assert not any(one.requires_grad for one in (seen.embeddings, *seen.by_layer))


def test_equal_tokens_with_other_images_are_not_shared_and_texts_beside_them_neither() -> None:
    config = small_model("qwen2_vl").config
    begins = tuple(range(20, 60))
    seeing = [row(config, (4, 4), seed=seed, begins=begins) for seed in (1, 2)]
    texts = [row(config, seed=seed, begins=(*begins, 60 + seed)) for seed in (3, 4)]

    assert [batch.num_computed for batch in pack(texts, 1000)] == [40 + 2]
    assert [batch.num_computed for batch in pack([*seeing, *texts], 1000)] == [
        sum(len(one.token_ids) for one in [*seeing, *texts])
    ]
    assert all(batch.num_computed <= 60 for batch in pack([*seeing, *texts], 60))


@pytest.mark.parametrize("kind", SEEING)
def test_positions_are_those_of_transformers(kind: str) -> None:
    model = small_model(kind)
    one = row(model.config, (4, 8), (6, 2), seed=1)
    ids = torch.tensor([one.token_ids])

    wanted, _ = model.model.get_rope_index(
        ids, (ids == IMAGE).int(), image_grid_thw=torch.tensor([(1, *image.grid) for image in one.seen])
    )

    assert positions_of(len(one.token_ids), one.seen).equal(wanted[:, 0])


def test_positions_worked_out_by_hand() -> None:
    seen = SeenImage(2, (4, 6), 2, torch.zeros(24, 1))

    assert positions_of(10, [seen]).tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6], [0, 1, 2, 2, 2, 3, 3, 3, 5, 6], [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: SeenImage(0, (3, 4), 2, torch.zeros(12, 1)), "3 x 4 patches has no tokens of 2 x 2"),
        (lambda: SeenImage(0, (2, 2), 2, torch.zeros(3, 1)), r"2 x 2 patches has the shape \(3, 1\)"),
    ],
)
def test_what_is_no_image(make: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make()


@pytest.mark.parametrize(
    ("ids", "mask", "told"),
    [
        ([IMAGE], [False], r"images must follow one another within 1 tokens"),
        ([1, IMAGE, IMAGE], [False, True, False], "an image token has a loss"),
    ],
)
def test_an_image_stands_within_its_row_and_is_not_trained(ids: list[int], mask: list[bool], told: str) -> None:
    seen = SeenImage(1, (2, 4), 2, torch.zeros(8, 1))
    nothing = [0.0] * len(ids)

    with pytest.raises(ValueError, match=told):
        TrainSequence(ids, mask, nothing, nothing, 0, "r/g/0", images=(seen,))


def test_a_family_that_is_trained_with_text_alone_is_refused() -> None:
    policy = PolicyModel(small_model("gemma3", attention=PACKED_ATTENTION))
    config = small_model("qwen2_vl").config

    with pytest.raises(UnsupportedModel, match=r"^the family 'gemma3' is trained with text alone; images: qwen2_vl"):
        policy.token_logprobs(pack([row(config, (4, 4), seed=1)], 1000)[0])


def test_a_critic_refuses_images() -> None:
    model = small_model("qwen2_vl", attention=PACKED_ATTENTION)
    (batch,) = pack([row(model.config, (4, 4), seed=1)], 1000)

    with pytest.raises(UnsupportedModel, match="a critic and a reward model read text alone"):
        packed_hidden_states(PolicyModel(model).body, batch.inputs, torch.float32)
