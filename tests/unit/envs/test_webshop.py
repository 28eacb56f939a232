import json
from typing import Any

import pytest
from gymfleet_envs.environment import Outcome
from gymfleet_envs.tasks import ListedTasks, Task
from gymfleet_envs.webshop.environment import ENVIRONMENT, WebShop, WebShopOptions, parse_action
from gymfleet_envs.webshop.goals import GoalTable
from gymfleet_envs.webshop.products import Product, Review, Wish
from gymfleet_envs.webshop.scoring import NO_CAP, Goal, normalize_color, nouns, score, type_score
from gymfleet_envs.webshop.shop import Shop, memory_shop
from gymfleet_envs.webshop.tasks import ShopTask

SHOE = Product(
    asin="B000000001",
    title="Canvas Shoe",
    description="Light <b>shoe</b> & more.",
    bullets=("Rubber sole ", "Machine wash"),
    category="fashion",
    query="shoes",
    product_category="Clothing \u203a Men \u203a Shoes",
    options={"size": ("8", "9"), "color": ("dark red", "sky blue")},
    attributes=("rubber sole", "easy care"),
    prices=(19.99, 24.99),
    reviews=(Review("Good", "5.0", "Fits."),),
)


def variant(number: int, **changes: Any) -> Product:
    fields = {name: getattr(SHOE, name) for name in Product.__struct_fields__}
    return Product(**(fields | {"asin": f"B00000{number:04}"} | changes))


OTHERS = [variant(100 + number, title=f"Shoe {number}") for number in range(11)]
LAMP = variant(
    900,
    title="Lamp",
    description="",
    query="lamps",
    product_category="Home \u203a Light",
    options={},
    bullets=(),
    attributes=(),
)
SHOP = memory_shop([SHOE, *OTHERS, LAMP], [21.5, *[30.0] * 12])
GOAL = Goal(
    instruction="i need canvas shoes, and price lower than 30.00 dollars",
    asin="B000000001",
    title="Canvas Shoe",
    query="shoes",
    product_category="Clothing \u203a Men \u203a Shoes",
    attributes=("rubber sole", "machine wash"),
    options=(("color", "dark red"), ("size", "9")),
    price_cap=30.0,
)
HEAD = f"Instruction: [SEP] {GOAL.instruction} [SEP] Back to Search"


def opened(goal: Goal = GOAL, shop: Shop = SHOP) -> WebShop:
    environment = ENVIRONMENT()
    environment.reset(ShopTask(goal, shop, "agentgym"), 0)
    return environment


def play(environment: WebShop, *actions: str) -> Outcome:
    outcome = Outcome("")
    for action in actions:
        outcome = environment.step(action)
        assert outcome.action_valid, action
    return outcome


def test_an_episode_by_hand_in_upstreams_words() -> None:
    environment = ENVIRONMENT()

    first = environment.reset(ShopTask(GOAL, SHOP, "agentgym"), 0)

    assert first == f"WebShop [SEP] Instruction: [SEP] {GOAL.instruction} [SEP] Search"
    assert environment.start_info == {"has_search_bar": True, "clickables": ["search"]}
    found = play(environment, "search[Canvas Shoe]")
    assert found.observation.startswith(
        f"{HEAD} [SEP] Page 1 (Total results: 12) [SEP] Next > [SEP] B000000001 [SEP] Canvas Shoe [SEP] "
        "$19.99 to $24.99 [SEP] B000000100 [SEP] Shoe 0 [SEP] "
    )
    assert found.info["clickables"] == [
        "back to search", "next >", "b000000001", *[f"b00000010{number}" for number in range(9)],
    ]  # fmt: skip
    second = play(environment, "click[Next >]")
    assert second.observation == (
        f"{HEAD} [SEP] Page 2 (Total results: 12) [SEP] < Prev [SEP] Next > [SEP] B000000109 [SEP] Shoe 9 "
        "[SEP] $19.99 to $24.99 [SEP] B000000110 [SEP] Shoe 10 [SEP] $19.99 to $24.99"
    )
    item = play(environment, "click[< Prev]", "click[B000000001]")
    assert item.observation == (
        f"{HEAD} [SEP] < Prev [SEP] size [SEP] 8 [SEP] 9 [SEP] color [SEP] dark red [SEP] sky blue [SEP] Canvas Shoe "
        "[SEP] Price: $19.99 to $24.99 [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
    )
    assert item.info == {
        "has_search_bar": False,
        "clickables": [
            "back to search", "< prev", "description", "features", "reviews", "buy now", "8", "9", "dark red",
            "sky blue",
        ],
    }  # fmt: skip
    chosen = play(environment, "click[9]", "click[sky blue]", "click[Dark Red]")
    assert chosen.observation == item.observation
    last = play(environment, "click[Buy Now]")
    assert last == Outcome(
        "Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] (Paste it in your MTurk interface.) [SEP] "
        'Purchased [SEP] asin [SEP] B000000001 [SEP] options [SEP] {"color": "dark red", "size": "9"} [SEP] attrs '
        "[SEP] None [SEP] category [SEP] None [SEP] query [SEP] None [SEP] product category [SEP] None [SEP] Target "
        "[SEP] asin [SEP] options [SEP] attrs [SEP] price upper [SEP] instuction text [SEP] category [SEP] "
        "product category [SEP] query [SEP] Goal [SEP] None [SEP] Reward [SEP] Your score (min 0.0, max 1.0) [SEP] 1.0 "
        "[SEP] Reward Details [SEP] None",
        reward=1.0,
        terminated=True,
        score=1.0,
        info={"has_search_bar": False, "clickables": []},
    )
    assert not environment.step("search[canvas]").action_valid


@pytest.mark.parametrize(
    ("sub_page", "shown"),
    [
        ("Description", "Light <b>shoe</b> & more."),
        ("Features", "Rubber sole [SEP] Machine wash"),
        ("Reviews", "Good [SEP] 5.0 [SEP] Fits."),
    ],
)
def test_pages_of_a_product(sub_page: str, shown: str) -> None:
    environment = opened()
    item = play(environment, "search[canvas]", "click[b000000001]", "click[8]")

    sub = play(environment, f"click[{sub_page}]")

    assert sub.observation == f"{HEAD} [SEP] < Prev [SEP] {shown}"
    assert sub.info["clickables"] == ["back to search", "< prev"]
    assert play(environment, "click[< Prev]") == item
    assert environment._chosen == {"size": "8"}, "options are kept"
    play(environment, "click[< Prev]", "click[b000000001]")
    assert environment._chosen == {}, "they are lost on the way to the results"


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("search[red shoe]", ("search", "red shoe")),
        ("click[a] then more", ("click", "a")),
        ("click[a[b]", ("click[a", "b")),
        ("click[a]]", ("click", "a]")),
        ("click[large] \n\nNext", ("click", "large")),
        ("  click[x]\n", ("click", "x")),
        ("search[]", ("", "")),
        ("[x]", ("", "")),
        ("click", ("", "")),
        ("click]x[", ("", "")),
        ("", ("", "")),
    ],
)
def test_actions_are_parsed_as_upstream_does(action: str, expected: tuple[str, str]) -> None:
    assert parse_action(action) == expected


@pytest.mark.parametrize(
    "action",
    ["", "nonsense", "Search[shoe]", "click[Search]", "click[buy now]", "click[B000000001]", "click[description]",
     "click[]", "search[]", "buy[now]", "click[next >]", "\x00\x1b[31m", "日本語[はい]", "[" * 4096, "[]" * 2048,
     "x\nsearch[shoe]", "click[" + "x" * 1_000_000 + "]"],
)  # fmt: skip
def test_what_cannot_be_done_leaves_the_page_as_it_is(action: str) -> None:
    environment = opened()
    before = environment.snapshot()

    outcome = environment.step(action)

    assert not outcome.action_valid
    assert (outcome.reward, outcome.terminated) == (0.0, False)
    assert outcome.observation == before.step("").observation


@pytest.mark.parametrize(
    "query",
    ["mug AND (", '"', "title:shoe^9", "*:*", "\x00", "日本語 🙂", "<r>", "shoe " * 200_000, "[" * 1_000_000, "\ud800"],
    ids=lambda query: repr(query[:10]),
)  # fmt: skip
def test_any_keywords_can_be_searched(query: str) -> None:
    outcome = opened().step(f"search[{query}]")

    assert not outcome.terminated
    assert len(outcome.observation) < 2000


def test_a_search_is_taken_on_every_page_and_may_find_nothing() -> None:
    environment = opened()
    nothing = play(environment, "search[canvas]", "click[b000000001]", "search[zzz]")

    assert nothing.observation == f"{HEAD} [SEP] Page 1 (Total results: 0) [SEP] Next >"
    assert play(environment, "click[back to search]").observation.startswith("WebShop [SEP] ")


def test_there_is_always_a_next_page_and_a_way_back() -> None:
    environment = opened()
    play(environment, "search[canvas shoe]", "click[next >]")

    beyond = play(environment, "click[next >]")

    assert beyond.observation == f"{HEAD} [SEP] Page 3 (Total results: 12) [SEP] < Prev [SEP] Next >"
    assert play(environment, "click[< prev]").observation.count("$19.99") == 2


def test_options_called_like_buttons_or_shared_by_groups_act_as_upstream() -> None:
    tricky = variant(1, title="Tricky", options={"a": ("same", "description", "buy now"), "b": ("same", "< prev")})
    environment = opened(shop=memory_shop([tricky]))
    play(environment, "search[tricky]", "click[B000000001]", "click[same]")

    assert environment._chosen == {"b": "same"}, "the last group takes it"
    assert play(environment, "click[description]").observation.endswith("Light <b>shoe</b> & more.")
    assert play(environment, "click[< prev]", "click[buy now]").terminated


@pytest.mark.parametrize(
    ("changes", "price", "chosen", "reward"),
    [
        pytest.param({}, 30.0, ("9", "dark red"), 1.0, id="all: (2 + 2 + 1) / 5"),
        pytest.param({}, 30.01, ("9", "dark red"), 0.8, id="above the cap: (2 + 2 + 0) / 5"),
        pytest.param({}, 20.0, (), 0.6, id="no option: (2 + 0 + 1) / 5"),
        pytest.param({}, 20.0, ("8", "sky blue"), 0.6, id="wrong options: (2 + 0 + 1) / 5"),
        pytest.param({}, 20.0, ("9", "bright red"), 1.0, id="'red' is among 'color dark red': (2 + 2 + 1) / 5"),
        pytest.param({}, 20.0, ("9", "dark green"), 1.0, id="and so is 'dark': (2 + 2 + 1) / 5"),
        pytest.param({"bullets": ()}, 20.0, ("9", "dark red"), 0.8, id="machine wash is nowhere: (1 + 2 + 1) / 5"),
        pytest.param({"attributes": ("rubber soles",)}, 20.0, ("9", "dark red"), 1.0, id="'rubber soles' is alike"),
        pytest.param({"title": "Lamp"}, 20.0, ("9", "dark red"), 0.0, id="no noun in common: nothing"),
        pytest.param(
            {"title": "Canvas Lamp", "query": "x", "product_category": "C"}, 20.0, ("9",), 0.8, id="half of the nouns"
        ),
    ],
)  # fmt: skip
def test_rewards_worked_out_by_hand(
    changes: dict[str, Any], price: float, chosen: tuple[str, ...], reward: float
) -> None:
    assert score(variant(1, **changes), price, chosen, GOAL, "agentgym").total == pytest.approx(reward)


@pytest.mark.parametrize(
    ("wanted", "chosen", "agentgym", "exact"),
    [
        pytest.param(("size", "x-large"), "large", 1, 0, id="'large' is among 'size x large'"),
        pytest.param(("size", "large"), "x-large", 0, 0, id="'x large' is not among 'size large'"),
        pytest.param(("", "large"), "x-large", 1, 0, id="without names, 'large' is among 'x large'"),
        pytest.param(("size", "standard"), "standard", 0, 1, id="'tan', part of 'standard', is not in 'size standard'"),
        pytest.param(("color", "red"), "red", 1, 1, id="a plain color stands for itself"),
        pytest.param(("color", "sky red"), "bright red", 1, 0, id="'red' is among 'color sky red'"),
        pytest.param(("", "sky red"), "bright red", 1, 0, id="without names, both are 'red'"),
        pytest.param(("color", "crimson\xa0one"), "crimson\xa0one", 0, 1, id="Python shows the pair with an escape"),
        pytest.param(("fit", "men\u2019s fit"), "fit men s", 1, 0, id="a sign beyond Latin-1 separates words"),
        pytest.param(("size", "elsewhere s"), "x-large", 0, 0, id="what is not offered is compared by its words"),
        pytest.param(("size", "elsewhere x large"), "x-large", 1, 1, id="and may be alike"),
    ],
)  # fmt: skip
def test_options_are_compared_by_the_rule(wanted: tuple[str, str], chosen: str, agentgym: int, exact: int) -> None:
    goal = Goal("", "B", "Canvas Shoe", "shoes", "A", ("a",), (wanted,))
    offered = () if "elsewhere" in wanted[1] else (wanted[1],)
    product = variant(1, options={"other": (chosen, *offered)})

    assert score(product, 20.0, (chosen,), goal, "agentgym").options == agentgym
    assert score(product, 20.0, (chosen,), goal, "exact_options").options == exact


@pytest.mark.parametrize(
    ("title", "query", "category", "kind"),
    [
        # Ten nouns are asked for; the shares are 0, 1/10, 2/10 and 3/10.
        pytest.param("lamp", "shoes", "A \u203a B", 0.0, id="none, though the query is the same"),
        pytest.param("table", "other", "X", 0.5, id="a tenth, another kind"),
        pytest.param("table chair", "other", "X", 0.5, id="two tenths are not more than 0.2"),
        pytest.param("table chair desk", "other", "X", 1.0, id="three tenths"),
        pytest.param("table", "shoes", "X", 1.0, id="a tenth, the same query"),
        pytest.param("table", "other", "B \u203aA", 1.0, id="a tenth, two shared categories in any order"),
        pytest.param("table", "other", "A \u203a A", 0.5, id="one shared category, twice"),
    ],
)
def test_the_kind_of_product(title: str, query: str, category: str, kind: float) -> None:
    wanted = "table chair desk shelf bench stool sofa mirror basket clock"
    goal = Goal("", "B", wanted, "shoes", "A \u203a B \u203a C", ("a",), ())

    assert len(nouns(wanted)) == 10
    assert type_score(variant(1, title=title, query=query, product_category=category), goal) == kind


@pytest.mark.timeout(60)
def test_long_words_are_tagged_by_their_beginning() -> None:
    word = "sandals" * 1000

    assert nouns(f"Red {word}") == (word,)


def test_a_title_share_under_a_tenth_and_a_title_without_nouns() -> None:
    eleven = "table chair desk shelf bench stool sofa mirror basket clock lamp"
    long = Goal("", "B", eleven, "shoes", "A", ("a",), ())
    wordless = Goal("", "B", "of the and", "other", "A", ("a",), ())

    assert len(nouns(eleven)) == 11
    assert type_score(variant(1, title="lamp", query="shoes"), long) == 0.1, "1/11, whatever the query"
    assert type_score(variant(1, title="lamp"), wordless) == 0.5, "0.2 is not more than 0.2"
    assert type_score(variant(1, title="lamp", query="other"), wordless) == 1.0


@pytest.mark.parametrize(
    ("option", "color"),
    # The order of the alphabet decides, and parts of words count.
    [
        ("", ""),
        ("black forest", "black"),
        ("violet lavender", "lavender"),
        ("steelivy fuchsia", "fuchsia"),
        ("xl", "xl"),
    ],
)
def test_colors_are_normalised_as_upstream_does(option: str, color: str) -> None:
    assert normalize_color(option) == color


def test_caps_are_the_larger_of_two_of_the_next_four_steps() -> None:
    table = GoalTable("synthetic")
    for number in range(200):
        table.add(variant(number, prices=(35.0,), options={}, wish=Wish("Find me shoes", ("a",))))
    for price in (0.0, 980.0, 985.0, 990.0):
        table.add(variant(int(price) + 1000, prices=(price,), options={}, wish=Wish("Find me shoes", ("a",))))
    caps = {place: cap for place, _, cap in table.finish().tolist()}

    assert {caps[place] for place in range(200)} == {50, 60, 70}
    assert caps[200] in (20, 30, 40)
    assert (caps[201], caps[202], caps[203]) == (NO_CAP, NO_CAP, NO_CAP), "one step above, or none: no cap"


def shown(mode: str, *actions: str) -> str:
    environment = opened()
    environment._mode = mode  # type: ignore[assignment]
    return play(environment, *actions).observation


def test_rich_text_marks_buttons_and_what_was_clicked() -> None:
    text = shown("text_rich", "search[canvas]", "click[b000000001]", "click[9]")

    assert text.startswith(
        f"You have clicked 9.\nInstruction:\n{GOAL.instruction}\n[button] Back to Search [button_]\n"
    )
    assert "size\n  [button] 8 [button_]\n  [clicked button] 9 [clicked button_]\ncolor\n" in text
    results = shown("text_rich", "search[canvas shoe]", "click[b000000001]", "click[< prev]")
    assert "\n\n[clicked button] B000000001 [clicked button_]\nCanvas Shoe\n" in results
    assert "\n\n[button] B000000100 [button_]\n" in results


def test_html_escapes_what_it_shows_and_loads_nothing() -> None:
    evil = '"><script>alert(1)</script>'
    product = variant(1, title=evil, options={evil: (evil.lower(),)}, description=evil)
    environment = opened(GOAL, memory_shop([product]))
    environment._mode = "html"

    texts = [
        play(environment, action).observation for action in ("search[alert]", "click[b000000001]", "click[description]")
    ]
    play(environment, "click[< prev]")
    texts.append(play(environment, f"click[{evil}]").observation)
    texts.append(play(environment, "click[buy now]").observation)

    for text in texts:
        assert text.startswith("<!DOCTYPE html>")
        assert "<script" not in text
        assert "http" not in text
    assert 'type="radio"' in texts[1]
    assert " checked>" in texts[3]
    assert '<div id="instruction-text">' in texts[0]
    assert 'id="search_input"' in shown_first()


def shown_first() -> str:
    environment = ENVIRONMENT()
    environment._mode = "html"
    return environment.reset(ShopTask(GOAL, SHOP, "agentgym"), 0)


def test_no_goal_leaves_the_server() -> None:
    goal = Goal("i want something", "B000000001", "Secretname", "q", "A", ("hiddenattribute",), (("", "hiddenoption"),))
    for mode in ("text", "text_rich", "html"):
        environment = opened(goal)
        environment._mode = mode
        for action in ("search[canvas]", "click[b000000001]", "click[features]", "click[< prev]", "click[buy now]"):
            outcome = play(environment, action)
            assert not any(word in outcome.observation + json.dumps(outcome.info) for word in ("hidden", "Secretname"))


def test_a_snapshot_is_independent() -> None:
    environment = opened()
    play(environment, "search[canvas]", "click[b000000001]", "click[9]")
    twin = environment.snapshot()
    play(environment, "click[dark red]")

    assert twin._chosen == {"size": "9"}
    assert play(twin, "click[buy now]").reward == pytest.approx(0.8)
    assert play(environment, "click[buy now]").reward == 1.0


def test_the_expert_turns_pages_and_finds_its_way_back() -> None:
    goal = Goal("i need shoes", OTHERS[-1].asin, "Shoe 10", "shoes", "Clothing", ("rubber sole",), (("", "9"),))
    environment = opened(goal)
    play(environment, "search[canvas shoe]", "click[b000000001]", "click[features]")

    actions = []
    for _ in range(10):
        move = environment.expert()
        assert move is not None
        actions.append(move.action)
        if play(environment, move.action).terminated:
            break

    assert actions == [
        "click[< Prev]", "click[< Prev]", "click[Next >]", f"click[{OTHERS[-1].asin}]", "click[9]", "click[Buy Now]",
    ]  # fmt: skip
    assert environment.expert() is None


def test_the_reward_rule_is_an_option_and_the_spec_names_the_one_that_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    generated = WebShop.task_source(None)
    listed = ListedTasks("webshop", "webshop", [Task("0", "test", "human", ShopTask(GOAL, SHOP, "agentgym"))])

    assert WebShop.spec(generated).reward_rule == "exact_options"
    assert WebShop.spec(listed).reward_rule == "agentgym"
    assert generated.by_index("train", "options", 0).data.rule == "exact_options"
    monkeypatch.setattr(WebShop, "options", WebShopOptions(reward_rule="agentgym"))
    assert WebShop.spec(WebShop.task_source(None)).reward_rule == "agentgym"
    assert WebShop.task_source(None).by_index("train", "options", 0).data.rule == "agentgym"


def test_a_larger_size_is_not_the_wanted_one_in_a_generated_shop() -> None:
    tasks = WebShop.task_source(None)
    found = (tasks.by_index("train", "options", index).data for index in range(1000))
    task = next(
        task
        for task in found
        if ("size", "large") in task.goal.options
        and "x-large" in task.shop.shelf.at(task.shop.shelf.place_of(task.goal.asin)).options["size"]
    )
    environment = ENVIRONMENT()
    environment.reset(task, 0)
    wanted = [value for name, value in task.goal.options if name != "size"]
    title = task.shop.shelf.at(task.shop.shelf.place_of(task.goal.asin)).title
    search, item = f"search[{title}]", f"click[{task.goal.asin}]"

    outcome = play(
        environment, search, item, *[f"click[{value}]" for value in wanted], "click[x-large]", "click[buy now]"
    )

    assert outcome.reward < 1


def test_the_observation_is_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WebShop, "options", WebShopOptions(observation="html"))

    assert ENVIRONMENT().reset(ShopTask(GOAL, SHOP, "agentgym"), 0).startswith("<!DOCTYPE html>")
