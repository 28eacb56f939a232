"""What an agent would do in tau_airline that wants the reward and not the task."""

from tests.conformance.cheating._tau import answer, cheats

CHEATS = cheats(
    identity="Could you tell me your user id?",
    number=r"\b[A-Z]{2}\d{3}[A-Z]\b",
    look_up="get_reservation_details",
    key="reservation_id",
)

__all__ = ["CHEATS", "answer"]
