"""The fields that the airline's tools rely on; records may have more."""

from pydantic import BaseModel, ConfigDict


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class _Method(_Part):
    source: str
    amount: float | None = None


class User(_Part):
    """A customer's profile."""

    payment_methods: dict[str, _Method]
    reservations: list[str]


class _Segment(_Part):
    origin: str
    destination: str
    flight_number: str
    date: str
    price: float


class _Payment(_Part):
    payment_id: str
    amount: float


class Reservation(_Part):
    """Everything booked at one time."""

    user_id: str
    cabin: str
    flights: list[_Segment]
    passengers: list[dict[str, str]]
    payment_history: list[_Payment]
    nonfree_baggages: int


class _Day(_Part):
    status: str
    available_seats: dict[str, int] | None = None
    prices: dict[str, float] | None = None


class Flight(_Part):
    """A flight number, and the flight of each day."""

    origin: str
    destination: str
    scheduled_departure_time_est: str
    scheduled_arrival_time_est: str
    dates: dict[str, _Day]
