"""Made-up names. Each belongs to one split by its hash, so no name of a held-out question occurs in training."""

import random
from collections.abc import Callable
from typing import Final

from gymfleet_contracts.session import Split

from gymfleet_envs.tasks import split_of

_FIRST_PARTS: Final = (
    "Al", "Ber", "Cor", "Da", "El", "Fen", "Gre", "Hal", "Is", "Jo", "Ka", "Lin", "Mar", "Nor", "Or", "Pel", "Qui",
    "Ros", "Sil", "Tor", "Ul", "Ver", "Wil", "Yo", "Zan",
)  # fmt: skip
_MIDDLE_PARTS: Final = (
    "a", "be", "di", "e", "fo", "ga", "i", "ka", "la", "mi", "na", "o", "ra", "sa", "te", "u", "va", "ve", "wi", "zo",
)  # fmt: skip
_PERSON_ENDS: Final = ("n", "ra", "s", "lia", "ric", "na", "mund", "th", "vin", "ta")
_FAMILY_ENDS: Final = ("sen", "vik", "mont", "ley", "dahl", "ner", "well", "strom", "kin", "hart", "ov", "bright")
_TOWN_ENDS: Final = ("burg", "ford", "stad", "haven", "ton", "mouth", "wick", "field", "holm", "dorf")
_RIVER_ENDS: Final = ("ne", "se", "ver", "ra", "mel", "th")
_COMPANY_ENDS: Final = ("co", "tek", "nova", "lux", "gen", "mar")
_ADJECTIVES: Final = (
    "Amber", "Bitter", "Broken", "Distant", "Empty", "Frozen", "Gentle", "Golden", "Hidden", "Hollow", "Iron", "Last",
    "Long", "Lost", "Pale", "Quiet", "Restless", "Salt", "Second", "Silent", "Sleeping", "Stolen", "Wandering", "Wild",
)  # fmt: skip
_NOUNS: Final = (
    "Anchor", "Autumn", "Bridge", "Candle", "Garden", "Harbour", "Island", "Kingdom", "Lantern", "Letter", "Meadow",
    "Mirror", "Mountain", "Orchard", "Ocean", "Orphan", "Painter", "River", "Sailor", "Shadow", "Station", "Stranger",
    "Summer", "Tower", "Valley", "Winter",
)  # fmt: skip


class Names:
    """Draws names of one split, none of them twice."""

    def __init__(self, rng: random.Random, split: Split) -> None:
        self._rng = rng
        self._split = split
        self._taken: set[str] = set()

    def person(self) -> str:
        """Return a first name and a family name."""
        return self._drawn(lambda: f"{self._word(_PERSON_ENDS)} {self._word(_FAMILY_ENDS)}")

    def relative(self, name: str) -> str:
        """Return a person of the same family."""
        return self._drawn(lambda: f"{self._word(_PERSON_ENDS)} {name.rsplit(maxsplit=1)[-1]}")

    def town(self) -> str:
        """Return a town."""
        return self._drawn(lambda: self._word(_TOWN_ENDS))

    def river(self) -> str:
        """Return a river."""
        return self._drawn(lambda: self._word(_RIVER_ENDS))

    def company(self) -> str:
        """Return a company."""
        return self._drawn(lambda: self._word(_COMPANY_ENDS))

    def title(self) -> str:
        """Return the title of a work; with the place in it, there are millions of titles."""
        rng = self._rng
        return self._drawn(lambda: f"The {rng.choice(_ADJECTIVES)} {rng.choice(_NOUNS)} of {self._word(_RIVER_ENDS)}")

    def _word(self, ends: tuple[str, ...]) -> str:
        rng = self._rng
        middle = "".join(rng.choices(_MIDDLE_PARTS, k=rng.randint(1, 2)))
        return f"{rng.choice(_FIRST_PARTS)}{middle}{rng.choice(ends)}"

    def _drawn(self, draw: Callable[[], str]) -> str:
        while True:
            name = draw()
            if name not in self._taken and split_of(name) == self._split:
                self._taken.add(name)
                return name
