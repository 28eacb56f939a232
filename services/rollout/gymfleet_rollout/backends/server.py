"""vLLM servers, given by URL or found by a DNS name."""

from collections.abc import Sequence
from typing import Final, Self

from gymfleet_kit.discovery import Discovery
from pydantic import AnyHttpUrl, ConfigDict, JsonValue, PositiveFloat, model_validator

from gymfleet_rollout.backend import BackendFacts, BackendOptions, EngineConfig, InferenceBackend
from gymfleet_rollout.inference.server import ServerEngine

_NONE_NAMED: Final = "give urls, or discover, as a list of the vLLM servers that there are"
_SOME_NAMED: Final[dict[str, JsonValue]] = {
    "anyOf": [
        {"required": [name], "properties": {name: {"type": "array", "minItems": 1}}} for name in ("urls", "discover")
    ],
    "$comment": _NONE_NAMED,
}


class ServerOptions(BackendOptions):
    """The addresses of the servers. Operators set them with `GYMFLEET_ROLLOUT_SERVER_*`."""

    model_config = ConfigDict(json_schema_extra={"allOf": [_SOME_NAMED]})

    urls: tuple[AnyHttpUrl, ...] = ()
    """Base URLs of the servers, one for each replica."""
    discover: tuple[AnyHttpUrl, ...] = ()
    """Base URLs whose host is a DNS name with one address per server; a new server gets the live weights and is
    compared with another before it serves."""
    start_timeout_s: PositiveFloat = 600.0
    """Time limit for the servers to answer at the start."""

    @model_validator(mode="after")
    def some_are_named(self) -> Self:
        """Require at least one URL or DNS name."""
        if not (self.urls or self.discover):
            raise ValueError(f"{_NONE_NAMED}: GYMFLEET_ROLLOUT_SERVER_URLS or GYMFLEET_ROLLOUT_SERVER_DISCOVER")
        return self


class Server(InferenceBackend[ServerOptions]):
    """vLLM servers, each asked directly."""

    Options = ServerOptions
    facts = BackendFacts(adapters=True, sleeps=True)

    def __init__(self, options: ServerOptions) -> None:
        super().__init__(options)
        self._discovery = Discovery(options.discover, fixed=options.urls)

    async def replicas(self) -> Sequence[str]:
        """Return the URLs of the servers that should exist now."""
        return await self._discovery.urls()

    def engine(self, replica: str, config: EngineConfig) -> ServerEngine:
        """Return a client of the server at a URL."""
        return ServerEngine(
            replica,
            weights_path=config.model,
            concurrency=config.max_num_seqs,
            start_timeout_s=self.options.start_timeout_s,
            lora_rank=config.max_lora_rank,
            sleep_mode=config.sleep_mode,
        )
