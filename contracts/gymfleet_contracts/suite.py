"""A suite: the environments that one model is measured on, and how their figures are combined into one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from gymfleet_contracts._model import WireModel
from gymfleet_contracts.recipe import load_document
from gymfleet_contracts.recipe_sections import EnvironmentSection


class SuiteEnvironment(EnvironmentSection):
    """An environment's table as in a recipe, of which only what concerns measurements counts, and how to measure it."""

    episodes: PositiveInt = 200
    """Held-out tasks to play, once each."""
    metric: Literal["success", "score"] = "success"
    """Its figure: the share of solved tasks, or the mean score."""
    reference: PositiveFloat | None = None
    """The figure, in percent, that counts as 1 in the overall score. AgentBench uses the mean of the models that it was
    published with, and calls its inverse the weight (arXiv:2308.03688, table 3)."""


class Suite(WireModel):
    """The contents of a suite's file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    description: str = ""
    environments: Annotated[tuple[SuiteEnvironment, ...], Field(min_length=1, max_length=256)]

    @model_validator(mode="after")
    def environments_are_told_apart(self) -> Self:
        """Require different titles, by which figures are kept, and all references or none, for the overall score."""
        titles = [env.title for env in self.environments]
        if twice := sorted({title for title in titles if titles.count(title) > 1}):
            raise ValueError(f"two tables are called {', '.join(twice)}: give them labels")
        without = [env.title for env in self.environments if env.reference is None]
        if 0 < len(without) < len(titles):
            raise ValueError(f"{', '.join(without)} lack a reference, which others have: give all or none")
        return self

    def overall(self, figures: Sequence[float]) -> float | None:
        r"""Return the overall score of figures in [0, 1], one for each environment; None without references.

        .. math:: \frac{1}{n} \sum_i \frac{100 f_i}{r_i}

        as in AgentBench (arXiv:2308.03688, section 3.2): 1 is the average of its models.
        """
        shares = [
            100 * figure / env.reference
            for env, figure in zip(self.environments, figures, strict=True)
            if env.reference is not None
        ]
        return sum(shares) / len(shares) if shares else None


def load_suite(path: Path) -> Suite:
    """Read a TOML suite. Raises `RecipeError`, which names the file, the key and what is wrong with it."""
    return load_document(path, Suite, "suite")
