import json
from pathlib import Path
from typing import Any

import pytest
from gymfleet_envs.environment import Outcome
from gymfleet_envs.tasks import TaskDataError
from gymfleet_envs.textcraft.environment import ENVIRONMENT, TextCraft
from gymfleet_envs.textcraft.recipes import Amount, Recipe, RecipeBook
from gymfleet_envs.textcraft.task import CraftTask

from tests.fixtures.hash_seeds import outputs_by_hash_seed
from tests.fixtures.paths import SHARED_DATA

DATA = SHARED_DATA

BOOK = RecipeBook(
    [
        Recipe((Amount(1, "oak logs"),), Amount(4, "oak planks")),
        Recipe((Amount(1, "birch logs"),), Amount(4, "birch planks")),
        Recipe((Amount(2, "planks"),), Amount(4, "stick")),
        Recipe((Amount(1, "stick"), Amount(1, "coal")), Amount(4, "torch")),
    ],
    {"planks": ("oak planks", "birch planks")},
)
TASK = CraftTask(BOOK, "torch", tuple(recipe.command for recipe in BOOK.recipes))


def opened(task: CraftTask = TASK) -> TextCraft:
    environment = ENVIRONMENT()
    environment.reset(task, 0)
    return environment


def solve(environment: TextCraft) -> Outcome:
    for _ in range(environment.max_turns):
        move = environment.expert()
        assert move is not None
        outcome = environment.step(move.action)
        assert outcome.action_valid
        if outcome.terminated:
            return outcome
    raise AssertionError("the expert did not finish")


def test_an_episode_by_hand() -> None:
    environment = ENVIRONMENT()

    first = environment.reset(TASK, 0)

    assert first.startswith("Crafting commands:\ncraft 4 oak planks using 1 oak logs\n")
    assert first.endswith("\ncraft 4 torch using 1 stick, 1 coal\n\nGoal: craft torch.")
    no_recipe = "Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag({}), count={})"  # as AgentGym's
    script = [
        ("inventory", "Inventory: You are not carrying anything."),
        ("get 1 stick", "Could not find stick"),
        ("get 2 planks", "Could not find planks"),
        ("get 1 gold", "Could not find gold"),
        ("craft 4 stick using 2 oak planks", "Could not find enough items to craft minecraft:stick"),
        ("get 1 oak logs", "Got 1 oak logs"),
        ("craft 4 oak planks using 1 oak logs", "Crafted 4 minecraft:oak_planks"),
        ("craft 4 stick using 2 planks", "Could not find enough items to craft minecraft:stick"),
        ("craft 4 stick using 1 oak planks, 1 oak planks", no_recipe.format("tag=None, item_id='minecraft:stick'", 4)),
        ("craft planks using 2 oak planks", no_recipe.format("tag='minecraft:planks', item_id=None", 1)),
        ("craft 4 stick using 2 oak planks", "Crafted 4 minecraft:stick"),
        ("get 1 coal", "Got 1 coal"),
        ("inventory", "Inventory: [oak planks] (2) [stick] (4) [coal] (1)"),
    ]
    for action, observation in script:
        assert environment.step(action) == Outcome(observation), action
    last = environment.step("craft 4 torch using 1 stick, 1 coal")
    assert last == Outcome("Crafted 4 minecraft:torch", reward=1.0, terminated=True, score=1.0)
    assert environment.step("inventory").observation.endswith("[oak planks] (2) [stick] (3) [torch] (4)")


def test_a_goal_that_can_be_got_is_won_by_getting_it() -> None:
    outcome = opened(CraftTask(BOOK, "coal", TASK.commands)).step("get 1 coal")

    assert (outcome.reward, outcome.terminated, outcome.score) == (1.0, True, 1.0)


def test_the_same_item_named_twice_is_counted_twice() -> None:
    book = RecipeBook([Recipe((Amount(1, "wood"), Amount(1, "oak")), Amount(1, "box"))], {"wood": ("oak",)})
    environment = opened(CraftTask(book, "box", ()))
    environment = opened(CraftTask(RecipeBook([*book.recipes], {"wood": ("oak",)}, extra_items=("oak",)), "box", ()))
    environment.step("get 1 oak")

    outcome = environment.step("craft 1 box using 1 oak, 1 oak")

    assert outcome.observation == "Could not find enough items to craft minecraft:box"


@pytest.mark.parametrize(
    "action",
    ["", " ", "get", "get coal", "get -1 coal", "get 99999 coal", "craft", "craft torch", "look", "a" * 1024,
     "inventory; get 1 coal", "get 1 coal\x00", "craft 1 torch using stick", "craft  using  ", "ge\u0301t 1 coal"],
)  # fmt: skip
def test_what_is_no_command_is_answered_and_changes_nothing(action: str) -> None:
    environment = opened()

    outcome = environment.step(action)

    assert not outcome.terminated
    assert outcome.reward == outcome.score == 0.0
    assert len(outcome.observation) < 300
    assert environment.step("inventory").observation == "Inventory: You are not carrying anything."
    if not action.startswith("get 1"):
        assert not outcome.action_valid


@pytest.mark.parametrize("action", ["GET 1 coal", " get  1   coal. ", '"get 1 coal"'])
def test_case_spaces_and_quotes_do_not_matter(action: str) -> None:
    assert opened().step(action).observation == "Got 1 coal"


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("level", ["depth_1", "depth_2", "depth_3", "depth_4"])
def test_the_expert_solves_generated_tasks(level: str, split: Any) -> None:
    tasks = TextCraft.task_source(None)

    for index in range(30):
        task = tasks.by_index(split, level, index).data
        assert task.book.depth(task.goal) >= 1
        assert solve(opened(task)).score == 1.0


def test_the_expert_goes_on_from_any_inventory() -> None:
    environment = opened()
    for action in ("get 3 birch logs", "craft 4 birch planks using 1 birch logs", "get 1 oak logs"):
        environment.step(action)

    move = environment.expert()

    assert move is not None
    assert move.action == "craft 4 stick using 2 birch planks"
    assert solve(environment).score == 1.0


def test_a_snapshot_is_independent() -> None:
    environment = opened()
    environment.step("get 1 coal")
    twin = environment.snapshot()
    environment.step("get 5 coal")

    assert twin.step("inventory").observation == "Inventory: [coal] (1)"
    assert environment.step("inventory").observation == "Inventory: [coal] (6)"


def test_tasks_do_not_depend_on_the_process() -> None:
    script = (
        "from gymfleet_envs.textcraft.environment import TextCraft as T\n"
        "s = T.task_source(None)\n"
        "print([T().reset(s.by_index('test', level, i).data, 0) for level in s.levels for i in range(5)])"
    )
    assert len(outputs_by_hash_seed(script)) == 1


def write_recipes(folder: Path, **recipes: object) -> Path:
    (folder / "recipes").mkdir()
    for name, recipe in recipes.items():
        text = recipe if isinstance(recipe, str) else json.dumps(recipe)
        (folder / "recipes" / f"{name}.json").write_text(text)
    return folder


PLANKS = {
    "type": "minecraft:crafting_shapeless",
    "group": "planks",
    "ingredients": [{"tag": "minecraft:oak_logs"}],
    "result": {"item": "minecraft:oak_planks", "count": 4},
}
STICK = {
    "type": "minecraft:crafting_shaped",
    "pattern": ["#", "#"],
    "key": {"#": {"tag": "minecraft:planks"}},
    "result": {"item": "minecraft:stick", "count": 4},
}


def test_minecraft_recipes_become_tasks(tmp_path: Path) -> None:
    smelting = {"type": "minecraft:smelting", "result": "minecraft:glass"}

    tasks = TextCraft.task_source(write_recipes(tmp_path, planks=PLANKS, stick=STICK, glass=smelting))

    assert list(tasks.levels) == ["depth_1", "depth_2"]
    stick = tasks.by_id("1")
    assert (stick.data.goal, stick.level, stick.split) == ("stick", "depth_2", "train")
    assert set(stick.data.commands) == {"craft 4 oak planks using 1 oak logs", "craft 4 stick using 2 planks"}
    assert solve(opened(stick.data)).score == 1.0


@pytest.mark.parametrize(
    ("recipe", "fault"),
    [
        ("{", "not JSON"),
        ("[" * 50_000, "not JSON|larger|not an object"),
        ("[]", "not an object with a 'type'"),
        (STICK | {"result": {"item": "stick"}}, "result.item: String should match pattern"),
        (STICK | {"result": {"item": "minecraft:stick", "count": 0}}, "result.count: Input should be greater"),
        (STICK | {"key": {"#": {}}}, "an ingredient is either an item or a tag"),
        (STICK | {"key": {"X": {"item": "minecraft:coal"}}}, "key 'X' does not occur in the pattern"),
        (STICK | {"pattern": ["#", "X"]}, "the pattern has 'X', which the key does not explain"),
        (STICK | {"pattern": [" "], "key": {}}, "there is no ingredient"),
        (PLANKS | {"ingredients": []}, "ingredients: "),
        (" " * 70_000, "larger than 65536 bytes"),
    ],
)
def test_damaged_recipes_are_named_with_their_fault(tmp_path: Path, recipe: object, fault: str) -> None:
    data = write_recipes(tmp_path, planks=PLANKS, bad=recipe)

    with pytest.raises(TaskDataError, match=f"bad.json: .*({fault})"):
        TextCraft.task_source(data)


def test_an_empty_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskDataError, match="recipes holds no recipe"):
        TextCraft.task_source(tmp_path)
