"""A small shop: products with variants, customers, and their orders."""

import random
from typing import Any, Final

from gymfleet_envs.tau.database import Record, World, copied
from gymfleet_envs.tau.people import address, credit_card, digits, email_of, money, names, user_id_of

_PRODUCTS: Final = {
    "Kettle": {"capacity": ("1L", "2L"), "color": ("red", "white", "black")},
    "Backpack": {"size": ("small", "large"), "color": ("green", "grey", "navy")},
    "Desk Lamp": {"brightness": ("low", "high"), "power source": ("battery", "usb", "outlet")},
    "Hiking Boots": {"size": ("8", "9", "10"), "material": ("leather", "synthetic")},
    "Puzzle": {"pieces": ("500", "1000", "2000"), "theme": ("animals", "art")},
    "Keyboard": {"switch": ("linear", "tactile", "clicky"), "backlight": ("none", "white")},
    "Yoga Mat": {"thickness": ("4mm", "6mm"), "color": ("blue", "pink", "purple")},
    "Water Bottle": {"capacity": ("500ml", "750ml"), "material": ("glass", "steel", "plastic")},
    "Tent": {"persons": ("2", "4", "6"), "color": ("orange", "olive")},
    "Speaker": {"battery": ("10 hours", "20 hours"), "color": ("silver", "black", "teal")},
}
_NUM_PRODUCTS: Final = 5
_STATUSES: Final = ("pending", "delivered", "pending", "delivered")
"""Statuses of the customer's orders."""


class Shop:
    """The records of one task; `customer` is the user who asks, `friend` another one."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.products: dict[str, Record] = {}
        self.users: dict[str, Record] = {}
        self.orders: dict[str, Record] = {}
        for name in rng.sample(sorted(_PRODUCTS), _NUM_PRODUCTS):
            self._add_product(name)
        ids = [self._add_user(name) for name in names(rng, 3)]
        self.customer_id, self.friend_id = ids[0], ids[1]
        for user_id in ids:
            statuses = rng.sample(_STATUSES, len(_STATUSES)) if user_id == self.customer_id else ["pending"]
            for status in statuses:
                self._add_order(user_id, status)
        for table in (self.users, self.orders):
            keys = rng.sample(sorted(table), len(table))
            ordered = {key: table[key] for key in keys}
            table.clear()
            table.update(ordered)

    @property
    def customer(self) -> Record:
        """The user who asks."""
        return self.users[self.customer_id]

    def world(self) -> World:
        """Return the records, as they are now."""
        return World({"products": self.products, "users": self.users, "orders": self.orders})

    def own_orders(self, status: str) -> list[Record]:
        """Return the customer's orders of a status, in the order in which the profile lists them."""
        return [order for key in self.customer["orders"] if (order := self.orders[key])["status"] == status]

    def method(self, *sources: str) -> str:
        """Return the id of a payment method of the customer."""
        methods = self.customer["payment_methods"]
        fit: list[str] = [key for key in sorted(methods) if methods[key]["source"] in sources]
        return self._rng.choice(fit)

    def alternatives(self, item: Record) -> list[tuple[str, str, str]]:
        """Return the available items that differ from `item` in one option: option, value and item id."""
        return [
            (name, variant["options"][name], item_id)
            for item_id, variant in self.products[item["product_id"]]["variants"].items()
            for name in variant["options"]
            if variant["available"]
            and variant["options"][name] != item["options"][name]
            and all(variant["options"][other] == value for other, value in item["options"].items() if other != name)
        ]

    def _add_product(self, name: str) -> None:
        rng = self._rng
        product_id = digits(rng, 10)
        (one, ones), (two, twos) = _PRODUCTS[name].items()
        variants: dict[str, Any] = {}
        grid = [(first, second) for first in ones for second in twos]
        for first, second in rng.sample(grid, len(grid)):
            item_id = digits(rng, 10)
            variants[item_id] = {
                "item_id": item_id,
                "options": {one: first, two: second},
                "available": rng.random() < 0.8,
                "price": money(rng, 100, 3000),
            }
        self.products[product_id] = {"name": name, "product_id": product_id, "variants": variants}

    def _add_user(self, name: Record) -> str:
        rng = self._rng
        user_id = user_id_of(rng, name)
        methods = [
            credit_card(rng),
            {"source": "paypal", "id": f"paypal_{digits(rng, 7)}"},
            {"source": "gift_card", "balance": rng.randrange(20, 100), "id": f"gift_card_{digits(rng, 7)}"},
        ]
        self.users[user_id] = {
            "name": name,
            "address": address(rng),
            "email": email_of(rng, name),
            "payment_methods": {one["id"]: one for one in rng.sample(methods, len(methods))},
            "orders": [],
        }
        return user_id

    def _add_order(self, user_id: str, status: str) -> None:
        rng, user = self._rng, self.users[user_id]
        order_id = f"#W{digits(rng, 7)}"
        items = []
        for product_id in rng.sample(sorted(self.products), 2):
            product = self.products[product_id]
            variant = product["variants"][rng.choice(sorted(product["variants"]))]
            items.append(
                {
                    "name": product["name"],
                    "product_id": product_id,
                    "item_id": variant["item_id"],
                    "price": variant["price"],
                    "options": copied(variant["options"]),
                }
            )
        paid = [key for key, one in user["payment_methods"].items() if one["source"] != "gift_card"]
        total = round(sum(item["price"] for item in items), 2)
        shipped = {"tracking_id": [digits(rng, 12)], "item_ids": [item["item_id"] for item in items]}
        self.orders[order_id] = {
            "order_id": order_id,
            "user_id": user_id,
            "address": copied(user["address"]),
            "items": items,
            "fulfillments": [shipped] if status == "delivered" else [],
            "status": status,
            "payment_history": [
                {"transaction_type": "payment", "amount": total, "payment_method_id": rng.choice(paid)}
            ],
        }
        user["orders"].append(order_id)
