"""The interface of an inference backend: where the tokens of the policy come from.

A backend makes engines, and an engine generates, can be interrupted, and takes new weights. Versions, what is done with
an engine that went down, and the resumption of interrupted replies are the same for all. Those that come with gymfleet
are the modules of `gymfleet_rollout.backends`.
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
    """What the service must know of a backend before it makes an engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    compiles: bool = False
    """With `enforce_eager = false` it compiles the model on this machine, which takes a C++ compiler."""
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

        It is asked every two seconds. An engine that is new is given the live weights and compared with another before
        it serves; one that is down and no longer named is forgotten. While none is named at the start, the service
        waits.
        """
        return ("embedded",)

    @abstractmethod
    def engine(self, replica: str, config: EngineConfig) -> Engine:
        """Return the engine of one of these names, not started, with the weights in `config.model` as its first.

        What its `max_model_len` allows, and its replies, must be the same for all. The service calls it by that name.
        """


BACKENDS: Final = PluginKind[InferenceBackend[Any]]("backend", (InferenceBackend,), "gymfleet_rollout.backends")


def backend_of(reference: str, options: Mapping[str, Any], *, table: str) -> InferenceBackend[Any]:
    """Return a backend with its options; `table` is their place in messages. Raises `PluginError`."""
    kind = BACKENDS.find(reference)
    return kind(checked_options(kind.Options, options, table=table, owner=reference))
