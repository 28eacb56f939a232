"""The shop's tools as a model sees them: upstream's names and parameters, described in our words."""

from typing import Final

from gymfleet_contracts.session import Tool

from gymfleet_envs.tau.calls import strings, tool
from gymfleet_envs.tau.tools import RESPOND_TOOL
from gymfleet_envs.tau.tools import TOOLS as SHARED
from gymfleet_envs.tau_retail.tools import REASONS

_ORDER: Final = "The order's id with its '#', such as '#W0000000'."
_METHOD: Final = "The id of a payment method of the user, such as 'gift_card_0000000' or 'credit_card_0000000'."
_USER: Final = "The user's id, such as 'sara_doe_496'."
_ADDRESS: Final = {
    "address1": "The first line, such as '123 Main St'.",
    "address2": "The second line, such as 'Apt 1', or ''.",
    "city": "The city, such as 'San Francisco'.",
    "state": "The state, such as 'CA'.",
    "country": "The country, such as 'USA'.",
    "zip": "The zip code, such as '12345'.",
}
TOOLS: Final[tuple[Tool, ...]] = (
    RESPOND_TOOL,
    tool(
        "cancel_pending_order",
        "Cancel a pending order and refund it. The customer must have confirmed it.",
        order_id=_ORDER,
        reason={"type": "string", "enum": list(REASONS), "description": "Why, in one of these words."},
    ),
    tool(
        "exchange_delivered_order_items",
        "Exchange items of a delivered order for others of the same products. Once for an order, and the customer must "
        "have confirmed it.",
        order_id=_ORDER,
        item_ids=strings("The items to exchange, such as '1008292230'; an item may stand twice."),
        new_item_ids=strings("What each is exchanged for, in the same order."),
        payment_method_id=_METHOD,
    ),
    tool("find_user_id_by_email", "Find a user by the email address.", email="Such as 'something@example.com'."),
    tool(
        "find_user_id_by_name_zip",
        "Find a user by name and zip code, where the email address is not known.",
        first_name="The first name, such as 'John'.",
        last_name="The last name, such as 'Doe'.",
        zip="The zip code, such as '12345'.",
    ),
    tool("get_order_details", "Look up an order: its status, items, payments.", order_id=_ORDER),
    tool(
        "get_product_details",
        "Look up a product and all its items.",
        product_id="The product's id, such as '6086499569', which is not an item's.",
    ),
    tool("get_user_details", "Look up a user: address, payment methods, orders.", user_id=_USER),
    tool("list_all_product_types", "List the products of the shop with their ids."),
    tool(
        "modify_pending_order_address",
        "Change the address that a pending order is sent to. The customer must have confirmed it.",
        order_id=_ORDER,
        **_ADDRESS,
    ),
    tool(
        "modify_pending_order_items",
        "Replace items of a pending order by others of the same products. Once for an order, and the customer must "
        "have confirmed it.",
        order_id=_ORDER,
        item_ids=strings("The items to replace, such as '1008292230'; an item may stand twice."),
        new_item_ids=strings("What each is replaced by, in the same order."),
        payment_method_id=_METHOD,
    ),
    tool(
        "modify_pending_order_payment",
        "Change how a pending order is paid. The customer must have confirmed it.",
        order_id=_ORDER,
        payment_method_id=_METHOD,
    ),
    tool(
        "modify_user_address",
        "Change a user's default address. The customer must have confirmed it.",
        user_id=_USER,
        **_ADDRESS,
    ),
    tool(
        "return_delivered_order_items",
        "Return items of a delivered order. The customer must have confirmed it.",
        order_id=_ORDER,
        item_ids=strings("The items to return, such as '1008292230'; an item may stand twice."),
        payment_method_id=_METHOD,
    ),
    *SHARED,
)
