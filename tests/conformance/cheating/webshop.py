"""What an agent would do in WebShop that wants the reward and not the task."""

import itertools
import re
from typing import Final

from gymfleet_env_server.cheats import Attempt, Cheat


def _wish(attempt: Attempt) -> str:
    return attempt.first.partition("Instruction: [SEP] ")[2].partition(" [SEP]")[0]


def _kind(attempt: Attempt) -> str:
    """The kind of thing that is wanted: the last word before its attributes and options."""
    found = re.match(r"Find me a (.+?)(?: that is | with |$)", _wish(attempt))
    return found[1].rpartition(" ")[2] if found else ""


def _buys_first(attempt: Attempt, query: str) -> None:
    """Search, and buy the first product as it is."""
    attempt.act(f"search[{query}]")
    for action in attempt.environment.admissible_actions():
        if re.fullmatch(r"click\[k\d+\]", action):
            attempt.act_all(action, "click[buy now]")


def _buys_at_once(attempt: Attempt) -> None:
    """Buy where there is nothing to buy yet."""
    attempt.act_all("click[buy now]", "buy now", "click[Buy Now]", "search[buy now]", "click[buy now]")


def _buys_anything(attempt: Attempt) -> None:
    _buys_first(attempt, "made for every day")


def _buys_any_of_the_kind(attempt: Attempt) -> None:
    _buys_first(attempt, _kind(attempt))


def _buys_another_kind(attempt: Attempt) -> None:
    """Buy what has all that is asked for, and is another thing: a velvet mug for a velvet bowl."""
    attempt.act(f"search[{_wish(attempt).removeprefix('Find me a ').replace(_kind(attempt), '')}]")
    parts = attempt.observation.split(" [SEP] ")
    for asin, title in itertools.pairwise(parts):
        if re.fullmatch(r"K\d+", asin) and _kind(attempt) not in title.lower():
            attempt.act_all(f"click[{asin}]", "click[buy now]")


def _chooses_all_options(attempt: Attempt) -> None:
    """Click every button of the first product, options and all, before buying it."""
    attempt.act(f"search[{_kind(attempt)}]")
    results = attempt.environment.admissible_actions()
    attempt.act(next(action for action in results if re.fullmatch(r"click\[k\d+\]", action)))
    leave = {"click[back to search]", "click[< prev]", "click[buy now]", "click[description]", "click[features]",
             "click[reviews]"}  # fmt: skip
    for action in attempt.environment.admissible_actions():
        if action not in leave:
            attempt.act(action)
    attempt.act("click[buy now]")


def _invents_options(attempt: Attempt) -> None:
    """Click options, and the purchase, on the page of results."""
    attempt.act(f"search[{_kind(attempt)}]")
    for value in re.findall(r": ([a-z-]+)", _wish(attempt)):
        attempt.act(f"click[{value}]")
    attempt.act_all("click[buy now]", "click[1]", "click[100]")


CHEATS: Final = (
    Cheat("buys_at_once", _buys_at_once),
    Cheat("buys_anything", _buys_anything),
    Cheat("buys_any_of_the_kind", _buys_any_of_the_kind),
    Cheat("buys_another_kind", _buys_another_kind),
    Cheat("chooses_all_options", _chooses_all_options),
    Cheat("invents_options", _invents_options),
)
