"""Images from outside as the patches that a model sees, by the model's own processor of images."""

import io
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final

import torch
from gymfleet_contracts.conversation import Message, MessageImage
from gymfleet_kit.chat.tokenizer import ModelTokenizer

from gymfleet_trainer.errors import TrainerError
from gymfleet_trainer.model.families import config_of
from gymfleet_trainer.model.vision import SEEING, SeenImage

MAX_SIDE: Final = 8192
MAX_PIXELS: Final = 1 << 24
"""Of an image that is decoded: a file of a few bytes can say that it has billions."""
_FORMATS: Final = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP"}
_PROCESSOR: Final = "preprocessor_config.json"


class BadImage(ValueError):
    """An image cannot be seen; the message says why."""


class ImageReader:
    """Reads images for one model.

    Args:
        directory: with the model's `config.json`, tokenizer and `preprocessor_config.json`.

    Raises:
        TrainerError: the model sees no images, or not with what is in its directory.
    """

    def __init__(self, directory: Path) -> None:
        config = config_of(directory)
        if config.model_type not in SEEING:
            raise TrainerError(
                f"the data show images, and models of the family {config.model_type!r} are trained with text alone; "
                f"images are seen by {', '.join(SEEING)}"
            )
        if not (directory / _PROCESSOR).is_file():
            raise TrainerError(
                f"the data show images, and {directory / _PROCESSOR} is missing: put the file that the model was "
                "published with beside its weights"
            )
        self._processor = _processor_of(directory)
        self._merge = int(config.vision_config.spatial_merge_size)
        self._token_id = int(config.image_token_id)
        self.token = ModelTokenizer.load(directory).token(self._token_id)
        self.seen = lru_cache(maxsize=64)(self._seen)

    def num_tokens(self, image: MessageImage) -> int:
        """Return how many image tokens an image is. Raises `BadImage`."""
        (rows, columns), _ = self.seen(image)
        return rows * columns // self._merge**2

    def placed(self, images: Sequence[MessageImage], prompt: Sequence[int], offset: int) -> Iterator[SeenImage]:
        """Yield images where their tokens stand in a prompt, which begins at `offset` in its row."""
        place = 0
        for image in images:
            grid, patches = self.seen(image)
            place = list(prompt).index(self._token_id, place)
            yield SeenImage(offset + place, grid, self._merge, patches)
            place += self.num_tokens(image)

    def _seen(self, image: MessageImage) -> tuple[tuple[int, int], torch.Tensor]:
        """Return the grid and the patches of an image. Raises `BadImage`."""
        try:
            made = self._processor(images=[_opened(image)], return_tensors="pt")
        except BadImage:
            raise
        except Exception as error:  # noqa: BLE001 - decoders and processors raise what they like
            told = " ".join(str(error).split()) or type(error).__name__
            raise BadImage(f"{image.mark} cannot be read: {told:.200}") from None
        _, rows, columns = (int(number) for number in made["image_grid_thw"][0])
        return (rows, columns), made["pixel_values"].float()


class LazyReader:
    """The reader of a model, which is made for the first image."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def of(self, messages: Sequence[Message]) -> ImageReader | None:
        """Return the reader, if there is an image among the messages. Raises TrainerError."""
        return self._reader if any(message.images for message in messages) else None

    def seen(self, images: Sequence[MessageImage], prompt: Sequence[int], offset: int) -> list[SeenImage]:
        """Return the images of a prompt, which begins at `offset` in its row."""
        return list(self._reader.placed(images, prompt, offset)) if images else []

    @cached_property
    def _reader(self) -> ImageReader:
        return ImageReader(self._directory)


def _processor_of(directory: Path) -> Any:
    from transformers import AutoImageProcessor  # noqa: PLC0415 - only for models that see

    try:
        return AutoImageProcessor.from_pretrained(str(directory), backend="pil", local_files_only=True)
    except (OSError, ValueError, ImportError, TypeError, KeyError) as error:
        told = " ".join(str(error).split())
        raise TrainerError(f"{directory / _PROCESSOR} makes no processor of images: {told:.200}") from None


def _opened(image: MessageImage) -> Any:
    """Return an image of Pillow, in red, green and blue. Raises `BadImage` before anything large is decoded."""
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
