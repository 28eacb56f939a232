"""Pictures of grids as PNG files, whose bytes depend only on the picture: a replay shows the same image."""

import struct
import zlib
from collections.abc import Sequence
from typing import Final

Colour = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_MAX_STORED: Final = 65_535
"""Bytes of one stored block of deflate."""


def png_of(grid: Sequence[Sequence[int]], palette: Sequence[Colour], *, cell_pixels: int) -> bytes:
    """Return a picture in which each number of a grid is a square of its colour.

    Args:
        grid: rows of equal length; each number is a place in the palette.
        palette: at most 256 colours.
        cell_pixels: the side of a square.
    """
    lines = [bytes([0, *(number for number in row for _ in range(cell_pixels))]) for row in grid]
    width, height = (len(lines[0]) - 1), len(lines) * cell_pixels
    pixels = b"".join(line * cell_pixels for line in lines)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)  # a byte to a pixel, which is a place in a palette
    colours = b"".join(bytes(colour) for colour in palette)
    chunks = ((b"IHDR", header), (b"PLTE", colours), (b"IDAT", _stored(pixels)), (b"IEND", b""))
    return _SIGNATURE + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _stored(content: bytes) -> bytes:
    """Return a zlib stream that stores its content: the output of a compressor differs from version to version."""
    starts = range(0, len(content), _MAX_STORED)
    blocks = [content[start : start + _MAX_STORED] for start in starts]
    stored = (
        struct.pack("<BHH", place == len(blocks) - 1, len(block), len(block) ^ 0xFFFF) + block
        for place, block in enumerate(blocks)
    )
    return b"\x78\x01" + b"".join(stored) + struct.pack(">I", zlib.adler32(content))
