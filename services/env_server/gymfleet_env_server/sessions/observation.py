"""An environment's observation, in a form that can be sent."""

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from gymfleet_contracts.observation import (
    MAX_PARTS,
    ImageContent,
    ImagePart,
    Part,
    TextPart,
    image_mark,
    media_type_of,
)
from gymfleet_envs.environment import Image

CUT_MARK: Final = "\n[cut: {excess} more characters]"


class Shown(NamedTuple):
    """An observation as text; where it is more than that, its parts, and its images by their hash."""

    text: str
    parts: tuple[Part, ...] = ()
    images: Mapping[str, ImageContent] = MappingProxyType({})


NOTHING: Final = Shown("")


def shown(observation: str, given: Sequence[str | Image], max_chars: int) -> Shown:
    """Return an observation that can be sent. Raises TypeError and ValueError for anything else."""
    if not given:
        return Shown(text(observation, max_chars))
    if observation:
        raise ValueError("give the observation either as text or as parts")
    if not isinstance(given, list | tuple):
        raise TypeError(f"the parts of an observation must be a list or a tuple, got {type(given).__name__}")
    if len(given) > MAX_PARTS:
        raise ValueError(f"an observation has at most {MAX_PARTS} parts, got {len(given)}")
    parts: list[Part] = []
    images: dict[str, ImageContent] = {}
    for part in given:
        if isinstance(part, Image):
            media_type = media_type_of(part.content)
            sha256 = hashlib.sha256(part.content).hexdigest()
            images[sha256] = ImageContent(media_type=media_type, content=part.content)
            parts.append(ImagePart(sha256=sha256, media_type=media_type))
        else:
            parts.append(TextPart(text=text(part, max_chars)))
    marked = "\n".join(part.text if isinstance(part, TextPart) else image_mark(part.sha256) for part in parts)
    return Shown(text(marked, max_chars), tuple(parts), images)


def text(told: object, max_chars: int) -> str:
    """Return valid Unicode within the length limit. Raises TypeError for anything but a text."""
    if not isinstance(told, str):
        raise TypeError(f"an observation must be a str, got {type(told).__name__}")
    if not told.isascii():  # lone surrogates, such as from an engine's undecodable output
        told = told.encode(errors="replace").decode()
    if (excess := len(told) - max_chars) > 0:
        told = told[:-excess] + CUT_MARK.format(excess=excess)
    return told
