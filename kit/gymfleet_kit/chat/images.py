"""Images in conversations: what a chat template writes in their place, learned from what it renders.

A rendered text has a mark for each image. A mark becomes what the template writes for an image, with the image token as
often as the model's processor repeats it. Marks are replaced behind the breaking up of control tokens, so that no text
from outside can stand for an image.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

from gymfleet_contracts.conversation import MessageImage

from gymfleet_kit.chat.template import ChatTemplate, UnusableTemplate

_TEXT: Final = "text-sentinel-3e81"


class Seeing(Protocol):
    """What a model makes of images."""

    token: str
    """The image token, as the tokenizer spells it."""

    def num_tokens(self, image: MessageImage) -> int:
        """Return how many image tokens an image is."""


def shown_in(template: ChatTemplate, text: str, images: Sequence[MessageImage], seeing: Seeing | None) -> str:
    """Return a rendered text with the image tokens of its images in the place of their marks.

    Raises UnusableTemplate where there are images and nothing sees them, or the template writes none, or not as often
    as they are shown.
    """
    if not images:
        return text
    if seeing is None:
        raise UnusableTemplate("it shows images, and this model reads text alone")
    before, behind = _around(template, seeing.token)
    parts, rest = [], text
    for image in images:
        part, mark, rest = rest.partition(image.mark)
        if not mark:
            raise UnusableTemplate(f"the chat template leaves out {image.mark}, or writes images in another order")
        parts += [part, before, seeing.token * seeing.num_tokens(image), behind]
    if any(image.mark in rest for image in images):
        raise UnusableTemplate("the chat template writes the mark of an image twice, or another message has it")
    return "".join([*parts, rest])


def _around(template: ChatTemplate, token: str) -> tuple[str, str]:
    """Return what the template writes around the image token of an image."""
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
