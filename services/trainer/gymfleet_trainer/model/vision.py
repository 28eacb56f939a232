"""The images of a policy's rows of tokens, as patches for the frozen part of the model that sees them.

An image occupies a run of image tokens in its row. That part computes their embeddings from the patches. Each token has
three positions: one time for all tokens of an image, and a row and a column each, from where the text ended. The text
after it continues after the largest, as in the families of Qwen2-VL (arXiv:2409.12191, section 2.1).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import torch
from gymfleet_kit.chat.image_reader import SEEING
from torch import Tensor

from gymfleet_trainer.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class SeenImage:
    """An image in a row of tokens."""

    start: int
    """The first of its image tokens."""
    grid: tuple[int, int]
    """Rows and columns of its patches."""
    merge: int
    """Height and width of a token, in patches."""
    patches: Tensor
    """(rows * columns, D) float, on the CPU, as made by the model's image processor."""

    def __post_init__(self) -> None:
        rows, columns = self.grid
        if min(self.grid) < 1 or rows % self.merge or columns % self.merge:
            raise ValueError(f"an image of {rows} x {columns} patches has no tokens of {self.merge} x {self.merge}")
        if self.patches.ndim != 2 or len(self.patches) != rows * columns:
            raise ValueError(f"an image of {rows} x {columns} patches has the shape {tuple(self.patches.shape)}")

    @property
    def size(self) -> tuple[int, int]:
        """Return rows and columns of its tokens."""
        return self.grid[0] // self.merge, self.grid[1] // self.merge

    @property
    def end(self) -> int:
        """Return where its tokens end, exclusive."""
        return self.start + self.size[0] * self.size[1]


class Placed(Protocol):
    """An image at a run of tokens in a row."""

    @property
    def start(self) -> int:
        """Return its first token."""

    @property
    def end(self) -> int:
        """Return where its tokens end, exclusive."""


@dataclass(frozen=True, slots=True)
class PackedImages:
    """The images of a packed batch, in the order of their tokens."""

    places: Tensor
    """(V,) int64, the image tokens."""
    patches: Tensor
    """(P, D) float, of all images."""
    grids: Tensor
    """(I, 3) int64, each image's numbers of frames (1), rows and columns of patches."""

    def to(self, device: torch.device | str) -> "PackedImages":
        """Return the images on `device`."""
        moved = (one.to(device, non_blocking=True) for one in (self.places, self.patches, self.grids))
        return PackedImages(*moved)


@dataclass(frozen=True, slots=True)
class Features:
    """What a model computes from the images of a batch."""

    embeddings: Tensor
    """(V, hidden), of the image tokens."""
    by_layer: list[Tensor]
    """(V, hidden) each, to be added after the first layers; Qwen3-VL has some."""


def require_in_order(images: Sequence[Placed], length: int, name: str) -> None:
    """Raise ValueError for images that do not follow one another within a row's tokens."""
    bounds = [0, *chain.from_iterable((image.start, image.end) for image in images), length]
    if bounds != sorted(bounds):
        raise ValueError(f"{name}: images must follow one another within {length} tokens: {bounds[1:-1]}")


def positions_of(length: int, images: Sequence[SeenImage]) -> Tensor:
    """Return the (3, L) int64 positions of a row's tokens in time, height and width."""
    parts, place, next_position = [], 0, 0
    for image in images:
        text = image.start - place
        parts.append(torch.arange(text).expand(3, -1) + next_position)
        rows, columns = image.size
        row, column = torch.arange(rows).repeat_interleave(columns), torch.arange(columns).repeat(rows)
        parts.append(torch.stack([torch.zeros_like(row), row, column]) + next_position + text)
        place, next_position = image.end, next_position + text + max(rows, columns)
    parts.append(torch.arange(length - place).expand(3, -1) + next_position)
    return torch.cat(parts, dim=1)


def packed_images(rows: Sequence[Sequence[SeenImage]], starts: Sequence[int]) -> PackedImages | None:
    """Return the images of rows that begin at these places; None where there are none."""
    found = [(start, image) for start, images in zip(starts, rows, strict=True) for image in images]
    if not found:
        return None
    places = chain.from_iterable(range(start + image.start, start + image.end) for start, image in found)
    return PackedImages(
        torch.tensor(list(places), dtype=torch.int64),
        torch.cat([image.patches for _, image in found]),
        torch.tensor([(1, *image.grid) for _, image in found], dtype=torch.int64),
    )


def tower_of(model: Any) -> Any:
    """Return the part of a transformers model that sees images; None where the trainer knows none."""
    return getattr(getattr(model, "model", None), "visual", None) if _kind(model) in SEEING else None


def prepare(model: Any) -> None:
    """Give the part that sees images its own attention: each image attends to itself."""
    if (tower := tower_of(model)) is not None:
        tower.config._attn_implementation = "sdpa"  # noqa: SLF001 - transformers has it there alone


@torch.no_grad()
def features_of(model: Any, images: PackedImages) -> Features:
    """Return a transformers model's features of images. Raises UnsupportedModel if the trainer cannot compute them."""
    tower = tower_of(model)
    if tower is None:
        raise UnsupportedModel(f"the family {_kind(model)!r} is trained with text alone; images: {', '.join(SEEING)}")
    seen = tower(images.patches.to(tower.dtype), grid_thw=images.grids, return_dict=True)
    if len(seen.pooler_output) != len(images.places):
        raise ValueError(f"images have {len(images.places)} tokens in the rows, and {len(seen.pooler_output)} seen")
    return Features(seen.pooler_output, list(getattr(seen, "deepstack_features", None) or ()))


def placed(embedded: Tensor, images: PackedImages, seen: Features) -> tuple[Tensor, dict[str, Any]]:
    """Return the (1, U, hidden) embeddings with those of the images in place, and the decoder's further arguments."""
    whole = embedded[0].index_copy(0, images.places, seen.embeddings.to(embedded.dtype))[None]
    if not seen.by_layer:
        return whole, {}
    mask = torch.zeros(whole.shape[:2], dtype=torch.bool, device=whole.device)
    mask[0, images.places] = True
    return whole, {"visual_pos_masks": mask, "deepstack_visual_embeds": seen.by_layer}


def _kind(model: Any) -> str:
    return str(getattr(model.config, "model_type", ""))
