"""The cost of the model's replies, and its limits."""

from dataclasses import dataclass, field
from typing import Final

from gymfleet_cli.collecting.model import ModelRefused, Usage

_PRICED_TOKENS: Final = 1_000_000


class BudgetSpent(Exception):
    """No tokens or no money are left for another reply; the message says which."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one call of the command, and the prices for counting its cost."""

    max_tokens: int | None = None
    """The most tokens of prompts and replies together."""
    max_cost: float | None = None
    price_in: float = 0.0
    """Price of a million prompt tokens, in the currency of `max_cost`."""
    price_out: float = 0.0
    """Price of a million reply tokens."""

    @property
    def limits(self) -> bool:
        """Whether there is a limit."""
        return self.max_tokens is not None or self.max_cost is not None


@dataclass(slots=True)
class Spending:
    """Counts replies against a budget. Replies in flight when it is spent are counted as well."""

    budget: Budget = field(default_factory=Budget)
    prompt_tokens: int = 0
    reply_tokens: int = 0
    reasoning_tokens: int = 0
    """Those of the reply tokens that are reasoning."""
    untold: int = 0
    """Replies whose tokens the endpoint did not report."""

    @property
    def tokens(self) -> int:
        """Tokens so far."""
        return self.prompt_tokens + self.reply_tokens

    @property
    def cost(self) -> float:
        """Cost so far."""
        prices = self.budget
        return (self.prompt_tokens * prices.price_in + self.reply_tokens * prices.price_out) / _PRICED_TOKENS

    def require_left(self) -> None:
        """Raise `BudgetSpent` if nothing is left for another reply."""
        limit, most = self.budget.max_tokens, self.budget.max_cost
        if limit is not None and self.tokens >= limit:
            raise BudgetSpent(f"{self.tokens:,} of {limit:,} tokens are spent")
        if most is not None and self.cost >= most:
            raise BudgetSpent(f"{self.cost:.4g} of {most:g} is spent")

    def pay(self, usage: Usage | None) -> None:
        """Count a reply. Raises `ModelRefused` if there is a limit and the endpoint does not report the tokens."""
        if usage is None:
            if self.budget.limits:
                raise ModelRefused("the model's endpoint tells no usage: --max-tokens and --max-cost cannot be kept")
            self.untold += 1
            return
        self.prompt_tokens += usage.prompt_tokens
        self.reply_tokens += usage.reply_tokens
        self.reasoning_tokens += usage.reasoning_tokens
