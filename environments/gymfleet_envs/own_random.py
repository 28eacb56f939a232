"""Separate random numbers for packages that draw from the process's generators."""

import contextlib
import hashlib
import io
import random
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def own_random(seed: str) -> Iterator[None]:
    """Let foreign code draw from `seed`, also with NumPy if it is loaded, and print nothing."""
    arrays = sys.modules.get("numpy")
    state, of_arrays = random.getstate(), None if arrays is None else arrays.random.get_state()
    random.seed(seed)
    if arrays is not None:
        arrays.random.seed(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4]))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        random.setstate(state)
        if arrays is not None:
            arrays.random.set_state(of_arrays)
