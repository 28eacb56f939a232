"""The base of algorithms that need neither a critic nor a group: the batch's returns, whitened."""

from typing import Annotated, ClassVar, TypeVar

from gymfleet_contracts.recipe_sections import AlgorithmFacts
from pydantic import Field

from gymfleet_trainer.learning.algorithm import Models
from gymfleet_trainer.learning.episodes import discounted_returns, whitened
from gymfleet_trainer.learning.policy_gradient import ADVANTAGES, Clipped, ClippedOptions
from gymfleet_trainer.model.batching import TrainSequence


class WhitenedReturnsOptions(ClippedOptions):
    """Options of an algorithm with whitened returns."""

    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Discount per written token."""


WhitenedReturnsT = TypeVar("WhitenedReturnsT", bound=WhitenedReturnsOptions)


class WhitenedReturns(Clipped[WhitenedReturnsT]):
    r"""Each token is worth the whitened return from there on, for groups of any size.

    .. math::
        A_t = \sum_{k \ge t} \gamma^{k - t} r_k, \qquad \hat A_t = \frac{A_t - \mathrm{mean}(A)}{\mathrm{std}(A)}

    over the tokens that the model wrote, the only ones that k counts; mean and deviation are those of the batch.
    """

    Options: ClassVar[type[WhitenedReturnsOptions]] = WhitenedReturnsOptions
    facts: ClassVar[AlgorithmFacts] = AlgorithmFacts(sums_rewards=True)

    @property
    def gamma(self) -> float:
        """See `Algorithm`."""
        return self.options.gamma

    def prepare(self, rows: list[TrainSequence], models: Models) -> list[TrainSequence]:
        """Put on each token the whitened return from there on, unless all rows have their advantages already."""
        if all(ADVANTAGES in row.fields for row in rows):
            return rows
        rewards = self.penalised_rewards(rows, models)
        returns = discounted_returns(rows, rewards, self.options.gamma, models.dtype)
        found = zip(rows, whitened(rows, returns), strict=True)
        return [row.with_fields(**{ADVANTAGES: advantages}) for row, advantages in found]
