"""Reward models in the service's own process: a thread for each device, and batches of waiting transcripts."""

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog
from gymfleet_kit.chat.transcripts import Transcript

from gymfleet_reward.component import ComponentError
from gymfleet_reward.models.tables import EmbeddedTable, UnusableModel

if TYPE_CHECKING:
    from gymfleet_reward.models.replica import Replica

log = structlog.get_logger()
Values: TypeAlias = tuple[float, ...]
_JOIN_S: Final = 5.0


class EmbeddedModel:
    """Copies of one model, each on its own device; whichever is free takes the waiting transcripts.

    Args:
        name: for messages.
        table: what the operator set.
        vocab_size: the size of the tokenizer's vocabulary.
    """

    def __init__(self, name: str, table: EmbeddedTable, vocab_size: int) -> None:
        self._name = name
        self._table = table
        self._vocab_size = vocab_size
        self._waiting: queue.SimpleQueue[tuple[Transcript, Future[Values]] | None] = queue.SimpleQueue()
        self._tried: list[str] = []
        self._all_tried = threading.Event()
        self._fault: str | None = None
        self._threads = [
            threading.Thread(target=self._serve, args=(device,), daemon=True, name=f"reward-model-{name}-{device}")
            for device in table.devices
        ]

    def start(self) -> None:
        """Begin to load the model; transcripts that come meanwhile wait."""
        for thread in self._threads:
            thread.start()

    def loading(self) -> bool:
        """Return whether a copy of the model is still being loaded."""
        return len(self._tried) < len(self._table.devices)

    def lack(self) -> str | None:
        """Return why the model does not answer yet, or not at all."""
        return self._fault or (f"the reward model {self._name!r} is being loaded" if self.loading() else None)

    def fault(self) -> str | None:
        """Return why the model cannot be used, None if it can; blocks until it is loaded."""
        self._all_tried.wait()
        return self._fault

    def values(self, transcripts: Sequence[Transcript]) -> list[Values | BaseException]:
        """Return the numbers of each transcript, or why there are none; blocks."""
        answers: list[Future[Values]] = [Future() for _ in transcripts]
        for transcript, answer in zip(transcripts, answers, strict=True):
            self._waiting.put((transcript, answer))
        return [answer.exception() or answer.result() for answer in answers]

    def close(self) -> None:
        """End the threads after the work that they have begun."""
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_JOIN_S)

    def _load(self, device: str) -> "Replica | None":
        """Return a copy of the model; None if there can be none, after noting why."""
        try:
            from gymfleet_reward.models.replica import Replica  # noqa: PLC0415 - torch, which other services do without

            replica = Replica(self._table, device, self._vocab_size)
        except ImportError as error:
            self._fail(f"the reward model {self._name!r} needs gymfleet's extra reward-models: {error}")
        except UnusableModel as error:
            self._fail(f"the reward model {self._name!r}: {error}")
        except Exception as error:  # noqa: BLE001 - without this thread its callers would wait for ever
            self._fail(f"the reward model {self._name!r} cannot be loaded: {type(error).__name__}: {error}")
        else:
            log.info("reward_model.loaded", model=self._name, device=device)
            return replica
        return None

    def _serve(self, device: str) -> None:
        replica = self._load(device)
        self._tried.append(device)
        if not self.loading():
            self._all_tried.set()
        while (batch := self._batch()) is not None:
            try:
                if replica is None:
                    raise ComponentError(self._fault)
                found = replica.values([transcript for transcript, _ in batch])
            except Exception as error:  # noqa: BLE001 - it is the answer
                for _, answer in batch:
                    answer.set_exception(error)
            else:
                for (_, answer), values in zip(batch, found, strict=True):
                    answer.set_result(values)

    def _fail(self, fault: str) -> None:
        self._fault = fault
        log.error("reward_model.unusable", model=self._name, error=fault)

    def _batch(self) -> list[tuple[Transcript, Future[Values]]] | None:
        """Return the waiting transcripts, as many as the model takes at once; None at the end."""
        first = self._waiting.get()
        if first is None:
            return None
        batch = [first]
        while len(batch) < self._table.batch_size:
            try:
                more = self._waiting.get_nowait()
            except queue.Empty:
                break
            if more is None:
                self._waiting.put(None)  # it is met again after this batch
                break
            batch.append(more)
        return batch
