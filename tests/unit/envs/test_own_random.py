"""Foreign code that draws from the process's generators draws from a seed, and leaves them as they were."""

import random

import numpy as np
import pytest
from gymfleet_envs.own_random import own_random


def drawn(seed: str) -> tuple[float, float]:
    """What foreign code draws from both generators."""
    with own_random(seed):
        return random.random(), float(np.random.random())


def test_draws_follow_the_seed() -> None:
    np.random.seed(1)
    first = drawn("a")
    np.random.seed(2)

    assert drawn("a") == first
    assert drawn("b")[0] != first[0]
    assert drawn("b")[1] != first[1]


def test_the_generators_are_left_as_they_were(capsys: pytest.CaptureFixture[str]) -> None:
    states = random.getstate(), repr(np.random.get_state())
    with own_random("a"):
        print("unheard", random.random(), np.random.random())  # noqa: T201

    assert (random.getstate(), repr(np.random.get_state())) == states
    assert not capsys.readouterr().out
