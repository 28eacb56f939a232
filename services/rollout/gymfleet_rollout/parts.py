"""The parts that episodes are played with."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from gymfleet_contracts.rollout import Sampling
from gymfleet_contracts.session import EnvironmentSpec
from gymfleet_kit.chat.image_reader import ImageReader, PlacedImage
from gymfleet_kit.chat.tokens import ChatTokens
from gymfleet_kit.formats import CheckedFormat

from gymfleet_rollout.evaluator import Evaluator
from gymfleet_rollout.inference.base import Generation
from gymfleet_rollout.sessions import Sessions


class Sampler(Protocol):
    """The part of the policy that an episode needs."""

    @property
    def model(self) -> str:
        """Return the name of the model."""

    @property
    def live_version(self) -> int:
        """Return the policy version that generates replies now."""

    @property
    def max_model_len(self) -> int:
        """Return the limit for the tokens of prompt and reply together."""

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop_token_ids: tuple[int, ...],
        images: Sequence[PlacedImage] = (),
    ) -> Generation:
        """Sample a reply. Raises InferenceError."""

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[asyncio.Timeout]:
        """Return a time limit like `asyncio.timeout`, paused while nothing is sampled because weights are replaced."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that episodes are played with."""

    policy: Sampler
    chat: ChatTokens
    sessions: Sessions
    spec: EnvironmentSpec
    format: CheckedFormat
    evaluator: Evaluator | None = None
    reader: ImageReader | None = None
    """The reader of images, if the policy is shown them."""
