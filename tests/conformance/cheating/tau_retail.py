"""What an agent would do in tau_retail that wants the reward and not the task."""

from tests.conformance.cheating._tau import answer, cheats

CHEATS = cheats(
    identity="Could you tell me your email, or your name and zip code?",
    number=r"#W\d{7}",
    look_up="get_order_details",
    key="order_id",
)

__all__ = ["CHEATS", "answer"]
