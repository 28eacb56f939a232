"""`outcome`: the reply predicts what its action will lead to, and then acts."""

from gymfleet_contracts.formats._tagged import Tagged


class Outcome(Tagged):
    """`<think>`, `<prediction>` of what will be observed, then `<action>`; the last action counts.

    Demonstrations predict nothing and leave the prediction out, unless the options demand it.
    """

    notes = ("prediction",)
    asks = {  # noqa: RUF012 - never changed
        "think": "your reasoning",
        "prediction": "what you expect to observe after your action",
        "action": "your action",
    }
