"""Rooms to generate: their furniture and the things in them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gymfleet_envs.alfworld.vocabulary import (
    BOTTLES,
    CUTLERY,
    DISHES,
    FOOD,
    GADGETS,
    ORNAMENTS,
    PANS,
    SHAKERS,
    TOILETRIES,
)


@dataclass(frozen=True, slots=True)
class Room:
    """`furniture` gives the lowest and the highest number of each kind of receptacle."""

    furniture: Mapping[str, tuple[int, int]]
    things: tuple[str, ...]


ROOMS: Final[Mapping[str, Room]] = {
    "kitchen": Room(
        {
            "Cabinet": (2, 10), "CoffeeMachine": (1, 1), "CounterTop": (1, 3), "DiningTable": (0, 2), "Drawer": (1, 6),
            "Fridge": (1, 1), "GarbageCan": (1, 1), "Microwave": (1, 1), "Shelf": (0, 3), "SideTable": (0, 1),
            "SinkBasin": (1, 1), "StoveBurner": (2, 4), "Toaster": (1, 1),
        },
        (*FOOD, *DISHES, *CUTLERY, *PANS, *SHAKERS, "DishSponge", "Glassbottle", "SoapBottle", "Vase", "WineBottle"),
    ),
    "living room": Room(
        {
            "ArmChair": (1, 2), "Cabinet": (0, 3), "CoffeeTable": (1, 2), "Desk": (0, 1), "DiningTable": (0, 1),
            "Drawer": (0, 6), "Dresser": (0, 1), "GarbageCan": (1, 1), "Ottoman": (0, 1), "Safe": (0, 1),
            "Shelf": (0, 5), "SideTable": (1, 3), "Sofa": (1, 1), "TVStand": (0, 1),
        },
        (*GADGETS, *ORNAMENTS, "Bowl", "Book", "Laptop", "Newspaper", "Pen", "Pencil", "Pillow", "Plate", "TissueBox"),
    ),
    "bedroom": Room(
        {
            "ArmChair": (0, 1), "Bed": (1, 1), "Cabinet": (0, 2), "Desk": (1, 2), "Drawer": (1, 8), "Dresser": (0, 1),
            "GarbageCan": (1, 1), "LaundryHamper": (0, 1), "Safe": (0, 1), "Shelf": (0, 6), "SideTable": (1, 2),
        },
        (*GADGETS, "Book", "Bowl", "Cloth", "Laptop", "Mug", "Pen", "Pencil", "Pillow", "Statue", "TissueBox", "Vase"),
    ),
    "bathroom": Room(
        {
            "BathtubBasin": (0, 1), "Cabinet": (1, 5), "Cart": (0, 1), "CounterTop": (1, 1), "Drawer": (0, 4),
            "Dresser": (0, 1), "GarbageCan": (1, 1), "HandTowelHolder": (1, 2), "Shelf": (0, 2), "SideTable": (0, 1),
            "SinkBasin": (1, 2), "Toilet": (1, 1), "ToiletPaperHanger": (1, 1), "TowelHolder": (1, 1),
        },
        (*TOILETRIES, "Cloth", "DishSponge", "HandTowel", *BOTTLES[1:3], "Towel"),
    ),
}  # fmt: skip
ROOM_OF_TASK: Final[Mapping[str, tuple[str, ...]]] = {
    "pick_and_place_simple": tuple(ROOMS),
    "look_at_obj_in_light": ("living room", "bedroom"),
    "pick_clean_then_place_in_recep": ("kitchen", "bathroom"),
    "pick_heat_then_place_in_recep": ("kitchen",),
    "pick_cool_then_place_in_recep": ("kitchen",),
    "pick_two_obj_and_place": tuple(ROOMS),
}
