"""Separate random numbers for packages that draw from the process's generators."""

import contextlib
import io
import random
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def own_random(seed: str) -> Iterator[None]:
    """Let foreign code draw from `seed`, and print nothing. If NumPy is loaded, its generator is restored too."""
    arrays = sys.modules.get("numpy")
    state, of_arrays = random.getstate(), None if arrays is None else arrays.random.get_state()
    random.seed(seed)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        random.setstate(state)
        if arrays is not None:
            arrays.random.set_state(of_arrays)
