"""Versions that the trainer sends to this service: it keeps them in a folder, from which its engines load them.

Later loads, for an engine that is restarted or after a version is refused, read from there again, whatever has become
of the trainer.
"""

import secrets
import shutil
from pathlib import Path
from typing import Any, Final

from gymfleet_contracts.weights import MANIFEST, Bucket, WeightsBroadcast
from gymfleet_kit.shared_weights import SHARED_MEMORY, HeldFolder, sweep
from gymfleet_kit.weight_group import GroupFailed, WeightGroup, WeightStore

from gymfleet_rollout.inference.base import WeightsRejected

_CONFIG: Final = "config.json"


class ReceivedWeights:
    """The folder of one service, which exists while there is a version in it.

    Args:
        base: the model of version 0, whose config is that of all versions.
        root: where the folder is made; the engines must see this place.
    """

    def __init__(self, base: Path, root: Path = SHARED_MEMORY) -> None:
        self._base = base
        self._root = root
        self._folder: HeldFolder | None = None

    def receive(self, version: int, broadcast: WeightsBroadcast) -> Path:
        """Receive a version into a new directory, and return the directory. Raises WeightsRejected."""
        import torch.distributed as dist  # noqa: PLC0415 - heavy, and needed where weights are sent

        needed = broadcast.manifest.size_bytes
        if self._root.is_dir() and (free := shutil.disk_usage(self._root).free) < needed:
            raise WeightsRejected(
                f"{self._root} has {free >> 20} MiB left, and the version takes {needed >> 20}: give it more (a "
                "container: --shm-size), or set GYMFLEET_ROLLOUT_RECEIVED_DIR to a directory that the engines see"
            )
        timeout_s = broadcast.timeout_s
        try:
            store = WeightStore.found(dist, broadcast.host, broadcast.port, token=broadcast.token, timeout_s=timeout_s)
        except GroupFailed as error:
            raise WeightsRejected(
                f"the trainer at {broadcast.host}:{broadcast.port} cannot be reached from this service ({error}): "
                'publish.transfer = "broadcast" needs a network in which they reach each other on any port; "disk" '
                "needs a directory that both can read"
            ) from error
        try:
            group = store.joined(broadcast.seat)
            return self._received(version, broadcast, group)
        except GroupFailed as error:
            raise WeightsRejected(f"the version was not received: {error}") from error
        except OSError as error:
            raise WeightsRejected(f"the version cannot be kept in {self._root}: {error}") from error

    def _received(self, version: int, broadcast: WeightsBroadcast, group: WeightGroup) -> Path:
        if self._folder is None:
            self._folder = HeldFolder.made(f"received-{secrets.token_hex(8)}", self._root)
        directory = self._folder.path / f"v{version:06d}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        shutil.copyfile(self._base / _CONFIG, directory / _CONFIG)
        buckets = broadcast.manifest.buckets
        for number, bucket in enumerate(buckets, 1):
            data = _empty(bucket)
            try:
                group.broadcast(data)
            except GroupFailed as error:
                raise GroupFailed(f"bucket {number} of {len(buckets)}, {bucket.file}: {error}") from error
            with (directory / bucket.file).open("wb") as file:
                file.write(bucket.header())
                data.numpy().tofile(file)
        # Written last, because it shows that everything is there.
        (directory / MANIFEST).write_text(broadcast.manifest.model_dump_json(), encoding="utf-8")
        return directory

    def keep_only(self, live: Path) -> None:
        """Delete all versions but the live one, and the folder if the live one is not in it."""
        if self._folder is None:
            return
        if live.parent != self._folder.path:
            self._folder.let_go()
            self._folder = None
            sweep(self._root)
            return
        for other in self._folder.path.glob("v*"):
            if other != live:
                shutil.rmtree(other, ignore_errors=True)


def _empty(bucket: Bucket) -> Any:
    import torch  # noqa: PLC0415 - as above

    return torch.empty(bucket.size_bytes, dtype=torch.uint8)
