"""Pictures of grids: read back by another program, and the same bytes wherever they are made."""

import hashlib
import io
import random

import PIL.Image
import pytest
from gymfleet_envs.png import png_of

PALETTE = [(0, 0, 0), (255, 0, 0), (1, 2, 3)]


@pytest.mark.parametrize(("columns", "rows", "side"), [(1, 1, 1), (3, 2, 4), (40, 30, 10)])
def test_a_picture_is_read_back(columns: int, rows: int, side: int) -> None:
    draw = random.Random(0)
    grid = [[draw.randrange(3) for _ in range(columns)] for _ in range(rows)]

    image = PIL.Image.open(io.BytesIO(png_of(grid, PALETTE, cell_pixels=side))).convert("RGB")

    assert image.size == (columns * side, rows * side)
    found = [[image.getpixel((x, y)) for x in range(columns * side)] for y in range(rows * side)]
    assert found == [[PALETTE[grid[y // side][x // side]] for x in range(columns * side)] for y in range(rows * side)]


def test_its_bytes_are_those_of_the_picture_alone() -> None:
    content = png_of([[0, 1], [2, 0]], PALETTE, cell_pixels=2)

    assert hashlib.sha256(content).hexdigest()[:16] == "c489833d8101514a"
