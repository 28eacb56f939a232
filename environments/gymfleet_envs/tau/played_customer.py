"""The customer that a model plays: the prompt of upstream's simulated user, in our words."""

from typing import Final

from gymfleet_contracts.session import ModelRole

from gymfleet_envs.tau.customer import STOP

GREETING: Final = "Hi! How can I help you today?"
MAX_TOKENS: Final = 256
"""Limit of one message."""
ROLE_NAME: Final = "customer"
_RULES: Final = f"""You are a customer who talks with an agent.

Instruction: {{instruction}}

Rules:
- Write one line, the customer's next message, and nothing else.
- Do not say everything that the instruction says at once: say what the next step needs.
- Invent nothing. If the agent asks for something that the instruction does not say, such as an order number, say that \
you do not remember it.
- When what the instruction wants is settled, write {STOP} alone, which ends the conversation.
- Do not repeat the instruction word for word: say it as you would.
- Stay natural, and keep to the personality of the instruction."""


def role(max_turns: int) -> ModelRole:
    """Declare the role for episodes of `max_turns` turns."""
    calls = max_turns + 1
    return ModelRole(
        name=ROLE_NAME,
        purpose="plays the customer of the task; asked only with the option customer = model",
        max_calls=calls,
        max_tokens=calls * MAX_TOKENS,
    )


def opening(instruction: str) -> tuple[dict[str, str], ...]:
    """Return the conversation before the customer has said a word."""
    return (
        {"role": "system", "content": _RULES.format(instruction=instruction)},
        {"role": "user", "content": GREETING},
    )
