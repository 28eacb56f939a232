import difflib
import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymfleet_env_server.catalogue import EnvironmentUnavailable, load_entry
from gymfleet_envs.tasks import TaskDataError, UnknownTask
from gymfleet_envs.webshop import products as products_module
from gymfleet_envs.webshop import tasks as tasks_module
from gymfleet_envs.webshop.environment import WebShop
from gymfleet_envs.webshop.goals import PRICE_STEPS
from gymfleet_envs.webshop.products import Product, Review
from gymfleet_envs.webshop.scoring import COLORS, Goal, score
from gymfleet_envs.webshop.tasks import ShopGoals

from tests.fixtures.paths import SHARED_DATA

DATA = SHARED_DATA
SHOP = DATA / "webshop"

MUG: dict[str, Any] = {
    "asin": "B000000001", "name": "Red Mug", "full_description": "A mug.", "small_description": ["Strong"],
    "category": "home", "query": " Mugs ", "product_category": "Home \u203a Kitchen", "pricing": "$7.50 - $9.50",
    "customization_options": {"Color": [{"value": "Red/White "}, {"value": "blue"}], "Size": None}, "images": ["m.jpg"],
}  # fmt: skip
LAMP: dict[str, Any] = MUG | {"asin": "B000000002", "name": "Lamp", "pricing": "", "customization_options": ""}
SAID: dict[str, Any] = {
    "B000000001": {
        "attributes": ["easy clean"],
        "instruction": "Find me mugs",
        "instruction_attributes": ["easy clean"],
    },
    "B000000002": {"attributes": []},
}
HUMAN = {
    "B000000002": [
        {"instruction": "i want a lamp.", "instruction_attributes": ["bright"], "instruction_options": ["tall"]},
        {"instruction": "nothing to score", "instruction_attributes": [], "instruction_options": []},
    ]
}


def write(folder: Path, products: Any = (MUG, LAMP), said: Any = SAID, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    files = {"items_shuffle_1000": products, "items_ins_v2_1000": said, **more}
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{name}.json").write_text(text)
    return folder


def goals_in(folder: Path) -> ShopGoals:
    tasks = WebShop.task_source(folder)
    assert isinstance(tasks, ShopGoals)
    return tasks


def test_upstreams_files_become_products_and_goals(tmp_path: Path) -> None:
    tasks = goals_in(write(tmp_path))

    shop = tasks.by_id("0").data.shop
    mug = shop.shelf.at(0)
    assert (mug.query, mug.options, mug.price_tag) == ("mugs", {"color": ("red | white", "blue")}, "$7.5 to $9.5")
    assert shop.shelf.at(1).price_tag == "$100.0"
    # Options that were prepared before are clicked in lower case too.
    prepared = goals_in(write(tmp_path / "prepared", (MUG | {"options": {"Color": ["Red"]}}, LAMP))).by_id("0").data
    assert prepared.shop.shelf.at(0).options == {"color": ("red",)}
    assert 7.5 <= shop.prices[0] <= 9.5
    assert mug.indexed_text == "red mug a mug. strong color: red | white, blue"
    texts = {tasks.by_id(str(number)).data.goal.instruction for number in range(2)}
    cap = tasks.by_id("0").data.goal.price_cap
    assert cap in PRICE_STEPS[1:4]
    assert texts == {
        f"Find me mugs with color: {color}, and price lower than {cap:.2f} dollars" for color in ("red | white", "blue")
    }


def test_human_goals_where_they_are_given(tmp_path: Path) -> None:
    tasks = goals_in(write(tmp_path, items_human_ins=HUMAN))

    assert (tasks.levels, tasks.count("test", "human")) == (("human",), 1)
    goal = tasks.by_id("0").data.goal
    assert (goal.attributes, goal.options) == (("bright",), (("", "tall"),))
    assert re.fullmatch(r"i want a lamp, and price lower than 1[2-4]0\.00 dollars", goal.instruction)


def test_reviews_come_with_the_rating(tmp_path: Path) -> None:
    review = {"title": "Good", "stars": "5.0", "review": "Fits."}
    said = [{"asin": "B000000001", "reviews": [review], "average_rating": 4.5}]

    shelf = goals_in(write(tmp_path, reviews=said)).by_id("0").data.shop.shelf

    assert (shelf.at(0).rating, shelf.at(0).reviews) == ("4.5", (Review("Good", "5.0", "Fits."),))
    assert (shelf.at(1).rating, shelf.at(1).reviews) == ("N.A.", ())


def test_the_operator_chooses_the_goals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WebShop, "options", WebShop.options)  # what load_entry sets is put back
    folder = write(tmp_path / "all", items_human_ins=HUMAN)

    entry = load_entry("webshop", {"webshop": folder}, {"webshop": {"goals": "synthetic"}})
    assert entry.spec.levels == ("synthetic",)
    with pytest.raises(EnvironmentUnavailable, match=r"has no items_human_ins\.json"):
        load_entry("webshop", {"webshop": write(tmp_path / "some")}, {"webshop": {"goals": "human"}})
    with pytest.raises(EnvironmentUnavailable, match="observation"):
        load_entry("webshop", {}, {"webshop": {"observation": "image"}})


@pytest.mark.parametrize(
    ("products", "fault"),
    [
        pytest.param("[{", "entry 1 is not JSON", id="truncated"),
        pytest.param("[" + json.dumps(MUG) + ', {"asin": "B00', "entry 2 is not JSON", id="truncated later"),
        pytest.param("[" + json.dumps(MUG) + ",\n", "entry 2 is not JSON", id="cut between entries"),
        pytest.param("[" + json.dumps(MUG) + "] {", "entry 2 is not JSON", id="goes on after the list"),
        pytest.param("[" * 100_000, "entry 1 is not JSON", id="nested"),
        pytest.param('[{"a": ' + "[" * 100_000, "entry 1 is not JSON", id="nested in an entry"),
        pytest.param("[7]", "entry 1: is no object", id="a number"),
        pytest.param("[]", "none of its products has a synthetic goal", id="empty"),
        pytest.param(" ", "none of its products has a synthetic goal", id="nothing"),
        pytest.param([MUG | {"name": 7}], "entry 1: name must be a text, got int", id="wrong type"),
        pytest.param([{k: v for k, v in MUG.items() if k != "query"}], "entry 1: query is missing", id="missing field"),
        pytest.param([MUG | {"small_description": [1]}], "small_description must be a list of texts", id="wrong items"),
        pytest.param([MUG | {"pricing": [float("nan")]}], "entry 1: pricing must be", id="NaN"),
        pytest.param([MUG | {"pricing": [1e300]}], "entry 1: pricing must be", id="huge"),
        pytest.param([MUG | {"pricing": "$" + "9" * 4000}], "entry 1: pricing must be", id="huge text"),
        pytest.param([MUG | {"pricing": {"a": 1}}], "entry 1: pricing must be", id="a price that is an object"),
        pytest.param([MUG | {"pricing": "$-"}], "entry 1: pricing must be", id="no price"),
        pytest.param([MUG | {"customization_options": [1]}], "options must be an object", id="options"),
        pytest.param([MUG | {"customization_options": {"a": [1]}}], "a must be a list of objects", id="option values"),
        pytest.param([MUG | {"asin": "../../etc"}], "asin '../../etc' is no id", id="an id that is a path"),
        pytest.param(
            [LAMP, MUG | {"product": MUG}, {"product": MUG}], "entry 3: asin B000000001 is there twice", id="twice"
        ),
    ],
)
def test_damaged_products_are_named_with_their_fault(tmp_path: Path, products: Any, fault: str) -> None:
    folder = write(tmp_path, products)

    with pytest.raises(TaskDataError, match=f"items_shuffle_1000.json: .*({fault})"):
        WebShop.task_source(folder)
    (tmp_path / "made").mkdir()
    with pytest.raises(TaskDataError, match=fault):
        WebShop.import_data(folder, tmp_path / "made")


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"said": "{"}, "items_ins_v2_1000.json is not JSON"),
        ({"said": "[" * 100_000}, "items_ins_v2_1000.json is not JSON"),
        ({"said": [1]}, "items_ins_v2_1000.json holds no object by ASIN, but list"),
        ({"said": {"B000000001": 3}}, "entry 1: its entry among the attributes is int"),
        ({"said": {"B000000001": {"attributes": ["a"], "instruction": "x"}}}, "instruction_attributes must be a list"),
        ({"items_human_ins": {"B000000001": 3}}, "entry 1: its human instructions must be a list"),
        ({"items_human_ins": {"B000000001": [{"instruction_attributes": ["a"]}]}}, "entry 1: instruction is missing"),
        ({"reviews": [{"stars": 5}]}, "reviews.json: entry 1: is no object with an asin"),
        ({"reviews": [{"asin": "B000000001", "reviews": 3}]}, "entry 1: reviews must be a list"),
    ],
)
def test_damaged_companions_are_named_with_their_fault(tmp_path: Path, more: dict[str, Any], fault: str) -> None:
    with pytest.raises(TaskDataError, match=fault):
        WebShop.task_source(write(tmp_path, **more))


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    (write(tmp_path) / "items_shuffle_1000.json").write_bytes(b'[{"asin": "\xff\xfe"}]')

    with pytest.raises(TaskDataError, match=r"entry 1 is not JSON: .*utf-8"):
        WebShop.task_source(tmp_path)


def test_an_entry_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products_module, "_CHUNK_CHARS", 1000)
    monkeypatch.setattr(products_module, "MAX_ENTRY_CHARS", 5000)

    with pytest.raises(TaskDataError, match="entry 1 is not JSON"):
        WebShop.task_source(write(tmp_path, '[{"asin": "' + "x" * 20_000))
    assert goals_in(write(tmp_path)).count("test", "synthetic") == 2, "entries may be cut anywhere by a read"


def test_a_catalogue_too_large_for_memory_has_to_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks_module, "MAX_IN_MEMORY", 1)

    with pytest.raises(TaskDataError, match="more than 1 products: run `gymfleet data import webshop`"):
        WebShop.task_source(write(tmp_path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskDataError, match="has no file with products"):
        WebShop.task_source(tmp_path)


def imported(tmp_path: Path) -> Path:
    target = tmp_path / "imported"
    target.mkdir()
    WebShop.import_data(write(tmp_path / "source"), target)
    return target


def test_an_imported_shop_is_the_shop_of_the_files(tmp_path: Path) -> None:
    on_disk, in_memory = goals_in(imported(tmp_path)), goals_in(tmp_path / "source")

    for number in ("0", "1"):
        one, other = on_disk.by_id(number), in_memory.by_id(number)
        assert (one.data.goal, one.split) == (other.data.goal, other.split)
        assert one.data.shop.search("red mug") == other.data.shop.search("red mug") == [0, 1]
        assert one.data.shop.shelf.at(1) == other.data.shop.shelf.at(1)
        assert list(one.data.shop.prices) == list(other.data.shop.prices)
    again = tmp_path / "again"
    again.mkdir()
    WebShop.import_data(tmp_path / "imported", again)
    assert goals_in(again).by_id("0").data.goal == in_memory.by_id("0").data.goal


@pytest.mark.parametrize(
    "name", ["products.sqlite", "offsets.npy", "documents.npy", "impacts.npy", "prices.npy", "goals.npy"]
)
@pytest.mark.parametrize("damage", ["gone", "cut", "noise"])
def test_a_damaged_import_is_refused(tmp_path: Path, name: str, damage: str) -> None:
    path = imported(tmp_path) / name
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        path.write_bytes(random.Random(1).randbytes(4096))

    with pytest.raises(TaskDataError, match="the imported shop in imported is damaged"):
        WebShop.task_source(path.parent)


@pytest.mark.parametrize("name", ["prices", "goals", "documents"])
def test_an_import_whose_parts_do_not_fit_is_refused(tmp_path: Path, name: str) -> None:
    target = imported(tmp_path)
    np.save(target / f"{name}.npy", np.load(target / f"{name}.npy")[:-1])

    with pytest.raises(TaskDataError, match="its parts do not fit each other"):
        WebShop.task_source(target)


def test_arrays_of_objects_are_not_unpickled(tmp_path: Path) -> None:
    target = imported(tmp_path)
    np.save(target / "goals.npy", np.array([{"a": 1}, {}], dtype=object), allow_pickle=True)

    with pytest.raises(TaskDataError, match="damaged"):
        WebShop.task_source(target)


def test_an_import_without_manifest_or_of_another_format_is_refused(tmp_path: Path) -> None:
    target = imported(tmp_path)
    (target / "shop.json").write_text('{"format": 99}')
    with pytest.raises(TaskDataError, match="of another format"):
        WebShop.task_source(target)
    (target / "shop.json").unlink()
    with pytest.raises(TaskDataError, match="no file with products"):
        WebShop.task_source(target)


@pytest.mark.parametrize("task_id", ["-1", "2", "x", "", "9" * 5000, "\u0661", "0.5"])
def test_an_unknown_goal_is_refused(tmp_path: Path, task_id: str) -> None:
    with pytest.raises(UnknownTask):
        goals_in(write(tmp_path)).by_id(task_id)


@pytest.fixture(scope="module")
def real() -> ShopGoals:
    return goals_in(SHOP)


@pytest.mark.parametrize("folder", [SHOP] if SHOP.is_dir() else [])
def test_the_small_set_has_6910_goals_in_upstreams_splits(real: ShopGoals, folder: Path) -> None:
    counts = [real.count(split, "synthetic") for split in ("test", "validation", "train")]

    assert counts == [500, 1000, 5410]
    assert [real.by_id(number).split for number in ("0", "499", "500", "1499", "1500", "6909")] == [
        "test", "test", "validation", "validation", "train", "train",
    ]  # fmt: skip
    assert real.by_index("train", "synthetic", 0).task_id == "1500"


@pytest.mark.parametrize("folder", [SHOP] if SHOP.is_dir() else [])
def test_options_count_as_upstream_counts_them(real: ShopGoals, folder: Path) -> None:
    rng = random.Random(7)
    short_of_all = 0
    for number in rng.sample(range(6910), 700):
        goal, product, _ = bought(real, number)
        asked = [value for _, value in goal.options]
        other = [rng.choice(values) for values in product.options.values()]
        mixed = [rng.choice(pair) for pair in zip(asked, other, strict=True)]
        for chosen in (asked, other, mixed):
            hits = score(product, 1.0, tuple(chosen), goal, "agentgym").options
            assert hits == upstreams_option_hits(chosen, dict(goal.options)), (chosen, goal.options)
        short_of_all += score(product, 1.0, tuple(asked), goal, "agentgym").options < len(asked)
    assert 25 <= short_of_all <= 70, "458 of all 6,910 goals, bought exactly as asked, are not rewarded in full"


@pytest.mark.parametrize("folder", [SHOP] if SHOP.is_dir() else [])
def test_by_the_exact_rule_all_that_was_asked_for_counts_and_nothing_else(real: ShopGoals, folder: Path) -> None:
    for number in random.Random(3).sample(range(6910), 500):
        goal, product, price = bought(real, number)
        asked = tuple(value for _, value in goal.options)
        assert score(product, price, asked, goal, "exact_options").options == len(asked)
        for place, (name, value) in enumerate(goal.options):
            others = [other for other in product.options[name] if other not in asked]
            if others:
                wrong = (*asked[:place], others[0], *asked[place + 1 :])
                assert score(product, price, wrong, goal, "exact_options").options < len(asked), (value, others[0])


def bought(goals: ShopGoals, number: int) -> tuple[Goal, Product, float]:
    """A goal, the product that it asks for, and its price."""
    task = goals.by_id(str(number)).data
    place = task.shop.shelf.place_of(task.goal.asin)
    return task.goal, task.shop.shelf.at(place), float(task.shop.prices[place])


def upstreams_option_hits(chosen: list[str], wanted: dict[str, str]) -> int:
    """What AgentGym's pinned release of thefuzz, without its optional speed-up, counts over (name, value) pairs."""

    def plain(option: Any) -> Any:
        return next((color for color in COLORS if color in option), option)

    pairs = [plain(pair) for pair in wanted.items()]
    return sum(any(token_set_ratio(plain(value), pair) > 85 for value in chosen) for pair in pairs)


def token_set_ratio(one: object, other: object) -> int:
    first, second = words_of(one), words_of(other)
    if not first or not second:
        return 0
    shared = " ".join(sorted(first & second))
    left, right = ((shared + " " + " ".join(sorted(only))).strip() for only in (first - second, second - first))
    return max(ratio(shared, left), ratio(shared, right), ratio(left, right))


def words_of(value: object) -> set[str]:
    kept = "".join(sign for sign in str(value) if not 128 <= ord(sign) < 256)
    return set(re.sub(r"\W", " ", kept).lower().split())


def ratio(one: str, other: str) -> int:
    return round(100 * difflib.SequenceMatcher(None, one, other).ratio())


@pytest.mark.parametrize("folder", [SHOP] if SHOP.is_dir() else [])
def test_the_expert_gets_the_full_reward_on_the_small_set(real: ShopGoals, folder: Path) -> None:
    rewards = [solve(real.by_id(str(number)).data) for number in random.Random(1).sample(range(6910), 200)]

    assert sum(reward == 1 for reward in rewards) >= 180, "7 in 100 goals cannot be had in full: see above"


def solve(task: tasks_module.ShopTask) -> float:
    environment = WebShop()
    environment.reset(task, 0)
    for _ in range(40):
        move = environment.expert()
        assert move is not None
        outcome = environment.step(move.action)
        assert outcome.action_valid
        if outcome.terminated:
            return outcome.reward
    raise AssertionError("the expert did not finish")


def test_a_copied_shop_can_be_moved(tmp_path: Path) -> None:
    target = imported(tmp_path)
    shutil.move(target, tmp_path / "moved")

    assert solve(goals_in(tmp_path / "moved").by_id("0").data) == 1
