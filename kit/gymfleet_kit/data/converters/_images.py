"""Images in messages as in OpenAI's chat API: parts of a content, with the file in a `data:` URL."""

import re
from collections.abc import Sequence
from typing import Final

from gymfleet_contracts.observation import ImageFile
from pydantic import JsonValue

from gymfleet_kit.data.converter import UnusableRecord, field

_DATA: Final = re.compile(r"data:(image/(?:png|jpeg|webp));base64,")


def shown_in(parts: Sequence[JsonValue]) -> tuple[str, tuple[ImageFile, ...]]:
    """Return a content's text, with a mark for each image, and the images. Raises `UnusableRecord`."""
    texts, images = [], []
    for part in parts:
        if isinstance(part, dict) and part.get("type") == "image_url":
            images.append(_image(part.get("image_url")))
            texts.append(images[-1].mark)
        elif isinstance(part, dict) and part.get("type") == "text":
            texts.append(field(part, "text", str))
        else:
            raise UnusableRecord("content: a part that is neither text nor an image_url")
    return "".join(texts), tuple(images)


def parts_of(content: str, images: Sequence[ImageFile]) -> list[JsonValue]:
    """Return a content with marks in the form of parts."""
    parts: list[JsonValue] = []
    for image in images:
        text, _, content = content.partition(image.mark)
        parts += [{"type": "text", "text": text}] if text else []
        url = f"data:{image.media_type};base64,{image.content}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts + ([{"type": "text", "text": content}] if content else [])


def _image(given: JsonValue) -> ImageFile:
    url = given.get("url") if isinstance(given, dict) else given
    found = _DATA.match(url) if isinstance(url, str) else None
    if not isinstance(url, str) or found is None:
        raise UnusableRecord("image_url: a PNG, JPEG or WebP as a data: URL in base64 is wanted; nothing is fetched")
    try:
        return ImageFile.model_validate({"media_type": found[1], "content": url[found.end() :]})
    except ValueError as error:
        told = " ".join(str(error).split())
        raise UnusableRecord(f"image_url: {told:.200}") from None
