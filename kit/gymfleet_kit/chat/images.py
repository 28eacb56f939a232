"""Images in conversations: the text that a chat template writes for them, learned from its renderings.

A rendered text has a mark for each image. A mark is replaced by the template's text for an image, with the image token
as often as the model's processor repeats it. Marks are replaced after control tokens are broken up, so that no external
text can pass for an image.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

from gymfleet_contracts.observation import ImageFile

from gymfleet_kit.chat.template import ChatTemplate, UnusableTemplate

_TEXT: Final = "text-sentinel-3e81"


class Seeing(Protocol):
    """A model's handling of images."""

    token: str
    """The image token in the tokenizer's spelling."""

    def num_tokens(self, image: ImageFile) -> int:
        """Return the number of image tokens of an image."""


class MarkedImage(NamedTuple):
    """An image for which a text has a mark."""

    mark: str
    token: str
    """The image token."""
    num_tokens: int


def marked(images: Sequence[ImageFile], seeing: Seeing | None) -> tuple[MarkedImage, ...]:
    """Return the images of a text with their marks. Raises UnusableTemplate if the model sees no images."""
    if images and seeing is None:
        raise UnusableTemplate("it shows images, and this model reads text alone")
    return tuple(MarkedImage(one.mark, seeing.token, seeing.num_tokens(one)) for one in images if seeing is not None)


def shown_in(template: ChatTemplate, text: str, images: Sequence[MarkedImage]) -> str:
    """Return a rendered text with the marks of its images replaced by their image tokens.

    Raises UnusableTemplate if the template writes no images, or not each exactly once.
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
    """Return the texts that the template writes before and after an image token. Raises UnusableTemplate."""
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
    """Return the text that the template writes before the text of a user's message."""
    before, found, _ = template.render([{"role": "user", "content": list(parts)}], prompt=True).partition(_TEXT)
    if not found:
        raise UnusableTemplate("it takes no content in parts")
    return before
