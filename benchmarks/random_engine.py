"""An inference backend that uses no processor time: random replies, and versions checked and read as by vLLM.

`bench_publish` measures the time of a trainer; an engine that computes on the same cores would be measured with it.
"""

import json
import math
import random
from pathlib import Path
from typing import Final

from gymfleet_rollout.backend import (
    BackendFacts,
    BackendOptions,
    Continuation,
    EngineConfig,
    GenerationRequest,
    InferenceBackend,
    Over,
    ThreadEngine,
)
from gymfleet_rollout.inference.manifest import require_intact
from safetensors.torch import load_file
from torch import Tensor

_ENDS: Final = 0.2
"""The share of tokens that end a reply, so that replies differ in length."""


class RandomEngine(ThreadEngine):
    """An engine for which all tokens of the vocabulary are equally likely."""

    def build(self) -> None:
        """Read the size of the vocabulary."""
        config = json.loads((self.config.model / "config.json").read_text(encoding="utf-8"))
        self.tokens = range(config["vocab_size"])
        self.drawn = random.Random(self.config.seed)
        self.weights: dict[str, Tensor] = {}

    def sample(self, request: GenerationRequest, over: Over) -> Continuation:
        """Return a reply of random tokens, with the log-probabilities of a uniform model."""
        reply: list[int] = []
        while len(reply) < request.max_tokens and not over():
            ends = bool(reply and request.stop_token_ids) and self.drawn.random() < _ENDS
            reply.append(request.stop_token_ids[0] if ends else self.drawn.choice(self.tokens))
            if reply[-1] in request.stop_token_ids:
                break
        said = [-math.log(len(self.tokens))] * len(reply)
        if reply and reply[-1] in request.stop_token_ids:
            return Continuation(reply, said, "stop")
        return Continuation(reply, said, "length" if len(reply) == request.max_tokens else None)

    def read_weights(self, weights_path: Path) -> None:
        """Compare all checksums, and read all tensors."""
        require_intact(weights_path)
        files = sorted(weights_path.glob("*.safetensors"))
        self.weights = {name: tensor for file in files for name, tensor in load_file(file).items()}


class Random(InferenceBackend[BackendOptions]):
    """A backend with random replies."""

    facts = BackendFacts(adapters=True)

    def engine(self, replica: str, config: EngineConfig) -> RandomEngine:  # noqa: ARG002 - there is one
        """Return the one engine."""
        return RandomEngine(config)
