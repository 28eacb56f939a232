"""Generated customers of a small shop, from one cancellation to wishes that the policy forbids."""

import itertools
import json
import random
from collections.abc import Callable, Mapping
from typing import Final

from gymfleet_envs.tasks import GeneratedTasks
from gymfleet_envs.tau.database import Record
from gymfleet_envs.tau.people import address, manner, spoken
from gymfleet_envs.tau.task import Call, TauTask
from gymfleet_envs.tau.wishes import Wish, gold, told
from gymfleet_envs.tau_retail.catalogue import Shop
from gymfleet_envs.tau_retail.tools import REASONS

LEVELS: Final = ("cancel", "lookup", "change", "several", "policy")
_BECAUSE: Final = {REASONS[0]: "it is no longer needed", REASONS[1]: "it was ordered by mistake"}
_REFUSAL: Final = "I am sorry, I cannot do anything with an order of another user."


def generated_tasks() -> GeneratedTasks[TauTask]:
    """Return the tasks of all levels."""
    return GeneratedTasks("tau_retail", _generate, _fingerprint, levels=LEVELS)


def _fingerprint(task: TauTask) -> str:
    return f"{task.instruction} {task.actions} {task.outputs}"


def _generate(rng: random.Random, level: str) -> TauTask:
    shop = Shop(rng)
    wishes = _WISHES[level](shop, rng)
    name, user = shop.customer["name"], shop.customer
    if rng.random() < 0.5:
        known = f"zip code is {user['address']['zip']}"
        find = Call.of("find_user_id_by_name_zip", **name, zip=user["address"]["zip"])
    else:
        known = f"email is {user['email']}"
        find = Call.of("find_user_id_by_email", email=user["email"])
    about = (f"Your name is {spoken(name)} and your {known}.", manner(rng))
    return TauTask(
        shop.customer_id,
        told(about, wishes),
        gold((find,), wishes),
        tuple(output for wish in wishes for output in wish.outputs),
        shop.world(),
        " ".join(wish.refusal for wish in wishes if wish.refusal),
    )


def _cancel(_: Shop, rng: random.Random, order: Record) -> Wish:
    reason = rng.choice(REASONS)
    order_id = order["order_id"]
    return Wish(
        (f"You want to cancel order {order_id} because {_BECAUSE[reason]}.",),
        (Call.of("get_order_details", order_id=order_id),),
        (Call.of("cancel_pending_order", order_id=order_id, reason=reason),),
    )


def _replace(shop: Shop, rng: random.Random, order: Record) -> Wish:
    """Exchange an item of a delivered order, or modify one of a pending order."""
    places = [(item, choice) for item in order["items"] for choice in shop.alternatives(item)]
    if not places:
        return _give_back(shop, rng, order) if order["status"] == "delivered" else _cancel(shop, rng, order)
    item, (option, value, new_id) = rng.choice(places)
    delivered = order["status"] == "delivered"
    method = shop.method("credit_card", "paypal")
    order_id, what = order["order_id"], item["name"].lower()
    verb = "exchange" if delivered else "modify"
    return Wish(
        (
            f"You want to {verb} the {what} of order {order_id} to the same with {option} {value}.",
            f"You want to use {method} for the price difference.",
        ),
        (
            Call.of("get_order_details", order_id=order_id),
            Call.of("get_product_details", product_id=item["product_id"]),
        ),
        (
            Call.of(
                "exchange_delivered_order_items" if delivered else "modify_pending_order_items",
                order_id=order_id,
                item_ids=[item["item_id"]],
                new_item_ids=[new_id],
                payment_method_id=method,
            ),
        ),
    )


def _give_back(shop: Shop, rng: random.Random, order: Record) -> Wish:
    item = rng.choice(order["items"])
    method = rng.choice((order["payment_history"][0]["payment_method_id"], shop.method("gift_card")))
    order_id = order["order_id"]
    return Wish(
        (
            f"You want to return the {item['name'].lower()} of order {order_id}.",
            f"You want the refund to go to {method}.",
        ),
        (Call.of("get_order_details", order_id=order_id),),
        (
            Call.of(
                "return_delivered_order_items",
                order_id=order_id,
                item_ids=[item["item_id"]],
                payment_method_id=method,
            ),
        ),
    )


def _pay_otherwise(shop: Shop, _: random.Random, order: Record) -> Wish:
    before = order["payment_history"][0]["payment_method_id"]
    methods = shop.customer["payment_methods"]
    after = next(key for key in methods if key != before and methods[key]["source"] != "gift_card")
    order_id = order["order_id"]
    return Wish(
        (f"You want to pay for order {order_id} with {after} instead.",),
        (Call.of("get_order_details", order_id=order_id),),
        (Call.of("modify_pending_order_payment", order_id=order_id, payment_method_id=after),),
    )


def _send_elsewhere(_: Shop, rng: random.Random, order: Record) -> Wish:
    new, order_id = address(rng), order["order_id"]
    return Wish(
        (f"You want to change the address of order {order_id} to {_spoken(new)}.",),
        (Call.of("get_order_details", order_id=order_id),),
        (Call.of("modify_pending_order_address", order_id=order_id, **new),),
    )


def _move_house(shop: Shop, rng: random.Random) -> Wish:
    new = address(rng)
    return Wish(
        (f"You want to change your default address to {_spoken(new)}.",),
        (),
        (Call.of("modify_user_address", user_id=shop.customer_id, **new),),
    )


def _ask_for_a_sum(shop: Shop, rng: random.Random) -> Wish:
    """A question for a sum with cents that no record contains."""
    orders = [shop.orders[key] for key in shop.customer["orders"]]
    pairs = [
        (item["name"].lower(), one["order_id"], item["price"], other_item["name"].lower(), other["order_id"],
         other_item["price"])
        for one, other in itertools.combinations(orders, 2)
        for item in one["items"]
        for other_item in other["items"]
    ]  # fmt: skip
    records = json.dumps([*orders, *shop.products.values()])
    told = [pair for pair in pairs if str(round(pair[2] + pair[5], 2)) not in records]
    name, order_id, price, other_name, other_id, other_price = rng.choice(told)
    return Wish(
        (
            (
                f"You want to know how much you paid for the {name} of order {order_id} and the {other_name} of order "
                f"{other_id} together."
            ),
        ),
        (
            Call.of("get_order_details", order_id=order_id),
            Call.of("get_order_details", order_id=other_id),
            Call.of("calculate", expression=f"{price} + {other_price}"),
        ),
        outputs=(str(round(price + other_price, 2)),),
    )


def _ask_for_a_friend(shop: Shop, rng: random.Random) -> Wish:
    """A wish to cancel another user's order, which the tools would do."""
    friend = shop.users[shop.friend_id]
    order_id = friend["orders"][0]
    return Wish(
        (
            (
                f"You want to cancel order {order_id} of your friend {spoken(friend['name'])} because "
                f"{_BECAUSE[rng.choice(REASONS)]}."
            ),
        ),
        (Call.of("get_order_details", order_id=order_id),),
        refusal=_REFUSAL,
    )


def _change(shop: Shop, rng: random.Random) -> Wish:
    if rng.randrange(6) == 0:
        return _move_house(shop, rng)
    return _change_of(shop, rng, shop.orders[rng.choice(shop.customer["orders"])])


def _change_of(shop: Shop, rng: random.Random, order: Record) -> Wish:
    kinds = (
        (_replace, _give_back)
        if order["status"] == "delivered"
        else (_replace, _pay_otherwise, _send_elsewhere, _cancel)
    )
    return rng.choice(kinds)(shop, rng, order)


def _several(shop: Shop, rng: random.Random) -> list[Wish]:
    orders = rng.sample(shop.customer["orders"], rng.choice((2, 3)))
    wishes = [_change_of(shop, rng, shop.orders[key]) for key in orders]
    return [*wishes, _move_house(shop, rng)] if rng.randrange(4) == 0 else wishes


def _spoken(new: Record) -> str:
    return f"{new['address1']}, {new['address2']}, {new['city']}, {new['state']}, {new['country']}, {new['zip']}"


_WISHES: Final[Mapping[str, Callable[[Shop, random.Random], list[Wish]]]] = {
    "cancel": lambda shop, rng: [_cancel(shop, rng, rng.choice(shop.own_orders("pending")))],
    "lookup": lambda shop, rng: [_ask_for_a_sum(shop, rng)],
    "change": lambda shop, rng: [_change(shop, rng)],
    "several": _several,
    "policy": lambda shop, rng: rng.sample([_ask_for_a_friend(shop, rng), _change(shop, rng)], 2),
}
