"""Counts over data files, without writing anything."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from gymfleet_kit.data.chunks import DataError, chunks
from gymfleet_kit.data.jobs import PARALLEL_BYTES
from gymfleet_kit.data.parallel import ordered
from gymfleet_kit.data.work import Rejected, Work


def looked(
    inputs: Sequence[Path], work: Work, workers: int, *, on_progress: Callable[[int, int, Counter[str]], None],
    on_rejected: Callable[[Rejected], None],
) -> Counter[str]:  # fmt: skip
    """Return the counts of the work, with `read` and `rejected`; the unreadable rest of a file counts as rejected."""
    counts: Counter[str] = Counter()
    sizes = [_size(path) for path in inputs]
    for place, path in enumerate(inputs):
        try:
            for chunk, done in ordered(work, chunks(path), workers if sizes[place] >= PARALLEL_BYTES else 1):
                counts += done.counts
                for one in done.rejected:
                    on_rejected(one)
                counts["rejected"] += len(done.rejected)
                on_progress(sum(sizes[:place]) + chunk.passed_bytes, sum(sizes), counts)
        except DataError as error:
            head, _, reason = str(error).partition(": ")
            on_rejected(Rejected(head, reason))
            counts["rejected"] += 1
    return counts


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
