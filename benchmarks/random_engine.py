"""An inference backend that takes no processor: replies at random, and versions that are checked and read like vLLM's.

`bench_publish` measures what a trainer takes; an engine that computes on the same cores would be measured with it.
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
"""The share of tokens that end a reply: its length is what replies differ in."""


class RandomEngine(ThreadEngine):
    """All tokens of the vocabulary are alike to it."""

    def build(self) -> None:
        """Read how many tokens there are."""
        config = json.loads((self.config.model / "config.json").read_text(encoding="utf-8"))
        self.tokens = range(config["vocab_size"])
        self.drawn = random.Random(self.config.seed)
        self.weights: dict[str, Tensor] = {}

    def sample(self, request: GenerationRequest, over: Over) -> Continuation:
        """Return a reply of random tokens, with log-probabilities as of a model that knows nothing."""
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
    """Replies at random."""

    facts = BackendFacts(adapters=True)

    def engine(self, replica: str, config: EngineConfig) -> RandomEngine:  # noqa: ARG002 - there is one
        """Return the one engine."""
        return RandomEngine(config)
