"""The interface of an inference backend: the source of the policy's tokens.

A backend makes engines; an engine generates, can be interrupted, and takes new weights. Versions, the treatment of
engines that went down, and the resumption of interrupted replies are the same for all backends. The backends that come
with gymfleet are the modules of `gymfleet_rollout.backends`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

from gymfleet_kit.plugins import PluginKind, checked_options
from pydantic import BaseModel, ConfigDict

from gymfleet_rollout.inference.base import (
    Continuation,
    Engine,
    EngineConfig,
    EngineDied,
    EngineDown,
    GenerationRequest,
    InferenceError,
    OnTokens,
    WeightsRejected,
)
from gymfleet_rollout.inference.threaded import Over, ThreadEngine

__all__ = [
    "BACKENDS",
    "BackendFacts",
    "BackendOptions",
    "Continuation",
    "Engine",
    "EngineConfig",
    "EngineDied",
    "EngineDown",
    "GenerationRequest",
    "InferenceBackend",
    "InferenceError",
    "OnTokens",
    "Over",
    "ThreadEngine",
    "WeightsRejected",
    "backend_of",
]


class BackendOptions(BaseModel):
    """The options of a backend: the keys of `[inference]` that are not the recipe's own. A misspelt key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class BackendFacts(BaseModel):
    """Facts about a backend that the service must know before it makes an engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    compiles: bool = False
    """With `enforce_eager = false` it compiles the model on this machine, which needs a C++ compiler."""
    adapters: bool = False
    """Its engines load adapters, as `[model.lora]` wants."""
    images: bool = False
    """Its engines take the images of a request, as `rollout.images = "seen"` wants."""
    sleeps: bool = False
    """Its engines free their memory on request, as `placement.colocated` wants."""


OptionsT = TypeVar("OptionsT", bound=BackendOptions)


class InferenceBackend(ABC, Generic[OptionsT]):
    """A source of tokens. There is one instance in a rollout service."""

    Options: ClassVar[type[Any]] = BackendOptions
    facts: ClassVar[BackendFacts] = BackendFacts()

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    async def replicas(self) -> Sequence[str]:
        """Return the names of the engines that should exist now; by default there is one, inside this process.

        The service asks every two seconds. A new engine gets the live weights and is compared with another before it
        serves; an engine that is down and no longer named is forgotten. At the start, the service waits until one is
        named.
        """
        return ("embedded",)

    @abstractmethod
    def engine(self, replica: str, config: EngineConfig) -> Engine:
        """Return the engine for one of these names, not started; its first weights are those in `config.model`.

        Its `max_model_len` and its replies must be the same as those of the others. The service gives it that name.
        """


BACKENDS: Final = PluginKind[InferenceBackend[Any]]("backend", (InferenceBackend,), "gymfleet_rollout.backends")


def backend_of(reference: str, options: Mapping[str, Any], *, table: str) -> InferenceBackend[Any]:
    """Return a backend with its options; `table` is the place of the options in messages. Raises `PluginError`."""
    kind = BACKENDS.find(reference)
    return kind(checked_options(kind.Options, options, table=table, owner=reference))
