"""Images in conversations: what a chat template writes in their place, learned from what it renders.

A rendered text has a mark for each image. A mark becomes what the template writes for an image, with the image token as
often as the model's processor repeats it. Marks are replaced behind the breaking up of control tokens, so that no text
from outside can stand for an image.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

from gymfleet_contracts.observation import ImageFile

from gymfleet_kit.chat.template import ChatTemplate, UnusableTemplate

_TEXT: Final = "text-sentinel-3e81"


class Seeing(Protocol):
    """What a model makes of images."""

    token: str
    """The image token, as the tokenizer spells it."""

    def num_tokens(self, image: ImageFile) -> int:
        """Return how many image tokens an image is."""


class MarkedImage(NamedTuple):
    """An image that a text has a mark for."""

    mark: str
    token: str
    """The image token."""
    num_tokens: int


def marked(images: Sequence[ImageFile], seeing: Seeing | None) -> tuple[MarkedImage, ...]:
    """Return the images of a text that has their own marks. Raises UnusableTemplate where nothing sees them."""
    if images and seeing is None:
        raise UnusableTemplate("it shows images, and this model reads text alone")
    return tuple(MarkedImage(one.mark, seeing.token, seeing.num_tokens(one)) for one in images if seeing is not None)


def shown_in(template: ChatTemplate, text: str, images: Sequence[MarkedImage]) -> str:
    """Return a rendered text with the image tokens of its images in the place of their marks.

    Raises UnusableTemplate where the template writes no images, or not as often as they are shown.
    """
    if not images:
        return text
    parts, rest = [], text
    for image in images:
        before, behind = around(template, image.token)
        part, mark, rest = rest.partition(image.mark)
        if not mark:
            raise UnusableTemplate(f"the chat template leaves out {image.mark}, or writes images in another order")
        parts += [part, before, image.token * image.num_tokens, behind]
    if any(image.mark in rest for image in images):
        raise UnusableTemplate("the chat template writes the mark of an image twice, or another message has it")
    return "".join([*parts, rest])


@lru_cache(maxsize=64)
def around(template: ChatTemplate, token: str) -> tuple[str, str]:
    """Return what the template writes around the image token of an image. Raises UnusableTemplate."""
    image, words = {"type": "image"}, {"type": "text", "text": _TEXT}
    try:
        without, shown = (_before(template, parts) for parts in ([words], [image, words]))
    except UnusableTemplate as error:
        raise UnusableTemplate(f"the chat template shows no images: {error}") from None
    before, found, behind = shown.removeprefix(without).partition(token)
    if not shown.startswith(without) or not found or token in behind:
        raise UnusableTemplate(f"the chat template shows no images as one {token!r} each")
    return before, behind


def _before(template: ChatTemplate, parts: Sequence[dict[str, Any]]) -> str:
    """Return what the template writes before the text of a user's message."""
    before, found, _ = template.render([{"role": "user", "content": list(parts)}], prompt=True).partition(_TEXT)
    if not found:
        raise UnusableTemplate("it takes no content in parts")
    return before
