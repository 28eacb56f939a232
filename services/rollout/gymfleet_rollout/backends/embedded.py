"""vLLM inside the rollout process."""

from gymfleet_rollout.backend import BackendFacts, BackendOptions, EngineConfig, InferenceBackend
from gymfleet_rollout.inference.embedded import EmbeddedEngine


class Embedded(InferenceBackend[BackendOptions]):
    """vLLM's engine inside the rollout process, in its own thread."""

    facts = BackendFacts(compiles=True, adapters=True, images=True, sleeps=True)

    def engine(self, replica: str, config: EngineConfig) -> EmbeddedEngine:
        """Return the one engine."""
        del replica
        return EmbeddedEngine(config)
