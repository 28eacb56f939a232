"""The directories of published versions."""

import asyncio
from pathlib import Path

from gymfleet_trainer.publish.published_weights import PublishedWeights
from gymfleet_trainer.run.torch_thread import TorchThread


def write(root: Path, *versions: int) -> list[str]:
    """Write these versions, and return what is then there."""

    async def written() -> None:
        with TorchThread(1) as worker:
            weights = PublishedWeights(root, lambda place: (place / "weights").touch(), worker)
            for version in versions:
                assert (await weights.write(version) / "weights").is_file()

    asyncio.run(written())
    return sorted(path.name for path in root.iterdir())


def test_the_last_two_versions_are_kept(tmp_path: Path) -> None:
    assert write(tmp_path, 1) == ["v000001"]
    assert write(tmp_path, 2, 3, 5) == ["v000003", "v000005"]


def test_versions_that_are_counted_anew_are_kept_and_not_the_leftovers(tmp_path: Path) -> None:
    """Redis, which knows the highest number, may have been emptied since."""
    write(tmp_path, 13, 14)

    assert write(tmp_path, 1) == ["v000001"]
    assert write(tmp_path, 2, 3) == ["v000002", "v000003"]
