"""Settings of the reasoning_gym environment."""

from typing import Annotated, Final

from pydantic import Field, JsonValue

from gymfleet_envs.environment import Options

LEVELS: Final = (
    "spell_backward", "chain_sum", "word_sorting", "base_conversion", "decimal_arithmetic", "prime_factorization",
    "complex_arithmetic", "time_intervals", "caesar_cipher", "spiral_matrix", "mini_sudoku", "arc_1d",
)  # fmt: skip
"""Data sets that are quick to draw and hardly ever guessed, easiest first."""
ALL: Final = "all"


class ReasoningGymOptions(Options):
    """Which of the package's data sets to play, and how to configure them."""

    datasets: Annotated[tuple[str, ...], Field(min_length=1)] = LEVELS
    """The levels, easiest first: names of data sets, or `all` alone for every data set that can be played."""
    config: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    """For each data set, fields of its configuration, such as `{"chain_sum": {"max_terms": 3}}`."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """The seed of the data sets; a task is one index of its data set."""
