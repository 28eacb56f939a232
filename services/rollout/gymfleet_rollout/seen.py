"""Images that the policy sees: fetched while the session shows them, marked in texts, and placed in prompts.

An observation's text has a mark for each image, which contains its hash, and an environment can write such a mark
itself. The mark that becomes an image in a prompt is therefore a different one, which nobody outside can know.
"""

import asyncio
import base64
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gymfleet_contracts.observation import ImageFile, ImagePart, Part, TextPart, image_mark
from gymfleet_contracts.trajectory import MAX_SEEN_BYTES, PromptImage, Turn
from gymfleet_kit.chat.image_reader import BadImage, ImageReader, PlacedImage
from gymfleet_kit.chat.images import MarkedImage
from pydantic import ValidationError

from gymfleet_rollout.errors import StrategyError
from gymfleet_rollout.sessions import Sessions


@dataclass(frozen=True, slots=True)
class ShownImage:
    """An image of an observation, as the policy is shown it."""

    sha256: str
    marked: MarkedImage


class Prompted(NamedTuple):
    """The tokens of a prompt, and where they show images."""

    token_ids: tuple[int, ...] = ()
    images: tuple[PromptImage, ...] = ()


class Seen:
    """The images that an attempt at a group's samples has shown to the policy.

    Args:
        reader: reads images for the model; None if the policy is shown the texts of observations alone.
    """

    def __init__(self, reader: ImageReader | None, sessions: Sessions, timeout_s: float) -> None:
        self._reader: Final = reader
        self._sessions = sessions
        self._timeout_s = timeout_s
        self._files: dict[str, ImageFile] = {}
        self._nonce = secrets.token_hex(16)
        self._num_shown = 0

    async def shown(self, session_id: str, parts: Sequence[Part]) -> tuple[ShownImage, ...]:
        """Fetch the images of a session's last observation.

        Raises ClientError, and StrategyError for an image that cannot be seen.
        """
        if self._reader is None:
            return ()
        found = []
        for part in parts:
            if isinstance(part, ImagePart):
                if part.sha256 not in self._files:
                    await self._fetch(session_id, part)
                try:  # decoding takes milliseconds, in which other episodes go on
                    num_tokens = await asyncio.to_thread(self._reader.num_tokens, self._files[part.sha256])
                except BadImage as error:
                    raise StrategyError(f"the environment shows what is no image: {error}") from None
                self._num_shown += 1
                mark = f"[image {self._nonce} {self._num_shown}]"
                found.append(ShownImage(part.sha256, MarkedImage(mark, self._reader.token, num_tokens)))
        return tuple(found)

    async def _fetch(self, session_id: str, part: ImagePart) -> None:
        content = await self._sessions.image(session_id, part.sha256, timeout_s=self._timeout_s)
        try:
            file = ImageFile(media_type=part.media_type, content=base64.b64encode(content).decode())
        except ValidationError as error:
            told = error.errors(include_url=False)[0]["msg"]
            raise StrategyError(f"the environment shows what is no image: {told}") from None
        if file.sha256 != part.sha256:
            raise StrategyError(f"the image {part.sha256} that was fetched has the hash {file.sha256}")
        if sum(len(one.data) for one in self._files.values()) + len(content) > MAX_SEEN_BYTES:
            raise StrategyError(
                f"the episodes of a group show more than {MAX_SEEN_BYTES >> 20} MiB of images: let the environment "
                'show smaller ones, or give rollout.images = "text"'
            )
        self._files[part.sha256] = file

    def prompted(self, token_ids: tuple[int, ...], shown: Sequence[ShownImage]) -> Prompted:
        """Return a prompt with the places of the images that it shows, in order."""
        if self._reader is None or not shown:
            return Prompted(token_ids)
        starts = self._reader.starts([one.marked.num_tokens for one in shown], token_ids)
        return Prompted(
            token_ids,
            tuple(
                PromptImage(sha256=one.sha256, start=start, num_tokens=one.marked.num_tokens)
                for one, start in zip(shown, starts, strict=True)
            ),
        )

    async def placed(self, images: Sequence[tuple[int, PromptImage]]) -> list[PlacedImage]:
        """Return images with their patches and their places in the context, given where their prompts begin."""
        if self._reader is None or not images:
            return []
        read = self._reader.read
        return [
            PlacedImage(begin + image.start, await asyncio.to_thread(read, self._files[image.sha256]))
            for begin, image in images
        ]

    def files(self, turns: Sequence[Turn]) -> tuple[ImageFile, ...]:
        """Return the files of the images that the prompts of turns show, each once."""
        names = dict.fromkeys(image.sha256 for turn in turns for image in turn.prompt_images)
        return tuple(self._files[name] for name in names)


def marked_text(observation: str, parts: Sequence[Part], shown: Sequence[ShownImage]) -> str:
    """Return an observation's text with the marks by hash replaced by those of the shown images.

    Raises StrategyError for an observation that was cut, because some images may be missing from it.
    """
    if not shown:
        return observation
    marks = iter(shown)
    told = "\n".join(part.text if isinstance(part, TextPart) else image_mark(part.sha256) for part in parts)
    text = "\n".join(part.text if isinstance(part, TextPart) else next(marks).marked.mark for part in parts)
    if not observation.startswith(told):
        raise StrategyError("an observation with images was cut, as it is too long: its images cannot be shown")
    return text + observation[len(told) :]
