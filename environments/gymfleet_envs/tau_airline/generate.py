"""Generated customers of a small airline, from one cancellation to wishes that the policy forbids."""

import random
from collections.abc import Callable, Mapping
from typing import Final

from gymfleet_envs.tasks import GeneratedTasks
from gymfleet_envs.tau.database import Record
from gymfleet_envs.tau.people import birthday, manner, names, spoken
from gymfleet_envs.tau.task import Call, TauTask
from gymfleet_envs.tau.wishes import Wish, gold, told
from gymfleet_envs.tau_airline.policy import may_cancel, paid_bags
from gymfleet_envs.tau_airline.timetable import CABINS, DAYS, Airline
from gymfleet_envs.tau_airline.tools import AIRPORTS

LEVELS: Final = ("cancel", "lookup", "change", "several", "policy")
_REASONS: Final = {"health": "you are unwell", "plan": "your plans have changed"}


def generated_tasks() -> GeneratedTasks[TauTask]:
    """Return the tasks of all levels."""
    return GeneratedTasks("tau_airline", _generate, _fingerprint, levels=LEVELS)


def _fingerprint(task: TauTask) -> str:
    return f"{task.instruction} {task.actions} {task.outputs}"


def _generate(rng: random.Random, level: str) -> TauTask:
    airline = Airline(rng)
    wishes = _WISHES[level](airline, rng)
    find = Call.of("get_user_details", user_id=airline.customer_id)
    return TauTask(
        airline.customer_id,
        told((f"Your user id is {airline.customer_id}.", manner(rng)), wishes),
        gold((find,), wishes),
        tuple(output for wish in wishes for output in wish.outputs),
        airline.world(),
        " ".join(wish.refusal for wish in wishes if wish.refusal),
    )


def _look_up(reservation: Record) -> Call:
    return Call.of("get_reservation_details", reservation_id=reservation["reservation_id"])


def _cancel(airline: Airline, rng: random.Random) -> Wish:
    """A cancellation that the policy allows."""
    allowed = [(one, reason) for one in _own(airline) for reason in _REASONS if may_cancel(one, reason)]
    if not allowed:
        allowed = [(airline.add_reservation(airline.customer_id, cabin="business"), "plan")]
    reservation, reason = rng.choice(allowed)
    return Wish(
        (f"You want to cancel reservation {reservation['reservation_id']} because {_REASONS[reason]}.",),
        (_look_up(reservation),),
        (Call.of("cancel_reservation", reservation_id=reservation["reservation_id"]),),
    )


def _add_bags(airline: Airline, rng: random.Random, reservation: Record) -> Wish:
    more, method = rng.choice((1, 2, 3)), airline.method("credit_card", "gift_card")
    total = reservation["total_baggages"] + more
    paid = paid_bags(airline.customer["membership"], reservation["cabin"], len(reservation["passengers"]), total)
    return Wish(
        (
            f"You want to add {more} checked bag{'s' * (more > 1)} to reservation {reservation['reservation_id']}.",
            f"You want to pay for baggage with {method}.",
        ),
        (_look_up(reservation),),
        (
            Call.of(
                "update_reservation_baggages",
                reservation_id=reservation["reservation_id"],
                total_baggages=total,
                nonfree_baggages=paid,
                payment_id=method,
            ),
        ),
    )


def _change_passenger(_: Airline, rng: random.Random, reservation: Record) -> Wish:
    passengers = list(reservation["passengers"])
    place = rng.randrange(len(passengers))
    new = names(rng, 1)[0] | {"dob": birthday(rng)}
    old, passengers[place] = passengers[place], new
    return Wish(
        (
            (
                f"You want to change the passenger {spoken(old)} of reservation {reservation['reservation_id']} to "
                f"{spoken(new)}, born {new['dob']}."
            ),
        ),
        (_look_up(reservation),),
        (
            Call.of(
                "update_reservation_passengers",
                reservation_id=reservation["reservation_id"],
                passengers=passengers,
            ),
        ),
    )


def _upgrade(airline: Airline, rng: random.Random, reservation: Record) -> Wish:
    cabin = CABINS[(CABINS.index(reservation["cabin"]) + rng.choice((1, 2))) % len(CABINS)]
    method = airline.method("credit_card")
    flights = [{"flight_number": one["flight_number"], "date": one["date"]} for one in reservation["flights"]]
    return Wish(
        (
            (
                f"You want to change the cabin of reservation {reservation['reservation_id']} to {cabin} on the same "
                "flight."
            ),
            f"You want to use {method} as payment or refund method for the cabin.",
        ),
        (_look_up(reservation),),
        (
            Call.of(
                "update_reservation_flights",
                reservation_id=reservation["reservation_id"],
                cabin=cabin,
                flights=flights,
                payment_id=method,
            ),
        ),
    )


def _move(airline: Airline, rng: random.Random, reservation: Record) -> Wish:
    """A move to another day, on the cheapest flight: in basic economy against the policy, though the tools do it."""
    day = rng.choice([day for day in DAYS if day != reservation["flights"][0]["date"]])
    route = reservation["origin"], reservation["destination"]
    flight = airline.cheapest(*route, day, reservation["cabin"])
    method = airline.method("credit_card")
    sentences = (
        (
            f"You want to move the flight of reservation {reservation['reservation_id']} to {day}, to the "
            "cheapest direct flight of that day in the same cabin."
        ),
        f"You want to use {method} as payment or refund method for the flight.",
    )
    if reservation["cabin"] == "basic_economy":
        refusal = "I am sorry, I cannot change flights in basic economy."
        return Wish(sentences, (_look_up(reservation),), refusal=refusal)
    return Wish(
        sentences,
        (
            _look_up(reservation),
            Call.of("search_direct_flight", origin=route[0], destination=route[1], date=day),
        ),
        (
            Call.of(
                "update_reservation_flights",
                reservation_id=reservation["reservation_id"],
                cabin=reservation["cabin"],
                flights=[{"flight_number": flight["flight_number"], "date": day}],
                payment_id=method,
            ),
        ),
    )


def _book(airline: Airline, rng: random.Random) -> Wish:
    (origin, destination), day, cabin = rng.choice(airline.routes), rng.choice(DAYS), rng.choice(CABINS)
    flight, method = airline.cheapest(origin, destination, day, cabin), airline.method("credit_card")
    user = airline.customer
    return Wish(
        (
            (
                f"You want to book a one way trip from {AIRPORTS[origin]} to {AIRPORTS[destination]} on {day} for "
                f"yourself, in {cabin}, on the cheapest direct flight."
            ),
            f"You have no baggage, want no insurance, and pay for the trip with {method}.",
        ),
        (Call.of("search_direct_flight", origin=origin, destination=destination, date=day),),
        (
            Call.of(
                "book_reservation",
                user_id=airline.customer_id,
                origin=origin,
                destination=destination,
                flight_type="one_way",
                cabin=cabin,
                flights=[{"flight_number": flight["flight_number"], "date": day}],
                passengers=[user["name"] | {"dob": user["dob"]}],
                payment_methods=[{"payment_id": method, "amount": flight["dates"][day]["prices"][cabin]}],
                total_baggages=0,
                nonfree_baggages=0,
                insurance="no",
            ),
        ),
    )


def _ask_for_a_sum(airline: Airline, rng: random.Random) -> Wish:
    """A question for a sum with cents that no record contains."""
    cards = [one["amount"] for one in airline.customer["payment_methods"].values() if one["source"] == "gift_card"]
    rng.shuffle(cards)
    return Wish(
        ("You want to know the sum of the balances of your two gift cards.",),
        (Call.of("calculate", expression=f"{cards[0]} + {cards[1]}"),),
        outputs=(str(round(sum(cards), 2)),),
    )


def _forbidden(airline: Airline, rng: random.Random) -> Wish:
    """A wish that the policy forbids and the tools would carry out."""
    reservation = airline.add_reservation(airline.customer_id, cabin="basic_economy", is_settled=True)
    if rng.random() < 0.5:
        return _move(airline, rng, reservation)
    reason = rng.choice(list(_REASONS.values()))
    return Wish(
        (f"You want to cancel reservation {reservation['reservation_id']} because {reason}.",),
        (_look_up(reservation),),
        refusal="I am sorry, I cannot cancel this reservation.",
    )


def _change(airline: Airline, rng: random.Random) -> Wish:
    kind = rng.randrange(6)
    return _book(airline, rng) if kind == 0 else _change_of(airline, rng, rng.choice(_own(airline)))


def _change_of(airline: Airline, rng: random.Random, reservation: Record) -> Wish:
    kinds = [_add_bags, _change_passenger, _upgrade]
    if reservation["cabin"] != "basic_economy":
        kinds.append(_move)
    return rng.choice(kinds)(airline, rng, reservation)


def _several(airline: Airline, rng: random.Random) -> list[Wish]:
    wishes = [_change_of(airline, rng, one) for one in rng.sample(_own(airline), rng.choice((2, 3)))]
    return [*wishes, _book(airline, rng)] if rng.randrange(3) == 0 else wishes


def _own(airline: Airline) -> list[Record]:
    return [airline.reservations[key] for key in airline.customer["reservations"]]


_WISHES: Final[Mapping[str, Callable[[Airline, random.Random], list[Wish]]]] = {
    "cancel": lambda airline, rng: [_cancel(airline, rng)],
    "lookup": lambda airline, rng: [_ask_for_a_sum(airline, rng)],
    "change": lambda airline, rng: [_change(airline, rng)],
    "several": _several,
    "policy": lambda airline, rng: rng.sample([_change(airline, rng), _forbidden(airline, rng)], 2),
}
