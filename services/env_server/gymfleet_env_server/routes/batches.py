"""Combine frames that are sent at the same moment into one message: a msgpack array built from encoded items."""

import struct
from collections.abc import Iterator, Sequence
from typing import Final

_ARRAY_32: Final = struct.Struct(">BI")
_ARRAY_16: Final = struct.Struct(">BH")
_HEADER_BYTES: Final = _ARRAY_32.size


def batches(frames: Sequence[bytes], max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield messages of at most `max_bytes`, each with the number of bytes of the frames in it.

    A single frame is sent unchanged; a frame that is itself too large is sent alone.
    """
    begin = size = 0
    for place, frame in enumerate(frames):
        if size and _HEADER_BYTES + size + len(frame) > max_bytes:
            yield size, _joined(frames[begin:place])
            begin, size = place, 0
        size += len(frame)
    if size:
        yield size, _joined(frames[begin:])


def _joined(frames: Sequence[bytes]) -> bytes:
    count = len(frames)
    if count == 1:
        return frames[0]
    if count < 16:
        header = bytes([0x90 | count])
    elif count < 1 << 16:
        header = _ARRAY_16.pack(0xDC, count)
    else:
        header = _ARRAY_32.pack(0xDD, count)
    return b"".join((header, *frames))
