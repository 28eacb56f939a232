"""The shop's tools: replies, errors and their order are upstream's."""

import json
from collections.abc import Mapping
from typing import Final

from gymfleet_envs.tau.database import Overlay, Record, copied
from gymfleet_envs.tau.tools import FUNCTIONS as SHARED
from gymfleet_envs.tau.tools import ToolFunction, upstream

REASONS: Final = ("no longer needed", "ordered by mistake")


@upstream
def cancel_pending_order(data: Overlay, order_id: str, reason: str) -> str:
    """Cancel an order, and refund gift cards at once."""
    if not data.has("orders", order_id):
        return "Error: order not found"
    if data.read("orders", order_id)["status"] != "pending":
        return "Error: non-pending order cannot be cancelled"
    if reason not in REASONS:
        return "Error: invalid reason"
    order = data.change("orders", order_id)
    refunds = []
    for payment in order["payment_history"]:
        payment_id = payment["payment_method_id"]
        refunds.append({"transaction_type": "refund", "amount": payment["amount"], "payment_method_id": payment_id})
        if "gift_card" in payment_id:
            _add_to_card(data, order["user_id"], payment_id, payment["amount"])
    order["status"] = "cancelled"
    order["cancel_reason"] = reason
    order["payment_history"].extend(refunds)
    return json.dumps(order)


@upstream
def exchange_delivered_order_items(
    data: Overlay, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
) -> str:
    """Record which items are to be exchanged for which."""
    if not data.has("orders", order_id):
        return "Error: order not found"
    order = data.read("orders", order_id)
    if order["status"] != "delivered":
        return "Error: non-delivered order cannot be exchanged"
    difference = _difference(data, order, item_ids, new_item_ids)
    if isinstance(difference, str):
        return difference
    difference = round(difference, 2)
    methods = data.read("users", order["user_id"])["payment_methods"]
    if payment_method_id not in methods:
        return "Error: payment method not found"
    if _is_short(methods[payment_method_id], difference):
        return "Error: insufficient gift card balance to pay for the price difference"
    order = data.change("orders", order_id)
    order["status"] = "exchange requested"
    order["exchange_items"] = sorted(item_ids)
    order["exchange_new_items"] = sorted(new_item_ids)
    order["exchange_payment_method_id"] = payment_method_id
    order["exchange_price_difference"] = difference
    return json.dumps(order)


@upstream
def modify_pending_order_items(
    data: Overlay, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
) -> str:
    """Replace items at once, and charge or refund the difference."""
    if not data.has("orders", order_id):
        return "Error: order not found"
    order = data.read("orders", order_id)
    if order["status"] != "pending":
        return "Error: non-pending order cannot be modified"
    difference = _difference(data, order, item_ids, new_item_ids)
    if isinstance(difference, str):
        return difference
    methods = data.read("users", order["user_id"])["payment_methods"]
    if payment_method_id not in methods:
        return "Error: payment method not found"
    if _is_short(methods[payment_method_id], difference):
        return "Error: insufficient gift card balance to pay for the new item"
    order = data.change("orders", order_id)
    order["payment_history"].append(
        {
            "transaction_type": "payment" if difference > 0 else "refund",
            "amount": abs(difference),
            "payment_method_id": payment_method_id,
        }
    )
    if methods[payment_method_id]["source"] == "gift_card":
        _add_to_card(data, order["user_id"], payment_method_id, -difference)
    for item_id, new_item_id in zip(item_ids, new_item_ids, strict=False):
        item = _item(order, item_id)
        variant = data.read("products", item["product_id"])["variants"][new_item_id]
        item["item_id"] = new_item_id
        item["price"] = variant["price"]
        item["options"] = copied(variant["options"])
    order["status"] = "pending (item modified)"
    return json.dumps(order)


@upstream
def modify_pending_order_payment(data: Overlay, order_id: str, payment_method_id: str) -> str:  # noqa: PLR0911 - an error each
    """Pay with another method, and refund the first."""
    if not data.has("orders", order_id):
        return "Error: order not found"
    order = data.read("orders", order_id)
    if order["status"] != "pending":
        return "Error: non-pending order cannot be modified"
    methods = data.read("users", order["user_id"])["payment_methods"]
    if payment_method_id not in methods:
        return "Error: payment method not found"
    history = order["payment_history"]
    if len(history) > 1 or history[0]["transaction_type"] != "payment":
        return "Error: there should be exactly one payment for a pending order"
    before, amount = history[0]["payment_method_id"], history[0]["amount"]
    if before == payment_method_id:
        return "Error: the new payment method should be different from the current one"
    if _is_short(methods[payment_method_id], amount):
        return "Error: insufficient gift card balance to pay for the order"
    order = data.change("orders", order_id)
    order["payment_history"] += [
        {"transaction_type": "payment", "amount": amount, "payment_method_id": payment_method_id},
        {"transaction_type": "refund", "amount": amount, "payment_method_id": before},
    ]
    if methods[payment_method_id]["source"] == "gift_card":
        _add_to_card(data, order["user_id"], payment_method_id, -amount)
    if "gift_card" in before:
        _add_to_card(data, order["user_id"], before, amount)
    return json.dumps(order)


@upstream
def modify_pending_order_address(
    data: Overlay,
    order_id: str,
    address1: str,
    address2: str,
    city: str,
    state: str,
    country: str,
    zip: str,  # noqa: A002 - the wire's name
) -> str:
    """Send an order to another address."""
    if not data.has("orders", order_id):
        return "Error: order not found"
    if data.read("orders", order_id)["status"] != "pending":
        return "Error: non-pending order cannot be modified"
    order = data.change("orders", order_id)
    order["address"] = _address(address1, address2, city, state, country, zip)
    return json.dumps(order)


@upstream
def modify_user_address(
    data: Overlay,
    user_id: str,
    address1: str,
    address2: str,
    city: str,
    state: str,
    country: str,
    zip: str,  # noqa: A002 - the wire's name
) -> str:
    """Change the default address; orders keep theirs."""
    if not data.has("users", user_id):
        return "Error: user not found"
    user = data.change("users", user_id)
    user["address"] = _address(address1, address2, city, state, country, zip)
    return json.dumps(user)


@upstream
def return_delivered_order_items(data: Overlay, order_id: str, item_ids: list[str], payment_method_id: str) -> str:
    """Record which items come back, and how they are refunded."""
    if not data.has("orders", order_id):
        return "Error: order not found"
    order = data.read("orders", order_id)
    if order["status"] != "delivered":
        return "Error: non-delivered order cannot be returned"
    if payment_method_id not in data.read("users", order["user_id"])["payment_methods"]:
        return "Error: payment method not found"
    original = order["payment_history"][0]["payment_method_id"]
    if "gift_card" not in payment_method_id and payment_method_id != original:
        return "Error: payment method should be either the original payment method or a gift card"
    if _surplus(order, item_ids) is not None:
        return "Error: some item not found"
    order = data.change("orders", order_id)
    order["status"] = "return requested"
    order["return_items"] = sorted(item_ids)
    order["return_payment_method_id"] = payment_method_id
    return json.dumps(order)


@upstream
def find_user_id_by_email(data: Overlay, email: str) -> str:
    """Return the first user with the address, in whatever case."""
    for user_id, user in data.items("users"):
        if user["email"].lower() == email.lower():
            return user_id
    return "Error: user not found"


@upstream
def find_user_id_by_name_zip(data: Overlay, first_name: str, last_name: str, zip: str) -> str:  # noqa: A002
    """Return the first user of that name, in whatever case, whose default address has the zip code."""
    for user_id, user in data.items("users"):
        if (
            user["name"]["first_name"].lower() == first_name.lower()
            and user["name"]["last_name"].lower() == last_name.lower()
            and user["address"]["zip"] == zip
        ):
            return user_id
    return "Error: user not found"


@upstream
def get_order_details(data: Overlay, order_id: str) -> str:
    """Return the record."""
    return json.dumps(data.read("orders", order_id)) if data.has("orders", order_id) else "Error: order not found"


@upstream
def get_product_details(data: Overlay, product_id: str) -> str:
    """Return the record with all its variants."""
    if data.has("products", product_id):
        return json.dumps(data.read("products", product_id))
    return "Error: product not found"


@upstream
def get_user_details(data: Overlay, user_id: str) -> str:
    """Return the record."""
    return json.dumps(data.read("users", user_id)) if data.has("users", user_id) else "Error: user not found"


@upstream
def list_all_product_types(data: Overlay) -> str:
    """Return the products' names and ids, sorted by name."""
    names = {product["name"]: product["product_id"] for product in data.records("products")}
    return json.dumps(dict(sorted(names.items())))


def _difference(data: Overlay, order: Record, item_ids: list[str], new_item_ids: list[str]) -> float | str:
    """Return how much more the new items cost, or the error."""
    if (missing := _surplus(order, item_ids)) is not None:
        return f"Error: {missing} not found"
    if len(item_ids) != len(new_item_ids):
        return "Error: the number of items to be exchanged should match"
    difference: float = 0
    for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
        item = _item(order, item_id)
        variants = data.read("products", item["product_id"])["variants"]
        if not (new_item_id in variants and variants[new_item_id]["available"]):
            return f"Error: new item {new_item_id} not found or available"
        difference += variants[new_item_id]["price"] - item["price"]
    return difference


def _item(order: Record, item_id: str) -> Record:
    """Return the first item of that id. Raises IndexError, as upstream, if it was replaced before."""
    found: list[Record] = [item for item in order["items"] if item["item_id"] == item_id]
    return found[0]


def _surplus(order: Record, item_ids: list[str]) -> str | None:
    """Return the first item that `item_ids` names more often than the order has it."""
    there = [item["item_id"] for item in order["items"]]
    return next((one for one in item_ids if item_ids.count(one) > there.count(one)), None)


def _is_short(method: Record, price: float) -> bool:
    return bool(method["source"] == "gift_card" and method["balance"] < price)


def _add_to_card(data: Overlay, user_id: str, payment_id: str, amount: float) -> None:
    card = data.change("users", user_id)["payment_methods"][payment_id]
    card["balance"] = round(card["balance"] + amount, 2)


def _address(address1: str, address2: str, city: str, state: str, country: str, zip_code: str) -> Record:
    fields = {"address1": address1, "address2": address2, "city": city, "state": state, "country": country}
    address: Record = copied(fields | {"zip": zip_code})
    return address


FUNCTIONS: Final[Mapping[str, ToolFunction]] = {
    function.__name__: function
    for function in (
        cancel_pending_order, exchange_delivered_order_items, find_user_id_by_email, find_user_id_by_name_zip,
        get_order_details, get_product_details, get_user_details, list_all_product_types,
        modify_pending_order_address, modify_pending_order_items, modify_pending_order_payment,
        modify_user_address, return_delivered_order_items,
    )
} | dict(SHARED)  # fmt: skip
