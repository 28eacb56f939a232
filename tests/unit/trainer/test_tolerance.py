"""How far apart engine and trainer may be, and what the first batch makes of it."""

import math
import re

import pytest
from gymfleet_contracts.parity import parity_limits
from gymfleet_contracts.recipe import Recipe
from gymfleet_trainer.publish.probe import Parity
from gymfleet_trainer.publish.tolerance import calibrated, tolerance
from gymfleet_trainer.run.state import RunState
from pydantic import ValidationError

from tests.fixtures.scored import make_recipe


def recipe_of(engine: str, trainer: str = "float32", given: float | str | None = None) -> Recipe:
    publish = None if given is None else {"parity_tolerance": given}
    return make_recipe(inference={"max_model_len": 4096, "dtype": engine}, trainer_dtype=trainer, publish=publish)


def state() -> RunState:
    return RunState(run_id="tiny-1", recipe_hash="0")


@pytest.mark.parametrize(
    ("engine", "trainer", "first", "measured", "then"),
    [
        pytest.param("float32", "float32", 0.001, 0.0002, 0.001, id="float32: always 0.001"),
        pytest.param("float32", "float64", 0.001, 0.0009, 0.001, id="float64 counts as float32"),
        pytest.param("bfloat16", "float32", 0.1, 0.02, 0.06, id="three times what is normal"),
        pytest.param("bfloat16", "bfloat16", 0.1, 0.001, 0.01, id="not below the floor"),
        pytest.param("bfloat16", "float32", 0.1, 0.09, 0.1, id="not above the ceiling"),
        pytest.param("float32", "bfloat16", 0.1, 0.005, 0.015, id="the trainer is the coarse one"),
        pytest.param("float16", "float32", 0.02, 0.001, 0.003, id="float16 is finer than bfloat16"),
        pytest.param("float16", "bfloat16", 0.1, 0.001, 0.01, id="the coarser of the two counts"),
    ],
)
def test_the_tolerance_follows_dtypes_and_first_batch(
    engine: str, trainer: str, first: float, measured: float, then: float
) -> None:
    recipe, kept = recipe_of(engine, trainer), state()

    before = tolerance(recipe, kept)
    changed = calibrated(recipe, kept, Parity(measured, 1.0, 100))

    assert (before, changed) == (first, True)
    assert tolerance(recipe, kept) == pytest.approx(then)
    assert kept.parity_tolerance == pytest.approx(then), "a resumed run has it from there"
    assert not calibrated(recipe, kept, Parity(0.05, 1.0, 100)), "once per run"
    assert tolerance(recipe, kept) == pytest.approx(then)


def test_a_number_that_is_given_stays() -> None:
    recipe, kept = recipe_of("bfloat16", given=0.03), state()

    assert not calibrated(recipe, kept, Parity(0.001, 1.0, 100))

    assert tolerance(recipe, kept) == 0.03
    assert kept.parity_tolerance is None


@pytest.mark.parametrize(
    ("engine", "trainer", "given", "said"),
    [
        ("bfloat16", "float32", 0.001, 'for float32, and inference.dtype is "bfloat16".* at least 0.002$'),
        ("float32", "bfloat16", 0.0019, 'for float32, and trainer_dtype is "bfloat16"'),
        ("float16", "float32", 0.0001, 'inference.dtype is "float16".* at least 0.0003'),
    ],
)
def test_a_tolerance_of_float32_is_refused_for_a_coarser_dtype(
    engine: str, trainer: str, given: float, said: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        recipe_of(engine, trainer, given)

    (error,) = caught.value.errors()
    assert "\n" not in error["msg"]
    assert re.search(said, error["msg"])


def test_tolerances_that_are_possible_are_taken() -> None:
    assert recipe_of("bfloat16", given=0.002).publish.parity_tolerance == 0.002
    assert recipe_of("float32", given=1e-6).publish.parity_tolerance == 1e-6
    assert recipe_of("bfloat16", given="auto").publish.parity_tolerance == "auto"


def test_what_is_no_number_is_within_no_tolerance() -> None:
    assert not Parity(math.nan, math.nan, 5).within(parity_limits("bfloat16").ceiling)
