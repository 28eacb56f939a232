"""tau-bench's tools: replies, the order of errors, what they change; and the records as overlays."""

import json
import random
from typing import Any

import pytest
from gymfleet_envs.tau.arithmetic import calculate
from gymfleet_envs.tau.calls import NoCall, read_call
from gymfleet_envs.tau.database import Overlay, World, canonical
from gymfleet_envs.tau.task import Call
from gymfleet_envs.tau.tools import execute
from gymfleet_envs.tau_airline.environment import TauAirline
from gymfleet_envs.tau_airline.tools import FUNCTIONS as AIRLINE
from gymfleet_envs.tau_retail.environment import TauRetail
from gymfleet_envs.tau_retail.tools import FUNCTIONS as RETAIL

from tests.fixtures.tau import airline, materialised, shop, upstream_hash

BOOKING = {
    "user_id": "ada", "origin": "SFO", "destination": "JFK", "flight_type": "one_way", "cabin": "economy",
    "flights": [{"flight_number": "HAT001", "date": "2024-05-20"}],
    "passengers": [{"first_name": "Ada", "last_name": "Abel", "dob": "1990-01-02"}],
    "payment_methods": [{"payment_id": "gift_card_1", "amount": 100}, {"payment_id": "certificate_1", "amount": 50}],
    "total_baggages": 1, "nonfree_baggages": 1, "insurance": "no",
}  # fmt: skip
"""100 for the flight and 50 for the bag."""
ADDRESS = {"address1": "2 Elm Court", "address2": "", "city": "Reno", "state": "NV", "country": "USA", "zip": "12346"}


def call(world: World, name: str, /, **arguments: Any) -> tuple[Any, Overlay]:
    """The reply, read where it is JSON, and the records afterwards."""
    data = Overlay(world)
    reply = execute(AIRLINE if "flights" in world.tables else RETAIL, data, Call.of(name, **arguments))
    return (json.loads(reply) if reply[:1] in {"{", "["} else reply), data


def booking(**changed: Any) -> Any:
    return call(airline(), "book_reservation", **(BOOKING | changed))[0]


def test_a_booking_takes_its_price_from_the_day_and_leaves_the_seats() -> None:
    world = airline()
    reply, data = call(world, "book_reservation", **BOOKING)

    assert list(reply) == [
        "reservation_id", "user_id", "origin", "destination", "flight_type", "cabin", "flights", "passengers",
        "payment_history", "created_at", "total_baggages", "nonfree_baggages", "insurance",
    ]  # fmt: skip
    assert (reply["reservation_id"], reply["created_at"]) == ("HATHAT", "2024-05-15T15:00:00")
    assert reply["flights"] == [BOOKING["flights"][0] | {"price": 100, "origin": "SFO", "destination": "JFK"}]  # type: ignore[index]
    assert reply["payment_history"] == BOOKING["payment_methods"]
    user = data.read("users", "ada")
    assert user["payment_methods"]["gift_card_1"]["amount"] == 50
    assert "certificate_1" not in user["payment_methods"]
    assert user["reservations"] == ["ABC123", "HATHAT"]
    assert data.read("flights", "HAT001") is world.tables["flights"]["HAT001"]
    assert world.tables["users"]["ada"]["reservations"] == ["ABC123"], "the base stays as it is"


def test_reservations_are_called_by_three_names() -> None:
    data = Overlay(airline())
    pay = BOOKING | {"payment_methods": [{"payment_id": "credit_card_1", "amount": 150}]}

    ids = [json.loads(execute(AIRLINE, data, Call.of("book_reservation", **pay)))["reservation_id"] for _ in range(4)]

    assert ids == ["HATHAT", "HATHAU", "HATHAV", "HATHAV"]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"user_id": "bo", "flights": [{"flight_number": "X", "date": "x"}]}, "user not found"),
        ({"flights": [{"flight_number": "X", "date": "x"}], "payment_methods": []}, "flight X not found"),
        ({"flights": [{"flight_number": "HAT001", "date": "x"}]}, "flight HAT001 not found on date x"),
        (
            {"flights": [{"flight_number": "HAT001", "date": "2024-05-14"}]},
            "flight HAT001 not available on date 2024-05-14",
        ),
        (
            {"flights": [{"flight_number": "HAT003", "date": "2024-05-20"}], "passengers": [{}, {}]},
            "not enough seats on flight HAT003",
        ),
        (
            {"payment_methods": [{"payment_id": "none", "amount": 1}, {"payment_id": "gift_card_1", "amount": 999}]},
            "payment method none not found",
        ),
        (
            {"payment_methods": [{"payment_id": "gift_card_1", "amount": 151}]},
            "not enough balance in payment method gift_card_1",
        ),
        (
            {"insurance": "yes"},
            "payment amount does not add up, total price is 180, but paid 150",
        ),
        ({"cabin": "first"}, "'first'"),
        ({"flights": [{"date": "2024-05-20"}]}, "'flight_number'"),
    ],
)
def test_errors_of_a_booking_come_in_upstreams_order(changed: dict[str, Any], told: str) -> None:
    assert booking(**changed) == f"Error: {told}"


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("get_reservation_details", {"reservation_id": "X"}, "Error: user not found"),
        ("cancel_reservation", {"reservation_id": "X"}, "Error: reservation not found"),
        ("get_user_details", {}, "Error: GetUserDetails.invoke() missing 1 required positional argument: 'user_id'"),
        (
            "get_user_details",
            {"user_id": "ada", "more": 1},
            "Error: GetUserDetails.invoke() got an unexpected keyword argument 'more'",
        ),
        ("get_user_details", {"user_id": ["ada"]}, "Error: unhashable type: 'list'"),
        ("fly", {}, "Unknown action fly"),
        (
            "update_reservation_passengers",
            {"reservation_id": "ABC123", "passengers": [{}]},
            "Error: number of passengers does not match",
        ),
        (
            "update_reservation_baggages",
            {"reservation_id": "ABC123", "total_baggages": 9, "nonfree_baggages": 1, "payment_id": "none"},
            "Error: payment method not found",
        ),
        (
            "update_reservation_baggages",
            {"reservation_id": "ABC123", "total_baggages": 9, "nonfree_baggages": 1, "payment_id": "certificate_1"},
            "Error: certificate cannot be used to update reservation",
        ),
        (
            "update_reservation_baggages",
            {"reservation_id": "ABC123", "total_baggages": 9, "nonfree_baggages": 4, "payment_id": "gift_card_1"},
            "Error: gift card balance is not enough",
        ),
        ("think", {"thought": "hm"}, ""),
        ("transfer_to_human_agents", {"summary": "s"}, "Transfer successful"),
        ("send_certificate", {"user_id": "bo", "amount": 5}, "Error: user not found"),
        (
            "send_certificate",
            {"user_id": "ada", "amount": 5},
            "Certificate certificate_3221322 added to user ada with amount 5.",
        ),
    ],
)
def test_replies_of_the_airline(name: str, arguments: dict[str, Any], told: str) -> None:
    assert call(airline(), name, **arguments)[0] == told


def test_a_cancellation_pays_everything_back() -> None:
    reply, _ = call(airline(), "cancel_reservation", reservation_id="ABC123")

    paid = {"payment_id": "credit_card_1", "amount": 180}
    assert reply["payment_history"] == [paid, paid | {"amount": -180}]
    assert (list(reply)[-1], reply["status"]) == ("status", "cancelled")


def test_cancelling_over_and_over_is_bounded() -> None:
    data, cancel = Overlay(airline()), Call.of("cancel_reservation", reservation_id="ABC123")
    replies = [execute(AIRLINE, data, cancel) for _ in range(12)]

    assert len(json.loads(replies[9])["payment_history"]) == 1024
    assert set(replies[10:]) == {"Error: the reservation has more than 1000 payments"}


def test_a_flight_that_stays_keeps_its_price_and_the_difference_is_charged() -> None:
    kept = [{"flight_number": "HAT001", "date": "2024-05-20"}]
    pay = {"reservation_id": "ABC123", "payment_id": "gift_card_1"}
    same, _ = call(airline(), "update_reservation_flights", cabin="economy", flights=kept, **pay)
    moved, data = call(
        airline(), "update_reservation_flights", cabin="economy", flights=[kept[0] | {"date": "2024-05-21"}], **pay
    )
    short = call(airline(), "update_reservation_flights", cabin="business", flights=kept, **pay)[0]

    assert (same["flights"][0]["price"], len(same["payment_history"])) == (90, 1), "nothing to pay: nothing is noted"
    assert moved["payment_history"][1] == {"payment_id": "gift_card_1", "amount": 20}, "2 x (100 - 90)"
    assert data.read("users", "ada")["payment_methods"]["gift_card_1"]["amount"] == 130
    assert short == "Error: gift card balance is not enough", "2 x (300 - 90) = 420"
    assert moved["cabin"] == "economy"


def test_bags_that_are_not_free_cost_50_each() -> None:
    reply, data = call(
        airline(), "update_reservation_baggages", reservation_id="ABC123", total_baggages=4, nonfree_baggages=2,
        payment_id="gift_card_1",
    )  # fmt: skip

    assert (reply["total_baggages"], reply["nonfree_baggages"], reply["payment_history"][1]["amount"]) == (4, 2, 100)
    assert data.read("users", "ada")["payment_methods"]["gift_card_1"]["amount"] == 50


def test_flights_are_found_for_a_day() -> None:
    route = {"origin": "SFO", "destination": "JFK"}
    direct, _ = call(airline(), "search_direct_flight", date="2024-05-20", **route)
    none, _ = call(airline(), "search_direct_flight", date="2024-05-14", **route)
    pairs, _ = call(airline(), "search_onestop_flight", date="2024-05-20", **route)

    assert none == []
    assert [one["flight_number"] for one in direct] == ["HAT001"]
    assert list(direct[0])[-3:] == ["status", "available_seats", "prices"]
    assert "date" not in direct[0]
    assert [[one["flight_number"], two["flight_number"], two["date"]] for one, two in pairs] == [
        ["HAT002", "HAT003", "2024-05-20"]
    ], "HAT004 leaves before HAT002 has arrived"


def test_a_second_flight_is_that_of_the_next_day_with_prices_of_the_first() -> None:
    world = airline()
    flights = world.tables["flights"]
    flights["HAT002"]["scheduled_arrival_time_est"] = "00:30:00+1"
    next_day = {"status": "available", "available_seats": {}, "prices": {"economy": 777}}
    flights["HAT003"]["dates"] = flights["HAT003"]["dates"] | {"2024-05-21": next_day}

    pairs, _ = call(world, "search_onestop_flight", origin="SFO", destination="JFK", date="2024-05-20")

    shown = {two["flight_number"]: two for _, two in pairs}
    assert (shown["HAT003"]["date"], shown["HAT003"]["prices"]["economy"]) == ("2024-05-21", 100)


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("cancel_pending_order", {"order_id": "W1", "reason": "x"}, "Error: order not found"),
        ("cancel_pending_order", {"order_id": "#W2", "reason": "x"}, "Error: non-pending order cannot be cancelled"),
        ("cancel_pending_order", {"order_id": "#W1", "reason": "x"}, "Error: invalid reason"),
        ("find_user_id_by_email", {"email": "ADA.Abel@example.com"}, "ada"),
        ("find_user_id_by_email", {"email": "x"}, "Error: user not found"),
        ("find_user_id_by_name_zip", {"first_name": "ADA", "last_name": "abel", "zip": "12345"}, "ada"),
        ("find_user_id_by_name_zip", {"first_name": "Ada", "last_name": "Abel", "zip": "1"}, "Error: user not found"),
        ("get_order_details", {"order_id": "W1"}, "Error: order not found"),
        ("get_product_details", {"product_id": "1"}, "Error: product not found"),
        ("get_user_details", {"user_id": "bo"}, "Error: user not found"),
        ("modify_user_address", {"user_id": "bo", **ADDRESS}, "Error: user not found"),
        ("modify_pending_order_address", {"order_id": "#W2", **ADDRESS}, "Error: non-pending order cannot be modified"),
        (
            "modify_pending_order_payment",
            {"order_id": "#W1", "payment_method_id": "none"},
            "Error: payment method not found",
        ),
        (
            "modify_pending_order_payment",
            {"order_id": "#W1", "payment_method_id": "gift_card_1"},
            "Error: the new payment method should be different from the current one",
        ),
        (
            "return_delivered_order_items",
            {"order_id": "#W1", "item_ids": ["1"], "payment_method_id": "gift_card_1"},
            "Error: non-delivered order cannot be returned",
        ),
        (
            "return_delivered_order_items",
            {"order_id": "#W2", "item_ids": ["9"], "payment_method_id": "none"},
            "Error: payment method not found",
        ),
        (
            "return_delivered_order_items",
            {"order_id": "#W2", "item_ids": ["9"], "payment_method_id": "paypal_1"},
            "Error: payment method should be either the original payment method or a gift card",
        ),
        (
            "return_delivered_order_items",
            {"order_id": "#W2", "item_ids": ["1", "1", "1"], "payment_method_id": "gift_card_1"},
            "Error: some item not found",
        ),
    ],
)
def test_replies_of_the_shop(name: str, arguments: dict[str, Any], told: str) -> None:
    assert call(shop(), name, **arguments)[0] == told


@pytest.mark.parametrize(
    ("items", "new", "method", "told"),
    [
        (["9"], [], "none", "9 not found"),
        (["1"], [], "none", "the number of items to be exchanged should match"),
        (["1"], ["3"], "none", "new item 3 not found or available"),
        (["1"], ["2"], "none", "payment method not found"),
        (["1", "1", "1"], ["2", "2", "2"], "paypal_1", "1 not found"),
    ],
)
@pytest.mark.parametrize(
    ("name", "order", "short"),
    [
        ("exchange_delivered_order_items", "#W2", "to pay for the price difference"),
        ("modify_pending_order_items", "#W1", "to pay for the new item"),
    ],
)
def test_errors_of_replacing_items_come_in_upstreams_order(
    name: str, order: str, short: str, items: list[str], new: list[str], method: str, told: str
) -> None:
    arguments = {"order_id": order, "item_ids": items, "new_item_ids": new, "payment_method_id": method}
    world = shop()
    world.tables["users"]["ada"]["payment_methods"]["gift_card_1"]["balance"] = 2.1

    assert call(world, name, **arguments)[0] == f"Error: {told}"
    arguments |= {"item_ids": ["1"], "new_item_ids": ["2"], "payment_method_id": "gift_card_1"}
    assert call(world, name, **arguments)[0] == f"Error: insufficient gift card balance {short}", "2.2 are due"
    other = "#W1" if order == "#W2" else "#W2"
    word = "non-delivered order cannot be exchanged" if order == "#W2" else "non-pending order cannot be modified"
    assert call(world, name, **(arguments | {"order_id": other}))[0] == f"Error: {word}"


def test_an_exchange_is_noted_and_a_modification_is_made() -> None:
    two = {"item_ids": ["1", "1"], "new_item_ids": ["2", "1"], "payment_method_id": "gift_card_1"}
    noted, _ = call(shop(), "exchange_delivered_order_items", order_id="#W2", **two)
    made, data = call(shop(), "modify_pending_order_items", order_id="#W1", **two)

    assert list(noted)[-4:] == [
        "exchange_items", "exchange_new_items", "exchange_payment_method_id", "exchange_price_difference",
    ]  # fmt: skip
    assert (noted["status"], noted["exchange_new_items"]) == ("exchange requested", ["1", "2"]), "sorted"
    assert noted["exchange_price_difference"] == 2.2
    assert made["status"] == "pending (item modified)"
    assert [item["item_id"] for item in made["items"]] == ["2", "1"]
    assert made["items"][0]["options"] == {"color": "blue"}
    assert made["payment_history"][1] == {
        "transaction_type": "payment", "amount": 12.3 - 10.1, "payment_method_id": "gift_card_1",
    }  # fmt: skip
    assert data.read("users", "ada")["payment_methods"]["gift_card_1"]["balance"] == 2.8


def test_cancelling_and_paying_otherwise_give_gift_cards_back_at_once() -> None:
    cancelled, one = call(shop(), "cancel_pending_order", order_id="#W1", reason="no longer needed")
    paid, two = call(shop(), "modify_pending_order_payment", order_id="#W1", payment_method_id="paypal_1")

    refund = {"transaction_type": "refund", "amount": 20.2, "payment_method_id": "gift_card_1"}
    assert (cancelled["status"], cancelled["cancel_reason"]) == ("cancelled", "no longer needed")
    assert cancelled["payment_history"][1:] == [refund]
    assert paid["payment_history"][1:] == [
        refund | {"transaction_type": "payment", "payment_method_id": "paypal_1"}, refund,
    ]  # fmt: skip
    for data in (one, two):
        assert data.read("users", "ada")["payment_methods"]["gift_card_1"]["balance"] == 25.2


def test_products_are_listed_by_name() -> None:
    assert call(shop(), "list_all_product_types")[0] == {"Kettle": "P1"}


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("2 + 2", "4.0"), (" 2 + 2", "4.0"), ("1 / 3", "0.33"), ("7 // 2", "3.0"), ("2 ** 10", "1024.0"),
        ("-(1 - 3) * 2.5", "5.0"), ("1210.32 + 340.05", "1550.37"), ("x", "Error: invalid characters in expression"),
        ("1 / 0", "Error: division by zero"), ("1 +", "Error: invalid syntax (<string>, line 1)"),
        ("1(2)", "Error: 'int' object is not callable"), ("9 ** 9 ** 9", "Error: the power is too large"),
        ("(" * 4000, "Error: too many nested parentheses (<string>, line 1)"),
    ],
)  # fmt: skip
def test_arithmetic_is_pythons_without_python(expression: str, result: str) -> None:
    assert calculate(expression) == result


def test_a_long_chain_of_signs_is_no_crash() -> None:
    assert calculate("-" * 100_000 + "1").startswith("Error: ")


@pytest.mark.parametrize(
    ("action", "name", "arguments"),
    [
        ('think {"thought": "a {b} \\n"}', "think", {"thought": "a {b} \n"}),
        ('  think({"thought": "x"}) ', "think", {"thought": "x"}),
        ("list_all_airports {}", "list_all_airports", {}),
        ('{"name": "think", "arguments": {"thought": "x"}}', "think", {"thought": "x"}),
        ('{"name": "think", "kwargs": {"thought": "x"}}', "think", {"thought": "x"}),
    ],
)
def test_calls_are_read(action: str, name: str, arguments: dict[str, Any]) -> None:
    call = read_call(action)

    assert (call.name, call.values()) == (name, arguments)
    assert read_call(call.text) == call


@pytest.mark.parametrize(
    "action",
    ["", "think", "think {", 'think {"a": 1} and more', 'think ["a"]', "{}", '{"name": 3}', 'think {"a": NaN}',
     'think {"a": ' + "[" * 5000 + "}", 'think {"a": ' + "[" * 20 + "]" * 20 + "}",
     '{"name": "think", "arguments": []}'],
)  # fmt: skip
def test_what_is_no_call_is_told(action: str) -> None:
    with pytest.raises(NoCall, match=r"An action is one line, a tool's name and then its arguments as a JSON object"):
        read_call(action)


def test_values_that_python_calls_equal_are_told_apart_as_upstream() -> None:
    assert len({canonical({"a": value}) for value in (1, 1.0, True, "1", [1], None)}) == 6
    assert canonical({"a": 1, "b": [2]}) == canonical({"b": [2], "a": 1})
    assert canonical({"a": [1, 2]}) != canonical({"a": [2, 1]})


def test_a_number_of_another_type_is_a_change() -> None:
    data = Overlay(shop())
    data.change("users", "ada")["payment_methods"]["gift_card_1"]["balance"] = 5

    assert set(data.changes()) == {("users", "ada")}, "it was 5.0"


def test_what_is_exchanged_is_noted_in_order() -> None:
    world = shop()
    world.tables["orders"]["#W2"]["items"][1]["item_id"] = "2"

    noted, _ = call(
        world, "exchange_delivered_order_items", order_id="#W2", item_ids=["2", "1"], new_item_ids=["1", "2"],
        payment_method_id="paypal_1",
    )  # fmt: skip
    given, _ = call(
        world, "return_delivered_order_items", order_id="#W2", item_ids=["2", "1"], payment_method_id="gift_card_1"
    )

    assert (noted["exchange_items"], noted["exchange_new_items"]) == (["1", "2"], ["1", "2"])
    assert (given["return_items"], given["status"]) == (["1", "2"], "return requested")


def test_a_fork_and_its_parent_change_apart() -> None:
    data = Overlay(shop())
    data.change("users", "ada")["email"] = "one"
    twin = data.fork()
    twin.change("users", "ada")["email"] = "two"
    data.change("orders", "#W1")["status"] = "x"

    assert (data.read("users", "ada")["email"], twin.read("users", "ada")["email"]) == ("one", "two")
    assert (set(data.changes()), set(twin.changes())) == (
        {("users", "ada"), ("orders", "#W1")},
        {("users", "ada")},
    )
    data.change("users", "ada")["email"] = "ada.abel@example.com"
    assert ("users", "ada") not in data.changes(), "changed back is not changed"


@pytest.mark.parametrize("kind", [TauAirline, TauRetail])
def test_two_overlays_are_equal_when_upstreams_hashes_of_all_records_are(
    kind: type[TauAirline] | type[TauRetail],
) -> None:
    """Random calls on one world: what they lead to is compared by overlays and by whole databases."""
    rng = random.Random(7)
    tasks = [kind.generated().by_index("train", "several", index).data for index in range(6)]
    equal = unequal = 0
    for task in tasks:
        changing = [call for call in task.actions if call.name in kind.changing]
        calls = [*changing, *(_spoiled(call, rng) for call in changing for _ in range(3))]
        ends = []
        for _ in range(14):
            data = Overlay(task.world)
            for call in rng.choices(calls, k=rng.randrange(4)):
                execute(kind.functions, data, call)
            ends.append((data.changes(), upstream_hash(materialised(task.world, data))))
        for overlay, whole in ends:
            for other_overlay, other_whole in ends:
                assert (overlay == other_overlay) == (whole == other_whole)
                equal, unequal = equal + (whole == other_whole), unequal + (whole != other_whole)

    assert equal > 6 * 14, "more than each with itself"
    assert unequal > 100


def _spoiled(call: Call, rng: random.Random) -> Call:
    """The call with one argument that is another call's, or of another type."""
    values = call.values()
    key = rng.choice(list(values))
    values[key] = rng.choice([1, 1.0, True, "no longer needed", [], {}, None, *values.values()])
    return Call.of(call.name, **values)
