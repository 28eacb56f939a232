"""Versions in the run's directory, from which this process sends them to rollout services that cannot read it."""

import asyncio
import secrets
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

import structlog
import torch
import torch.distributed as dist
from gymfleet_contracts.rollout import StageVersion
from gymfleet_contracts.weights import MANIFEST, WeightsBroadcast, WeightsManifest
from gymfleet_kit.weight_group import GroupFailed, WeightGroup, WeightStore, address_towards

from gymfleet_trainer.publish.transfers.base import Offer, Transfer

log = structlog.get_logger()

_TIMEOUT_S: Final = 60.0


class Broadcast(Transfer):
    """The directory, and a process group for each version and the replicas that get it now.

    Args:
        weights: the run's directory of published versions, which rollout services need not see.
        timeout_s: time for the services to join, and for each bucket.
    """

    def __init__(self, weights: Path, *, timeout_s: float = _TIMEOUT_S) -> None:
        self.root = weights
        self._timeout_s = timeout_s

    def offer(self, body: StageVersion, urls: Collection[str]) -> Offer:
        """See `Transfer.offer`. The replicas join a group, in which they receive the version's buckets."""
        return _Sending(body, urls, self._timeout_s)

    def close(self) -> None:
        """See `Transfer.close`. The versions stay, as does the rest of the run."""


class _Sending(Offer):
    """Send the buckets in a thread, while the replicas' answers are awaited."""

    def __init__(self, body: StageVersion, urls: Collection[str], timeout_s: float) -> None:
        super().__init__(body, urls)
        self._seats = {url: seat for seat, url in enumerate(urls, 1)}
        self._gone: set[int] = set()
        self._directory = Path(body.weights_path)
        self._manifest = WeightsManifest.model_validate_json((self._directory / MANIFEST).read_bytes())
        self._timeout_s = timeout_s
        self._group: WeightGroup | None = None
        """Kept until all replicas have answered: they may still be reading."""

    def answered(self, url: str) -> None:
        """See `Offer.answered`. A group that has not begun does not wait for this replica."""
        self._gone.add(self._seats[url])

    async def __aenter__(self) -> Self:
        """Open the store that the replicas connect to."""
        token = secrets.token_hex(16)
        address = await asyncio.to_thread(address_towards, [urlsplit(url).hostname or "" for url in self._seats])
        self._store, port = WeightStore.opened(dist, token=token, address=address, timeout_s=self._timeout_s)
        for url, seat in self._seats.items():
            offer = WeightsBroadcast(
                host=address, port=port, token=token, seat=seat, timeout_s=self._timeout_s, manifest=self._manifest
            )
            self.bodies[url] = self.bodies[url].model_copy(update={"broadcast": offer})
        self._sending = asyncio.create_task(asyncio.to_thread(self._send))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for the thread, which has nobody left to wait for."""
        self._gone.update(self._seats.values())
        try:
            await self._sending
        except GroupFailed as failed:  # the replicas have said so too, each in its answer
            log.warning("version.not_sent", version=self._directory.name, reason=str(failed))

    def _send(self) -> None:
        self._group = self._store.begun(self._seats.values(), self._gone)
        if self._group is None:
            return
        for bucket in self._manifest.buckets:
            file = self._directory / bucket.file
            whole = torch.from_file(str(file), shared=False, size=file.stat().st_size, dtype=torch.uint8)
            self._group.broadcast(whole[len(whole) - bucket.size_bytes :])
