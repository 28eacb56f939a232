"""`openmanus`: `<think>`, `<memory>`, `<plan>` and `<act>` (OpenManus-RL)."""

from gymfleet_contracts.formats._tagged import Tagged


class Openmanus(Tagged):
    """`<think>...</think>`, `<memory>` and `<plan>` in either order, then `<act>...</act>`; the last action counts.

    Memory and plan may be left out, unless the options demand them. They are written in the published prompt's order.
    """

    notes = ("memory", "plan")
    asks = {  # noqa: RUF012 - never changed
        "think": "your reasoning",
        "memory": "what is worth remembering",
        "plan": "what you will do next",
        "act": "your action",
    }
