"""A small airline: flights between three airports, customers, and their reservations."""

import random
from collections.abc import Iterator
from typing import Final

from gymfleet_envs.tau.database import Record, World
from gymfleet_envs.tau.people import address, birthday, credit_card, digits, email_of, money, names, user_id_of
from gymfleet_envs.tau_airline.policy import FREE_BAGS, paid_bags
from gymfleet_envs.tau_airline.tools import AIRPORTS

CABINS: Final = ("basic_economy", "economy", "business")
DAYS: Final = tuple(f"2024-05-{day}" for day in range(18, 24))
_PRICES: Final = {"basic_economy": (50, 100), "economy": (100, 200), "business": (200, 500)}
_FLIGHTS_A_DAY: Final = 3
_LETTERS: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ"


class Airline:
    """The records of one task; `customer` is the user who asks."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.flights: dict[str, Record] = {}
        self.users: dict[str, Record] = {}
        self.reservations: dict[str, Record] = {}
        airports = rng.sample([code for code in AIRPORTS if code != "LGA"], 3)  # whose city is called as itself
        self.routes = [(one, two) for one in airports for two in airports if one != two]
        numbers = iter(rng.sample(range(1, 400), _FLIGHTS_A_DAY * len(self.routes)))
        for origin, destination in self.routes:
            self._add_route(origin, destination, numbers)
        ids = [self._add_user(name) for name in names(rng, 2)]
        self.customer_id = ids[0]
        for user_id in ids:
            for _ in range(3 if user_id == self.customer_id else 1):
                self.add_reservation(user_id)

    @property
    def customer(self) -> Record:
        """The user who asks."""
        return self.users[self.customer_id]

    def world(self) -> World:
        """Return the records, as they are now."""
        return World({"flights": self.flights, "users": self.users, "reservations": self.reservations})

    def method(self, *sources: str) -> str:
        """Return the id of a payment method of the customer."""
        methods = self.customer["payment_methods"]
        fit: list[str] = [key for key in methods if methods[key]["source"] in sources]
        return self._rng.choice(fit)

    def cheapest(self, origin: str, destination: str, day: str, cabin: str) -> Record:
        """Return the flight of the lowest price, which no other flight of the day has."""
        return min(
            (one for one in self.flights.values() if (one["origin"], one["destination"]) == (origin, destination)),
            key=lambda one: one["dates"][day]["prices"][cabin],
        )

    def add_reservation(self, user_id: str, *, cabin: str | None = None, is_settled: bool = False) -> Record:
        """Add a reservation of a user. With `is_settled` it was made long ago and without insurance."""
        rng, user = self._rng, self.users[user_id]
        origin, destination = rng.choice(self.routes)
        cabin = cabin or rng.choice(CABINS)
        flight = rng.choice([one for one in self.flights.values() if one["origin"] == origin
                             and one["destination"] == destination])  # fmt: skip
        day = rng.choice(DAYS[:3])
        passengers = [name | {"dob": birthday(rng)} for name in names(rng, rng.choice((1, 2)))]
        bags = rng.randrange(0, 1 + FREE_BAGS[user["membership"]][cabin] * len(passengers) + 1)
        price = flight["dates"][day]["prices"][cabin]
        reservation_id = f"{rng.choice(_LETTERS)}{rng.choice(_LETTERS)}{digits(rng, 3)}{rng.choice(_LETTERS)}"
        insurance = "no" if is_settled else rng.choice(("yes", "no"))
        paid = paid_bags(user["membership"], cabin, len(passengers), bags)
        total = (price + (30 if insurance == "yes" else 0)) * len(passengers) + 50 * paid
        cards = [key for key, one in user["payment_methods"].items() if one["source"] == "credit_card"]
        created = rng.randrange(1, 13) if is_settled else rng.randrange(1, 16)
        reservation = {
            "reservation_id": reservation_id,
            "user_id": user_id,
            "origin": origin,
            "destination": destination,
            "flight_type": "one_way",
            "cabin": cabin,
            "flights": [
                {
                    "origin": origin,
                    "destination": destination,
                    "flight_number": flight["flight_number"],
                    "date": day,
                    "price": price,
                }
            ],
            "passengers": passengers,
            "payment_history": [{"payment_id": cards[0], "amount": total}],
            "created_at": f"2024-05-{created:02d}T0{rng.randrange(10)}:{rng.randrange(10, 60)}:{rng.randrange(10, 60)}",
            "total_baggages": bags,
            "nonfree_baggages": paid,
            "insurance": insurance,
        }
        self.reservations[reservation_id] = reservation
        user["reservations"].append(reservation_id)
        return reservation

    def _add_route(self, origin: str, destination: str, numbers: Iterator[int]) -> None:
        """Add the flights of a route, all with different prices."""
        rng = self._rng
        prices = {cabin: iter(rng.sample(range(*_PRICES[cabin]), _FLIGHTS_A_DAY * len(DAYS))) for cabin in CABINS}
        for departure in rng.sample(range(6, 21), _FLIGHTS_A_DAY):
            number = f"HAT{next(numbers):03d}"
            self.flights[number] = {
                "flight_number": number,
                "origin": origin,
                "destination": destination,
                "scheduled_departure_time_est": f"{departure:02d}:00:00",
                "scheduled_arrival_time_est": f"{departure + 3:02d}:00:00",
                "dates": {
                    day: {
                        "status": "available",
                        "available_seats": {cabin: rng.randrange(5, 20) for cabin in CABINS},
                        "prices": {cabin: next(prices[cabin]) for cabin in CABINS},
                    }
                    for day in DAYS
                },
            }

    def _add_user(self, name: Record) -> str:
        rng = self._rng
        user_id = user_id_of(rng, name)
        methods = [
            credit_card(rng),
            *({"source": "gift_card", "amount": money(rng, 1000, 5000), "id": f"gift_card_{digits(rng, 7)}"}
              for _ in range(2)),
            {"source": "certificate", "amount": rng.randrange(50, 500), "id": f"certificate_{digits(rng, 7)}"},
        ]  # fmt: skip
        friend = names(rng, 1)[0] | {"dob": birthday(rng)}
        self.users[user_id] = {
            "name": name,
            "address": address(rng),
            "email": email_of(rng, name),
            "dob": birthday(rng),
            "payment_methods": {one["id"]: one for one in methods},
            "saved_passengers": [friend],
            "membership": rng.choice(tuple(FREE_BAGS)),
            "reservations": [],
        }
        return user_id
