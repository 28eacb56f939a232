"""One thread for torch, so that the event loop can extend leases and answer health checks meanwhile."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, Self, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


class TorchThread:
    """Run functions one after the other in a dedicated thread.

    It is always the same thread, because OpenMP keeps a team of threads per calling
    thread, and a second team would compete with the first for the cores.
    """

    def __init__(self, threads: int) -> None:
        self._executor = ThreadPoolExecutor(1, "torch", initializer=torch.set_num_threads, initargs=(threads,))

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function(*args, **kwargs)` in the thread and await its result; its exceptions are raised here."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args, **kwargs))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Do not wait: an interrupted run has no use for the update in progress.
        self._executor.shutdown(wait=False, cancel_futures=True)
