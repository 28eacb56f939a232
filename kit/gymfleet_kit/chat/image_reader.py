"""External images as the patches that a model sees, made by the model's own image processor.

Trainer and rollout read them with the same code, so that training uses the patches that were seen, to the bit.
"""

import io
import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final

from gymfleet_contracts.observation import ImageFile

from gymfleet_kit.chat.tokenizer import ModelTokenizer, UnusableTokenizer

SEEING: Final = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""The model families whose images are supported, by the `model_type` of their configs."""
MAX_SIDE: Final = 8192
MAX_PIXELS: Final = 1 << 24
"""The most pixels of an image to decode: a file of a few bytes can claim billions."""
_FORMATS: Final = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP"}
_PROCESSOR: Final = "preprocessor_config.json"
_PATCHES: Final = {
    "patch_size": "patch_size", "temporal_patch_size": "temporal_patch_size", "merge_size": "spatial_merge_size",
}  # fmt: skip
"""What a processor and the model's config both say of patches, by their names for it."""
_KEPT_BYTES: Final = 256 * 1024 * 1024
"""The most bytes of patches to keep: an image of a million pixels has 24 MB of them."""


class BadImage(ValueError):
    """An image cannot be seen; the message says why."""


class SeesNothing(Exception):
    """The model sees no images, or its directory lacks something for it; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadImage:
    """An image as a model sees it."""

    sha256: str
    grid: tuple[int, int]
    """Rows and columns of its patches."""
    merge: int
    """A token covers this many patches in height and in width."""
    patches: Any = field(repr=False)
    """(rows * columns, D) float32, numpy, as made by the model's image processor."""

    @property
    def num_tokens(self) -> int:
        """Return the number of image tokens."""
        return self.grid[0] * self.grid[1] // self.merge**2


@dataclass(frozen=True, slots=True, eq=False)
class PlacedImage:
    """An image in a row of tokens."""

    start: int
    """The first of its image tokens."""
    image: ReadImage


class ImageReader:
    """Reads images for one model. It may be used from several threads.

    Args:
        directory: contains the model's `config.json`, tokenizer and `preprocessor_config.json`.

    Raises:
        SeesNothing: the model sees no images, or its directory lacks something for it.
    """

    def __init__(self, directory: Path) -> None:
        if (family := _family_of(directory)) not in SEEING:
            raise SeesNothing(
                f"models of the family {family!r} read text alone; images are seen by {', '.join(SEEING)}"
            )
        if not (directory / _PROCESSOR).is_file():
            raise SeesNothing(
                f"{directory / _PROCESSOR} is missing: put the file that the model was published with beside its "
                "weights"
            )
        config = _config_of(directory)
        self._processor = _processor_of(directory)
        _require_same_patches(directory, self._processor, config.vision_config)
        self._merge = int(self._processor.merge_size)
        self.token_id: Final = int(config.image_token_id)
        try:
            self.token = ModelTokenizer.load(directory).token(self.token_id)
        except (UnusableTokenizer, KeyError) as error:
            raise SeesNothing(f"the tokenizer of {directory} has no image token {self.token_id}: {error}") from None
        self._kept: OrderedDict[str, ReadImage] = OrderedDict()
        self._kept_bytes = 0
        self._lock = Lock()

    def num_tokens(self, image: ImageFile) -> int:
        """Return the number of image tokens of an image. Raises `BadImage`."""
        return self.read(image).num_tokens

    def starts(self, images: Sequence[int], prompt: Sequence[int]) -> list[int]:
        """Return where images with these numbers of tokens begin in a prompt, which has no other image tokens."""
        tokens, found, place = list(prompt), [], 0
        for num_tokens in images:
            place = tokens.index(self.token_id, place)
            found.append(place)
            place += num_tokens
        return found

    def placed(self, images: Sequence[ImageFile], prompt: Sequence[int], offset: int) -> Iterator[PlacedImage]:
        """Yield images with the places of their tokens in a prompt, which begins at `offset` in its row."""
        read = [self.read(image) for image in images]
        for start, one in zip(self.starts([one.num_tokens for one in read], prompt), read, strict=True):
            yield PlacedImage(offset + start, one)

    def read(self, image: ImageFile) -> ReadImage:
        """Return an image as the model sees it. Raises `BadImage`."""
        with self._lock:
            if (known := self._kept.get(image.sha256)) is not None:
                self._kept.move_to_end(image.sha256)
                return known
        made = self._read(image)
        with self._lock:
            if image.sha256 not in self._kept:
                self._kept[image.sha256] = made
                self._kept_bytes += made.patches.nbytes
            while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
                self._kept_bytes -= self._kept.popitem(last=False)[1].patches.nbytes
        return made

    def _read(self, image: ImageFile) -> ReadImage:
        try:
            made = self._processor(images=[_opened(image)], return_tensors="np")
        except BadImage:
            raise
        except Exception as error:  # noqa: BLE001 - decoders and processors raise what they like
            told = " ".join(str(error).split()) or type(error).__name__
            raise BadImage(f"{image.mark} cannot be read: {told:.200}") from None
        _, rows, columns = (int(number) for number in made["image_grid_thw"][0])
        return ReadImage(image.sha256, (rows, columns), self._merge, made["pixel_values"].astype("float32"))


def sees_images(directory: Path) -> bool:
    """Return whether a model's family sees images. Raises SeesNothing if the directory names no family."""
    return _family_of(directory) in SEEING


def _family_of(directory: Path) -> str:
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        return str(config["model_type"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SeesNothing(f"{directory / 'config.json'} names no family: {error}") from None


def _config_of(directory: Path) -> Any:
    from transformers import AutoConfig  # noqa: PLC0415 - only for models that see

    return AutoConfig.from_pretrained(str(directory), local_files_only=True)


def _require_same_patches(directory: Path, processor: Any, vision: Any) -> None:
    """Raise SeesNothing if the processor makes other patches than the model takes, as that of a related model does."""
    for own, named in _PATCHES.items():
        made, taken = int(getattr(processor, own)), int(getattr(vision, named))
        if made != taken:
            raise SeesNothing(
                f"{directory / _PROCESSOR} has {own} = {made}, and the model's vision_config has {named} = {taken}: "
                "put the file that the model was published with beside its weights"
            )


def _processor_of(directory: Path) -> Any:
    from transformers import AutoImageProcessor  # noqa: PLC0415 - only for models that see

    try:
        return AutoImageProcessor.from_pretrained(str(directory), backend="pil", local_files_only=True)
    except (OSError, ValueError, ImportError, TypeError, KeyError) as error:
        told = " ".join(str(error).split())
        raise SeesNothing(f"{directory / _PROCESSOR} makes no processor of images: {told:.200}") from None


def _opened(image: ImageFile) -> Any:
    """Return a Pillow image in RGB. Raises `BadImage` before anything large is decoded."""
    import PIL.Image  # noqa: PLC0415 - only for models that see

    with PIL.Image.open(io.BytesIO(image.data), formats=[_FORMATS[image.media_type]]) as opened:
        width, height = opened.size
        if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
            raise BadImage(
                f"{image.mark} has {width} x {height} pixels; at most {MAX_SIDE} a side and {MAX_PIXELS} in all "
                "are decoded"
            )
        if (num_frames := int(getattr(opened, "n_frames", 1))) > 1:
            raise BadImage(f"{image.mark} is a film of {num_frames} frames")
        return opened.convert("RGB")
