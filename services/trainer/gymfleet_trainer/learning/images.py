"""Images of conversations and episodes, as a model sees them in rows of tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from gymfleet_contracts.conversation import Message
from gymfleet_contracts.observation import ImageFile
from gymfleet_kit.chat.image_reader import BadImage, ImageReader, ReadImage, SeesNothing

from gymfleet_trainer.errors import TrainerError
from gymfleet_trainer.model.batching import TrainSequence, UnreadImage
from gymfleet_trainer.model.files import READING, files_of
from gymfleet_trainer.model.vision import SeenImage


class LazyReader:
    """The image reader of a model (a directory or hub id), created for the first image."""

    def __init__(self, model: str | Path) -> None:
        self._model = str(model)

    def of(self, messages: Sequence[Message]) -> ImageReader | None:
        """Return the reader, if there is an image among the messages. Raises TrainerError."""
        return self._reader if any(message.images for message in messages) else None

    def seen(self, images: Sequence[ImageFile], prompt: Sequence[int], offset: int) -> list[SeenImage]:
        """Return the images of a prompt, which begins at `offset` in its row. Raises `BadImage`."""
        if not images:
            return []
        return [_seen(placed.start, placed.image) for placed in self._reader.placed(images, prompt, offset)]

    def rows(self, rows: Iterable[TrainSequence]) -> list[TrainSequence]:
        """Return rows of episodes with their images read. Raises TrainerError for one unlike the played one."""
        return [self._read(row) if row.images else row for row in rows]

    def _read(self, row: TrainSequence) -> TrainSequence:
        images = tuple(self._image(image, row) if isinstance(image, UnreadImage) else image for image in row.images)
        return replace(row, images=images)

    def _image(self, image: UnreadImage, row: TrainSequence) -> SeenImage:
        reader, tokens = self._reader, row.token_ids[image.start : image.end]
        try:
            read = reader.read(image.file)
        except BadImage as error:
            raise TrainerError(f"{row.trajectory_id}: {error}") from None
        if read.num_tokens != image.num_tokens or set(tokens) != {reader.token_id}:
            raise TrainerError(
                f"{row.trajectory_id}: {image.file.mark} stands for {image.num_tokens} tokens, and this model has "
                f"{read.num_tokens} for it: the episode was played by another"
            )
        return _seen(image.start, read)

    @cached_property
    def _reader(self) -> ImageReader:
        try:
            return ImageReader(files_of(self._model, ("config.json", *READING)))
        except SeesNothing as error:
            raise TrainerError(f"the data show images, and {error}") from None


def _seen(start: int, image: ReadImage) -> SeenImage:
    return SeenImage(start, image.grid, image.merge, torch.from_numpy(image.patches))
