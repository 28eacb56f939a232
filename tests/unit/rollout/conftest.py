"""A policy over engines whose tokens say which version sampled them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.fixtures.numbered_engine import World, numbered_weights


@pytest.fixture
def weights(tmp_path: Path) -> Callable[[int], Path]:
    return partial(numbered_weights, tmp_path)


@pytest.fixture
async def world(weights: Callable[[int], Path]) -> World:
    world = World(weights)
    await world.policy.start()
    return world
