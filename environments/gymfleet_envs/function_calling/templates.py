"""Functions of everyday life, and the words with which requests state their arguments."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from gymfleet_envs.function_calling.calls import Value

_PEOPLE: Final = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ida", "Jon", "Kira", "Leo", "Mona",
                  "Nils", "Olga", "Paul", "Rita", "Sam", "Tina", "Uwe", "Vera", "Will", "Yara", "Zoe")  # fmt: skip
_CITIES: Final = ("Lisbon", "Oslo", "Nairobi", "Lima", "Kyoto", "Quito", "Riga", "Dakar", "Hanoi", "Malmo", "Porto",
                  "Tunis", "Cusco", "Basel", "Accra", "Turin", "Leeds", "Ghent", "Izmir", "Davao")  # fmt: skip
_PLACES: Final = ("Blue Fig", "Old Mill", "Casa Luna", "Harbour House", "Green Door", "Stone Oven", "The Lantern",
                  "Red Barn", "Silver Spoon", "Corner Table", "Maple Garden", "North Star")  # fmt: skip
_TOPPINGS: Final = ("olives", "onions", "basil", "mushrooms", "peppers", "capers", "corn", "spinach", "garlic")
_ROOMS: Final = ("kitchen", "bedroom", "hallway", "study", "bathroom", "cellar", "nursery", "attic")
_CURRENCIES: Final = ("USD", "EUR", "GBP", "JPY", "CHF", "NOK", "PLN", "BRL", "KES", "INR")
_TOPICS: Final = ("dentist", "budget review", "swimming lesson", "piano tuning", "team lunch", "parents' evening",
                  "yoga class", "book club", "car inspection", "garden tour")  # fmt: skip
_BANDS: Final = ("Paper Kites", "Night Ferry", "Cold Harbor", "The Sundials", "Velvet Road", "Iron Violets",
                 "Wild Anchors", "Slow Comets")  # fmt: skip
_GOODS: Final = ("train tickets", "groceries", "paint", "printer ink", "concert tickets", "gardening tools", "shoes")

Draw = Callable[[random.Random], Value]


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """An argument of a function; each is equal only to itself."""

    names: tuple[str, ...]
    """Its possible names, of which a task chooses one."""
    kind: str
    description: str
    draw: Draw
    words: str
    """Its words in a request, such as ` for {} people`. For a truth value, the words that make it true."""
    default: Value = None
    """The value if a request does not state it; None if it is required."""
    enum: tuple[str, ...] = ()
    items: str = ""

    @property
    def is_required(self) -> bool:
        """Whether it has no default."""
        return self.default is None

    def described(self) -> dict[str, Any]:
        """Return its description in BFCL's form."""
        told: dict[str, Any] = {"type": self.kind, "description": self.description}
        if self.kind == "array":
            told["items"] = {"type": self.items}
        if self.enum:
            told["enum"] = list(self.enum)
        return told if self.is_required else {**told, "default": self.default}

    def said(self, value: Value) -> str:
        """Return the words of a request that give it a value."""
        if self.kind == "boolean":
            return self.words
        if isinstance(value, list):
            texts = [str(one) for one in value]
            return self.words.format(" and ".join((", ".join(texts[:-1]), texts[-1])) if len(texts) > 1 else texts[0])
        return self.words.format(value)


@dataclass(frozen=True, slots=True)
class Template:
    """A function under any of its names."""

    names: tuple[str, ...]
    description: str
    request: str
    """The beginning of a request; the words of the arguments follow."""
    parameters: tuple[Parameter, ...]


def _date(rng: random.Random) -> str:
    return f"2026-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def _time(rng: random.Random) -> str:
    return f"{rng.randint(7, 22):02}:{rng.choice((0, 10, 15, 20, 30, 40, 45)):02}"


def _amount(rng: random.Random) -> float:
    return rng.randint(2, 900) + rng.choice((0.25, 0.4, 0.5, 0.75, 0.99))


def _of(*values: Value) -> Draw:
    return lambda rng: rng.choice(values)


def _number(low: int, high: int) -> Draw:
    return lambda rng: rng.randint(low, high)


def _some(*values: str) -> Draw:
    return lambda rng: rng.sample(values, rng.randint(1, 3))


def _true(rng: random.Random) -> bool:
    del rng
    return True


_DATE: Final = Parameter(("date", "day"), "string", "The day, as YYYY-MM-DD.", _date, " on {}")
_TIME: Final = Parameter(("time", "start_time"), "string", "The time of day, as HH:MM.", _time, " at {}")

TEMPLATES: Final = (
    Template(("book_table", "reserve_table", "restaurants.book"), "Book a table at a restaurant.", "Book a table", (
        Parameter(("restaurant", "place"), "string", "The restaurant's name.", _of(*_PLACES), " at {}"),
        Parameter(("people", "party_size"), "integer", "How many will come.", _number(2, 14), " for {} people"),
        _DATE, _TIME,
        Parameter(("outdoors", "terrace"), "boolean", "Whether to sit outside.", _true, ", outside", default=False),
    )),
    Template(("send_message", "messages.send", "text_contact"), "Send a text message.", "Send a message", (
        Parameter(("recipient", "contact"), "string", "Who gets it.", _of(*_PEOPLE), " to {}"),
        Parameter(("text", "body"), "string", "What it says.",
                  lambda rng: f"{rng.choice(('Running late', 'All is well', 'Call me back', 'See you soon'))}, "
                              f"{rng.choice(_PEOPLE)}", " that says '{}'"),
        Parameter(("priority", "urgency"), "string", "How urgent it is.", _of("high", "low"), ", with {} priority",
                  default="normal", enum=("low", "normal", "high")),
    )),
    Template(("set_alarm", "clock.add_alarm", "create_alarm"), "Set an alarm.", "Set an alarm", (
        _TIME,
        Parameter(("label", "title"), "string", "What the alarm is called.", _of(*_TOPICS), " called '{}'"),
        Parameter(("volume", "loudness"), "integer", "From 0 to 100.", _number(1, 99), ", at volume {}", default=50),
    )),
    Template(("convert_currency", "money.convert", "exchange"), "Convert an amount of money.", "Convert", (
        Parameter(("amount", "value"), "float", "How much.", _amount, " {}"),
        Parameter(("source", "from_currency"), "string", "Three letters.", _of(*_CURRENCIES[:5]), " from {}"),
        Parameter(("target", "to_currency"), "string", "Three letters.", _of(*_CURRENCIES[5:]), " to {}"),
    )),
    Template(("order_pizza", "pizzeria.order", "pizza_delivery"), "Order pizzas.", "Order", (
        Parameter(("count", "quantity"), "integer", "How many.", _number(1, 12), " {}"),
        Parameter(("size", "diameter"), "string", "How large.", _of("small", "medium", "large"), " {} pizzas",
                  enum=("small", "medium", "large")),
        Parameter(("toppings", "extras"), "array", "What goes on each, in the order that is asked for.",
                  _some(*_TOPPINGS), " with {}", items="string"),
        Parameter(("customer", "name"), "string", "For whom.", _of(*_PEOPLE), ", for {}"),
    )),
    Template(("find_flights", "flights.search", "search_flights"), "Search for flights.", "Find flights", (
        Parameter(("origin", "departure_city"), "string", "Where from.", _of(*_CITIES[:10]), " from {}"),
        Parameter(("destination", "arrival_city"), "string", "Where to.", _of(*_CITIES[10:]), " to {}"),
        _DATE,
        Parameter(("max_price", "budget"), "float", "The most that one may cost.", _amount, ", for at most {} euros",
                  default=1000.0),
        Parameter(("direct", "nonstop"), "boolean", "Only those without a stop.", _true, ", without a stop",
                  default=False),
    )),
    Template(("play_music", "music.play", "start_playlist"), "Play music in a room.", "Play music", (
        Parameter(("artist", "band"), "string", "Whose music.", _of(*_BANDS), " by {}"),
        Parameter(("room", "speaker"), "string", "Where.", _of(*_ROOMS), " in the {}"),
        Parameter(("minutes", "duration"), "integer", "For how long.", _number(5, 180), " for {} minutes"),
        Parameter(("shuffle", "random_order"), "boolean", "In any order.", _true, ", shuffled", default=False),
    )),
    Template(("add_event", "calendar.create_event", "schedule"), "Put an event into the calendar.", "Schedule", (
        Parameter(("title", "subject"), "string", "What it is.", _of(*_TOPICS), " '{}'"),
        _DATE, _TIME,
        Parameter(("guests", "attendees"), "array", "Who is invited, in the order that is asked for.",
                  _some(*_PEOPLE), ", and invite {}", default=[], items="string"),
    )),
    Template(("set_thermostat", "home.set_temperature", "heat_room"), "Heat a room.", "Set the heating", (
        Parameter(("room", "zone"), "string", "Which room.", _of(*_ROOMS), " in the {}"),
        Parameter(("temperature", "degrees"), "float", "In degrees Celsius.",
                  lambda rng: rng.randint(14, 25) + rng.choice((0.0, 0.5)), " to {} degrees"),
        Parameter(("hours", "duration"), "integer", "For how long.", _number(1, 12), " for {} hours", default=24),
    )),
    Template(("mail_parcel", "post.send_parcel", "ship_package"), "Send a parcel.", "Send a parcel", (
        Parameter(("recipient", "addressee"), "string", "To whom.", _of(*_PEOPLE), " to {}"),
        Parameter(("city", "town"), "string", "To which city.", _of(*_CITIES), " in {}"),
        Parameter(("weight", "weight_kg"), "float", "In kilograms.",
                  lambda rng: rng.randint(1, 30) + rng.choice((0.2, 0.5, 0.8)), " that weighs {} kg"),
        Parameter(("insured", "insurance"), "boolean", "Whether it is insured.", _true, ", insured", default=False),
    )),
    Template(("log_expense", "expenses.add", "record_spending"), "Write down an expense.", "Write down an expense", (
        Parameter(("amount", "total"), "float", "How much, in euros.", _amount, " of {} euros"),
        Parameter(("purpose", "category"), "string", "What for.", _of(*_GOODS), " for {}"),
        Parameter(("person", "payer"), "string", "Who paid.", _of(*_PEOPLE), ", paid by {}"),
        _DATE,
    )),
    Template(("rent_bike", "bikes.rent", "hire_bicycle"), "Rent bicycles.", "Rent", (
        Parameter(("count", "bikes"), "integer", "How many.", _number(1, 9), " {}"),
        Parameter(("kind", "model"), "string", "Which kind.", _of("city", "electric", "cargo"), " {} bikes",
                  enum=("city", "electric", "cargo")),
        Parameter(("city", "location"), "string", "Where.", _of(*_CITIES), " in {}"),
        _DATE,
        Parameter(("days", "rental_days"), "integer", "For how many days.", _number(2, 14), " for {} days", default=1),
    )),
    Template(("water_zones", "garden.water", "irrigate"), "Water parts of the garden.", "Water the garden", (
        Parameter(("zones", "beds"), "array", "The numbers of the beds, in the order that is asked for.",
                  lambda rng: rng.sample(range(1, 30), rng.randint(2, 4)), " in beds {}", items="integer"),
        Parameter(("minutes", "duration"), "integer", "For how long.", _number(3, 60), " for {} minutes"),
        _TIME,
    )),
)  # fmt: skip
