"""The airline's tools as a model sees them: upstream's names and parameters, described in our words."""

from typing import Final

from gymfleet_contracts.session import Tool
from pydantic import JsonValue

from gymfleet_envs.tau.calls import objects, tool
from gymfleet_envs.tau.tools import RESPOND_TOOL
from gymfleet_envs.tau.tools import TOOLS as SHARED

_USER: Final = "The user's id, such as 'sara_doe_496'."
_RESERVATION: Final = "The reservation's id, such as '8JX2WO'."
_METHOD: Final = "The id of a payment method of the user, such as 'credit_card_7815826' or 'gift_card_7815826'."
_FROM: Final = "The airport's code, such as 'JFK'."
_TO: Final = "The airport's code, such as 'LAX'."
_DATE: Final = "As 'YYYY-MM-DD', such as '2024-05-01'."
_CABIN: Final[JsonValue] = {"type": "string", "enum": ["basic_economy", "economy", "business"]}


def _number(description: str) -> JsonValue:
    return {"type": "integer", "description": description}


_FLIGHTS: Final = objects(
    "All flights of the trip, those that stay as they are too.",
    flight_number="Such as 'HAT001'.",
    date=_DATE,
)
_PASSENGERS: Final = objects("All passengers.", first_name="Such as 'Noah'.", last_name="Such as 'Brown'.", dob=_DATE)
TOOLS: Final[tuple[Tool, ...]] = (
    RESPOND_TOOL,
    tool(
        "book_reservation",
        "Book a trip. The customer must have confirmed it.",
        user_id=_USER,
        origin=_FROM,
        destination=_TO,
        flight_type={"type": "string", "enum": ["one_way", "round_trip"]},
        cabin=_CABIN,
        flights=_FLIGHTS,
        passengers=_PASSENGERS,
        payment_methods=objects(
            "How it is paid; the amounts add up to the price.",
            payment_id=_METHOD,
            amount={"type": "number", "description": "What is paid with it."},
        ),
        total_baggages=_number("The number of checked bags."),
        nonfree_baggages=_number("How many of them are paid for."),
        insurance={"type": "string", "enum": ["yes", "no"]},
    ),
    tool(
        "cancel_reservation", "Cancel a whole trip. The customer must have confirmed it.", reservation_id=_RESERVATION
    ),
    tool("get_reservation_details", "Look up a reservation.", reservation_id=_RESERVATION),
    tool("get_user_details", "Look up a user: payment methods, membership, reservations.", user_id=_USER),
    tool("list_all_airports", "List the airports' codes and cities."),
    tool(
        "search_direct_flight",
        "Find direct flights that are available on a day.",
        origin=_FROM,
        destination=_TO,
        date=_DATE,
    ),
    tool(
        "search_onestop_flight",
        "Find pairs of flights with one stop that are available on a day.",
        origin=_FROM,
        destination=_TO,
        date=_DATE,
    ),
    tool(
        "send_certificate",
        "Give a user a travel certificate.",
        user_id=_USER,
        amount={"type": "number", "description": "What it is worth."},
    ),
    tool(
        "update_reservation_baggages",
        "Change the number of checked bags. The customer must have confirmed it.",
        reservation_id=_RESERVATION,
        total_baggages=_number("The new number of checked bags."),
        nonfree_baggages=_number("How many of them are paid for."),
        payment_id=_METHOD,
    ),
    tool(
        "update_reservation_flights",
        "Change the flights or the cabin. The customer must have confirmed it.",
        reservation_id=_RESERVATION,
        cabin=_CABIN,
        flights=_FLIGHTS,
        payment_id=_METHOD,
    ),
    tool(
        "update_reservation_passengers",
        "Change who travels; the number of passengers stays. The customer must have confirmed it.",
        reservation_id=_RESERVATION,
        passengers=_PASSENGERS,
    ),
    *SHARED,
)
