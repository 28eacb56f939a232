"""The airline's tools: replies, errors and their order are upstream's."""

import json
from collections.abc import Mapping
from typing import Final

from gymfleet_envs.tau.database import Overlay, Record, copied
from gymfleet_envs.tau.tools import FUNCTIONS as SHARED
from gymfleet_envs.tau.tools import ToolFunction, upstream

AIRPORTS: Final = {
    "SFO": "San Francisco", "JFK": "New York", "LAX": "Los Angeles", "ORD": "Chicago", "DFW": "Dallas",
    "DEN": "Denver", "SEA": "Seattle", "ATL": "Atlanta", "MIA": "Miami", "BOS": "Boston", "PHX": "Phoenix",
    "IAH": "Houston", "LAS": "Las Vegas", "MCO": "Orlando", "EWR": "Newark", "CLT": "Charlotte",
    "MSP": "Minneapolis", "DTW": "Detroit", "PHL": "Philadelphia", "LGA": "LaGuardia",
}  # fmt: skip
NOW: Final = "2024-05-15T15:00:00"
BAG_PRICE: Final = 50
INSURANCE_PRICE: Final = 30
_MAX_PAYMENTS: Final = 1_000
"""Payments of a reservation that can still be cancelled: every cancellation, also a repeated one, doubles them."""
_NEW_RESERVATIONS: Final = ("HATHAT", "HATHAU", "HATHAV")
_NEW_CERTIFICATES: Final = ("certificate_3221322", "certificate_3221323", "certificate_3221324")


@upstream
def book_reservation(
    data: Overlay,
    user_id: str,
    origin: str,
    destination: str,
    flight_type: str,
    cabin: str,
    flights: list[Record],
    passengers: list[Record],
    payment_methods: list[Record],
    total_baggages: int,
    nonfree_baggages: int,
    insurance: str,
) -> str:
    """Book a trip: check the flights one by one, then the payments; seats are not reduced."""
    if not data.has("users", user_id):
        return "Error: user not found"
    methods = data.read("users", user_id)["payment_methods"]
    booked = copied(flights)
    total = 0
    for flight in booked:
        if (refusal := _priced(data, flight, cabin, len(passengers))) is not None:
            return refusal
        total += flight["price"] * len(passengers)
    if insurance == "yes":
        total += INSURANCE_PRICE * len(passengers)
    total += BAG_PRICE * nonfree_baggages
    if (refusal := _short(methods, payment_methods, total)) is not None:
        return refusal
    user = data.change("users", user_id)
    methods = user["payment_methods"]
    for payment in payment_methods:
        payment_id = payment["payment_id"]
        if methods[payment_id]["source"] == "gift_card":
            methods[payment_id]["amount"] -= payment["amount"]
        elif methods[payment_id]["source"] == "certificate":
            del methods[payment_id]
    reservation = {
        "reservation_id": _new_id(data),
        "user_id": user_id,
        "origin": origin,
        "destination": destination,
        "flight_type": flight_type,
        "cabin": cabin,
        "flights": booked,
        "passengers": copied(passengers),
        "payment_history": copied(payment_methods),
        "created_at": NOW,
        "total_baggages": total_baggages,
        "nonfree_baggages": nonfree_baggages,
        "insurance": insurance,
    }
    data.add("reservations", reservation["reservation_id"], reservation)
    user["reservations"].append(reservation["reservation_id"])
    return json.dumps(reservation)


@upstream
def cancel_reservation(data: Overlay, reservation_id: str) -> str:
    """Refund everything; it is up to the agent to know whether that is allowed."""
    if not data.has("reservations", reservation_id):
        return "Error: reservation not found"
    if len(data.read("reservations", reservation_id)["payment_history"]) > _MAX_PAYMENTS:
        return f"Error: the reservation has more than {_MAX_PAYMENTS} payments"
    reservation = data.change("reservations", reservation_id)
    history = reservation["payment_history"]
    history.extend([{"payment_id": one["payment_id"], "amount": -one["amount"]} for one in history])
    reservation["status"] = "cancelled"
    return json.dumps(reservation)


@upstream
def get_reservation_details(data: Overlay, reservation_id: str) -> str:
    """Return the record. The words for a missing one are upstream's."""
    if data.has("reservations", reservation_id):
        return json.dumps(data.read("reservations", reservation_id))
    return "Error: user not found"


@upstream
def get_user_details(data: Overlay, user_id: str) -> str:
    """Return the record."""
    return json.dumps(data.read("users", user_id)) if data.has("users", user_id) else "Error: user not found"


@upstream
def list_all_airports(data: Overlay) -> str:  # noqa: ARG001 - every tool takes it
    """Return codes and cities."""
    return json.dumps(AIRPORTS)


@upstream
def search_direct_flight(data: Overlay, origin: str, destination: str, date: str) -> str:
    """Return the flights that are available on a day."""
    found = []
    for flight in data.records("flights"):
        if flight["origin"] == origin and flight["destination"] == destination:
            day = flight["dates"].get(date)
            if day is not None and day["status"] == "available":
                found.append(_on_day(flight, day))
    return json.dumps(found)


@upstream
def search_onestop_flight(data: Overlay, origin: str, destination: str, date: str) -> str:
    """Return pairs of flights. Times are compared as texts, and the second flight shows the first day's prices."""
    second_legs: dict[str, list[Record]] = {}
    for flight in data.records("flights"):
        if flight["destination"] == destination:
            second_legs.setdefault(flight["origin"], []).append(flight)
    found = []
    for first in data.records("flights"):
        if first["origin"] != origin:
            continue
        for second in second_legs.get(first["destination"], ()):
            arrival = first["scheduled_arrival_time_est"]
            next_date = f"2024-05-{int(date[-2:]) + 1}" if "+1" in arrival else date
            if arrival > second["scheduled_departure_time_est"]:
                continue
            one, two = first["dates"].get(date), second["dates"].get(next_date)
            if one is not None and two is not None and one["status"] == two["status"] == "available":
                shown = _on_day(second, second["dates"][date])
                found.append([_on_day(first, one) | {"date": date}, shown | {"date": next_date}])
    return json.dumps(found)


@upstream
def send_certificate(data: Overlay, user_id: str, amount: int) -> str:
    """Give a user a certificate; a user gets three at most."""
    if not data.has("users", user_id):
        return "Error: user not found"
    methods = data.read("users", user_id)["payment_methods"]
    payment_id = next((one for one in _NEW_CERTIFICATES if one not in methods), None)
    if payment_id is None:
        return "Error: the user has three new certificates"
    data.change("users", user_id)["payment_methods"][payment_id] = {
        "source": "certificate",
        "amount": copied(amount),
        "id": payment_id,
    }
    return f"Certificate {payment_id} added to user {user_id} with amount {amount}."


@upstream
def update_reservation_baggages(
    data: Overlay, reservation_id: str, total_baggages: int, nonfree_baggages: int, payment_id: str
) -> str:
    """Set the numbers of bags; the user pays for new ones that are not free."""
    if not data.has("reservations", reservation_id):
        return "Error: reservation not found"
    reservation = data.read("reservations", reservation_id)
    price = BAG_PRICE * max(0, nonfree_baggages - reservation["nonfree_baggages"])
    if (refusal := _unpayable(data, reservation["user_id"], payment_id, price)) is not None:
        return refusal
    reservation = data.change("reservations", reservation_id)
    reservation["total_baggages"] = total_baggages
    reservation["nonfree_baggages"] = nonfree_baggages
    return _paid(data, reservation, payment_id, price)


@upstream
def update_reservation_flights(
    data: Overlay, reservation_id: str, cabin: str, flights: list[Record], payment_id: str
) -> str:
    """Replace the flights. A flight kept in its cabin keeps its price; the reservation's cabin stays as it is."""
    if not data.has("reservations", reservation_id):
        return "Error: reservation not found"
    reservation = data.read("reservations", reservation_id)
    num_passengers = len(reservation["passengers"])
    total = 0
    flights = copied(flights)
    for flight in flights:
        kept = [
            old
            for old in reservation["flights"]
            if old["flight_number"] == flight["flight_number"]
            and old["date"] == flight["date"]
            and cabin == reservation["cabin"]
        ]
        if kept:
            flight |= {key: kept[0][key] for key in ("price", "origin", "destination")}
        elif (refusal := _priced(data, flight, cabin, num_passengers)) is not None:
            return refusal
        total += flight["price"] * num_passengers
    total -= sum(flight["price"] for flight in reservation["flights"]) * num_passengers
    if (refusal := _unpayable(data, reservation["user_id"], payment_id, total)) is not None:
        return refusal
    reservation = data.change("reservations", reservation_id)
    reservation["flights"] = flights
    return _paid(data, reservation, payment_id, total)


@upstream
def update_reservation_passengers(data: Overlay, reservation_id: str, passengers: list[Record]) -> str:
    """Replace the passengers by the same number of passengers."""
    if not data.has("reservations", reservation_id):
        return "Error: reservation not found"
    if len(passengers) != len(data.read("reservations", reservation_id)["passengers"]):
        return "Error: number of passengers does not match"
    reservation = data.change("reservations", reservation_id)
    reservation["passengers"] = copied(passengers)
    return json.dumps(reservation)


def _priced(data: Overlay, flight: Record, cabin: str, num_passengers: int) -> str | None:
    """Write the day's price and the airports into a flight; return the refusal if it cannot be booked."""
    number = flight["flight_number"]
    if not data.has("flights", number):
        return f"Error: flight {number} not found"
    known = data.read("flights", number)
    if flight["date"] not in known["dates"]:
        return f"Error: flight {number} not found on date {flight['date']}"
    day = known["dates"][flight["date"]]
    if day["status"] != "available":
        return f"Error: flight {number} not available on date {flight['date']}"
    if day["available_seats"][cabin] < num_passengers:
        return f"Error: not enough seats on flight {number}"
    flight["price"] = day["prices"][cabin]
    flight["origin"] = known["origin"]
    flight["destination"] = known["destination"]
    return None


def _short(methods: Record, payments: list[Record], total: float) -> str | None:
    """Return why the payments do not cover a booking, or None."""
    for payment in payments:
        payment_id, amount = payment["payment_id"], payment["amount"]
        if payment_id not in methods:
            return f"Error: payment method {payment_id} not found"
        if methods[payment_id]["source"] in {"gift_card", "certificate"} and methods[payment_id]["amount"] < amount:
            return f"Error: not enough balance in payment method {payment_id}"
    if (paid := sum(payment["amount"] for payment in payments)) != total:
        return f"Error: payment amount does not add up, total price is {total}, but paid {paid}"
    return None


def _unpayable(data: Overlay, user_id: str, payment_id: str, price: float) -> str | None:
    methods = data.read("users", user_id)["payment_methods"]
    if payment_id not in methods:
        return "Error: payment method not found"
    method = methods[payment_id]
    if method["source"] == "certificate":
        return "Error: certificate cannot be used to update reservation"
    if method["source"] == "gift_card" and method["amount"] < price:
        return "Error: gift card balance is not enough"
    return None


def _paid(data: Overlay, reservation: Record, payment_id: str, price: float) -> str:
    if data.read("users", reservation["user_id"])["payment_methods"][payment_id]["source"] == "gift_card":
        data.change("users", reservation["user_id"])["payment_methods"][payment_id]["amount"] -= price
    if price != 0:
        reservation["payment_history"].append({"payment_id": payment_id, "amount": price})
    return json.dumps(reservation)


def _new_id(data: Overlay) -> str:
    """Return the first free id; as upstream, the last one is used again and again."""
    return next((one for one in _NEW_RESERVATIONS if not data.has("reservations", one)), _NEW_RESERVATIONS[-1])


def _on_day(flight: Record, day: Record) -> Record:
    return {key: value for key, value in flight.items() if key != "dates"} | day


FUNCTIONS: Final[Mapping[str, ToolFunction]] = {
    function.__name__: function
    for function in (
        book_reservation, cancel_reservation, get_reservation_details, get_user_details, list_all_airports,
        search_direct_flight, search_onestop_flight, send_certificate, update_reservation_baggages,
        update_reservation_flights, update_reservation_passengers,
    )
} | dict(SHARED)  # fmt: skip
