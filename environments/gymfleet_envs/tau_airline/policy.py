"""The airline's policy for generated tasks: tau-bench's policy, in short and in our words."""

from typing import Final

from gymfleet_envs.tau.database import Record

FREE_BAGS: Final = {
    "regular": {"basic_economy": 0, "economy": 1, "business": 2},
    "silver": {"basic_economy": 1, "economy": 2, "business": 3},
    "gold": {"basic_economy": 2, "economy": 3, "business": 3},
}
"""Free bags for each passenger."""
POLICY: Final = """You work for an airline and help customers with their reservations. It is 2024-05-15 15:00 EST.
- Find out first the customer's user id.
- Before you change anything, say what you will do and let the customer confirm it (yes).
- A reservation can be cancelled within 24 hours of booking, or if it is business, or if it has insurance and the \
reason is health or weather. No other can.
- Flights can be changed except in basic economy; origin, destination and number of passengers stay. The cabin can be \
changed in all reservations, for all flights together. Flights and cabin are paid or refunded with a credit or gift \
card.
- Checked bags can be added and not removed. Free for each passenger in basic economy, economy and business: 0, 1, 2 \
for regular members, 1, 2, 3 for silver, 2, 3, 3 for gold; each other bag is 50 dollars. Insurance is 30 dollars a \
passenger and cannot be added later.
- A booking takes at most five passengers, one certificate, one credit card and three gift cards, all from the profile.
- Make up nothing, and refuse what is against these rules. Transfer to a human only what you have no tool for."""


def may_cancel(reservation: Record, reason: str) -> bool:
    """Return whether the policy lets a reservation be cancelled; `reason` is "health" or another one."""
    return bool(
        reservation["created_at"] > "2024-05-14T15:00:00"
        or reservation["cabin"] == "business"
        or (reservation["insurance"] == "yes" and reason == "health")
    )


def paid_bags(membership: str, cabin: str, num_passengers: int, num_bags: int) -> int:
    """Return how many of the checked bags are not free."""
    return max(0, num_bags - FREE_BAGS[membership][cabin] * num_passengers)
