"""The contents of the households: AI2-THOR's type names as ALFWorld uses them, and which of them go together."""

from collections.abc import Mapping
from typing import Final

FOOD: Final = ("Apple", "Bread", "Egg", "Lettuce", "Potato", "Tomato")
DISHES: Final = ("Bowl", "Cup", "Mug", "Plate")
CUTLERY: Final = ("ButterKnife", "Fork", "Knife", "Ladle", "Spatula", "Spoon")
PANS: Final = ("Kettle", "Pan", "Pot")
BOTTLES: Final = ("Glassbottle", "SoapBottle", "SprayBottle", "WineBottle")
SHAKERS: Final = ("PepperShaker", "SaltShaker")
TOILETRIES: Final = ("Candle", "SoapBar", "TissueBox", "ToiletPaper")
CLOTHS: Final = ("Cloth", "DishSponge", "HandTowel", "Towel")
GADGETS: Final = ("AlarmClock", "CD", "CellPhone", "CreditCard", "KeyChain", "RemoteControl", "Watch")
DESKWARE: Final = ("Book", "Laptop", "Newspaper", "Pen", "Pencil")
ORNAMENTS: Final = ("Box", "Statue", "Vase")
SOFT: Final = ("Pillow",)
LAMPS: Final = ("DeskLamp", "FloorLamp")

HEATABLE: Final = frozenset({"Apple", "Bread", "Cup", "Egg", "Mug", "Plate", "Potato", "Tomato"})
COOLABLE: Final = frozenset((*FOOD, *DISHES, "Pan", "Pot", "WineBottle"))
CLEANABLE: Final = frozenset(
    {*FOOD, *DISHES, *CUTLERY, *PANS, "Cloth", "DishSponge", "SoapBar"} - {"Bread"},
)
SLICEABLE: Final = frozenset({"Apple", "Bread", "Lettuce", "Potato", "Tomato"})
OPENABLE: Final = frozenset({"Cabinet", "Drawer", "Fridge", "LaundryHamper", "Microwave", "Safe"})

SINK: Final = "SinkBasin"
MICROWAVE: Final = "Microwave"
FRIDGE: Final = "Fridge"

_TABLE: Final = (
    *FOOD, *DISHES, *CUTLERY, *PANS, *BOTTLES, *SHAKERS, *TOILETRIES, *GADGETS, *DESKWARE, *ORNAMENTS, *CLOTHS,
    "DeskLamp",
)  # fmt: skip
_SEAT: Final = (*GADGETS, *DESKWARE, *SOFT, "Box", "Cloth")
_STORE: Final = (*DISHES, *PANS, *BOTTLES, *SHAKERS, *TOILETRIES, *CLOTHS, "Box", "Book", "CD", "Vase", "Watch")
_SMALL: Final = (*CUTLERY, *SHAKERS, *TOILETRIES, *GADGETS, *CLOTHS, "Book", "Newspaper", "Pen", "Pencil", "SoapBottle",
                 "SprayBottle")  # fmt: skip
_WET: Final = (*FOOD, *DISHES, *CUTLERY, *PANS, *CLOTHS, "SoapBar")

HOLDS: Final[Mapping[str, tuple[str, ...]]] = {
    "ArmChair": _SEAT,
    "BathtubBasin": (*CLOTHS, "SoapBar"),
    "Bed": (*_SEAT, "Statue"),
    "Cabinet": _STORE,
    "Cart": (*TOILETRIES, *CLOTHS, *BOTTLES),
    "CoffeeMachine": ("Mug",),
    "CoffeeTable": _TABLE,
    "CounterTop": _TABLE,
    "Desk": _TABLE,
    "DiningTable": _TABLE,
    "Drawer": _SMALL,
    "Dresser": (*_TABLE, *SOFT),
    "Fridge": (*FOOD, *DISHES, *PANS, "WineBottle", "Glassbottle"),
    "GarbageCan": (*FOOD, *TOILETRIES, *BOTTLES, "CD", "DishSponge", "HandTowel", "Newspaper", "Pen", "Pencil"),
    "HandTowelHolder": ("HandTowel",),
    "LaundryHamper": ("Cloth", "HandTowel", "Towel"),
    "Microwave": tuple(sorted({*HEATABLE, *DISHES})),
    "Ottoman": _SEAT,
    "Safe": (*GADGETS, "Statue", "Vase", "Book"),
    "Shelf": (*DISHES, *PANS, *BOTTLES, *SHAKERS, *TOILETRIES, *GADGETS, *DESKWARE, *ORNAMENTS, *CLOTHS),
    "SideTable": _TABLE,
    "SinkBasin": _WET,
    "Sofa": (*_SEAT, "Statue"),
    "StoveBurner": PANS,
    "TVStand": (*GADGETS, *DESKWARE, *ORNAMENTS),
    "Toaster": ("Bread",),
    "Toilet": (*TOILETRIES, *CLOTHS, "SoapBottle", "SprayBottle"),
    "ToiletPaperHanger": ("ToiletPaper",),
    "TowelHolder": ("Towel",),
}
"""The kinds of things that may be put into or onto each kind of receptacle."""

TASK_TYPES: Final = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
