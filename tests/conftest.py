"""Fixtures that every kind of test may ask for."""

import contextlib
import gc
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Final

import pytest
from gymfleet_kit.streams import RedisClient, connect, disconnect

from tests.fixtures import preloaded
from tests.fixtures.redis_server import RedisServer
from tests.fleet import maze_fleet, tiny_model

__all__ = ["maze_fleet", "redis", "redis_url", "tiny_model"]


_LONGEST_FIRST: Final = ("e2e", "chaos", "integration", "conformance", "contract", "deploy", "unit")
"""Folders in the order in which processes that run tests side by side take them: what waits longest begins first."""


def pytest_configure(config: pytest.Config) -> None:
    """Start services by forking, until the tests end."""
    context = contextlib.ExitStack()
    context.enter_context(preloaded.in_use())
    config.add_cleanup(context.close)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what waits longest first. `--dist loadfile` keeps a file's tests, and so their servers, on one process."""
    places = {name: place for place, name in enumerate(_LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path.parent.name, len(places)))


def pytest_runtest_teardown() -> None:
    """Leave this process as it was for the tests that come later.

    Hypothesis's garbage collection callback is taken away again. It lets threads switch while one of them builds a
    syntax tree, whose depth CPython 3.11 counts for all of them together: `AST constructor recursion depth mismatch`,
    in whichever test comes later.

    While transformers loads a model it ties no weights, for all threads, and two loads that overlap leave it so.
    """
    modeling = sys.modules.get("transformers.modeling_utils")
    if modeling is not None and modeling.PreTrainedModel.tie_weights.__module__ != modeling.__name__:
        pytest.fail("transformers ties no weights any more: two loads of models overlapped, or one still goes on")
    gc.callbacks[:] = [call for call in gc.callbacks if not getattr(call, "__module__", "").startswith("hypothesis")]


@pytest.fixture
def forked_services(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the services be forked that command lines and benchmarks start for this test."""
    for name, value in preloaded.of_command_lines().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the embedded Redis, one real process per test session."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[RedisClient]:
    """A client of an empty Redis."""
    client = connect(redis_url)
    try:
        await client.flushdb()
        yield client
    finally:
        await disconnect(client)
