"""Observations of environments: text, or text and images. Images are named by the hash of their content."""

import base64
import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from gymfleet_contracts._model import WireModel, is_absent

ImageType = Literal["image/png", "image/jpeg", "image/webp"]
MAX_IMAGE_BYTES: Final = 2 * 1024 * 1024
MAX_PARTS: Final = 64

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class TextPart(WireModel):
    """A piece of text."""

    type: Literal["text"] = "text"
    text: str


class ImagePart(WireModel):
    """An image; the session serves its content at `GET /v1/sessions/{id}/images/{sha256}` until its next step."""

    type: Literal["image"] = "image"
    sha256: Sha256
    media_type: ImageType


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]
Parts = Annotated[tuple[Part, ...], Field(max_length=MAX_PARTS, exclude_if=is_absent)]
"""The observation in full, if it is more than text. The accompanying text says the same to readers of text alone, with
`image_mark` in place of each image."""


class AskForImage(WireModel):
    """A request for an image of the session's last observation."""

    sha256: Sha256


class ImageContent(WireModel):
    """An image, as sent on the stream. Over REST the answer is the content itself, with its media type."""

    media_type: ImageType
    content: bytes


_SIGNATURES: Final[Mapping[ImageType, bytes]] = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
}


def media_type_of(content: bytes) -> ImageType:
    """Return the media type that an image's first bytes indicate. Raises TypeError and ValueError for anything else."""
    if not isinstance(content, bytes):
        raise TypeError(f"the content of an image must be bytes, got {type(content).__name__}")
    if len(content) > MAX_IMAGE_BYTES:
        raise ValueError(f"an image has at most {MAX_IMAGE_BYTES} bytes, got {len(content)}")
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    for media_type, signature in _SIGNATURES.items():
        if content.startswith(signature):
            return media_type
    raise ValueError("an image must be PNG, JPEG or WebP")


def image_mark(sha256: str) -> str:
    """Return the mark that stands for an image in a text; different images have different marks."""
    return f"[image {sha256[:16]}]"


class ImageFile(WireModel):
    """An image that is kept with a message or an episode. In the text, a mark stands in its place."""

    media_type: ImageType
    content: Annotated[str, Field(max_length=MAX_IMAGE_BYTES * 4 // 3 + 4)]
    """The file, in base64."""

    @model_validator(mode="after")
    def is_an_image(self) -> Self:
        """Require that the content is an image of `media_type`, and not too large."""
        found = media_type_of(self.data)
        if found != self.media_type:
            raise ValueError(f"media_type: it is {self.media_type}, and the content begins as {found}")
        return self

    @cached_property
    def data(self) -> bytes:
        """The file itself."""
        return base64.b64decode(self.content, validate=True)

    @cached_property
    def sha256(self) -> str:
        """The hash of the file, by which it is named."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def mark(self) -> str:
        """The mark that stands for the image in the text."""
        return image_mark(self.sha256)
