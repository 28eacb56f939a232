"""Frames that go out at the same moment become one message: msgpack's array, put together from its encoded items."""

import struct
from collections.abc import Iterator, Sequence
from typing import Final

_ARRAY_32: Final = struct.Struct(">BI")
_ARRAY_16: Final = struct.Struct(">BH")
_HEADER_BYTES: Final = _ARRAY_32.size


def batches(frames: Sequence[bytes], max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Messages of at most `max_bytes`, each with the bytes of the frames in it.

    A frame that is alone goes as it is; one that is too large by itself goes alone.
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
