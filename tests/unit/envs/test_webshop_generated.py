from typing import Any

import pytest
from gymfleet_envs.webshop.environment import ENVIRONMENT, WebShop
from gymfleet_envs.webshop.scoring import score

from tests.fixtures.hash_seeds import outputs_by_hash_seed


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("level", ["single", "options", "attributes", "market"])
def test_the_expert_solves_generated_tasks(level: str, split: Any) -> None:
    tasks = WebShop.task_source(None)
    steps = {"single": 3, "options": 5, "attributes": 6, "market": 9}[level]

    for index in range(40):
        environment = ENVIRONMENT()
        environment.reset(tasks.by_index(split, level, index).data, 0)
        for _ in range(steps):
            move = environment.expert()
            assert move is not None
            outcome = environment.step(move.action)
            assert len(outcome.observation) < 1200
            if outcome.terminated:
                break
        assert outcome.reward == 1.0


def test_the_easiest_level_is_short_and_says_what_to_search() -> None:
    task = WebShop.task_source(None).by_index("test", "single", 0).data
    environment = ENVIRONMENT()
    first = environment.reset(task, 0)
    wanted = first.removeprefix("WebShop [SEP] Instruction: [SEP] Find me a ").removesuffix(" [SEP] Search")

    found = environment.step(f"search[{wanted}]")

    assert found.info["clickables"][2] == task.goal.asin.lower()  # type: ignore[index]
    assert max(len(first), len(found.observation)) < 300


def test_a_wrong_purchase_is_worth_less() -> None:
    task = WebShop.task_source(None).by_index("train", "market", 1).data
    for asin in (f"K{number}" for number in range(20)):
        if asin == task.goal.asin:
            continue
        place = task.shop.shelf.place_of(asin)
        assert score(task.shop.shelf.at(place), 1.0, (), task.goal, task.rule).total < 1


@pytest.mark.parametrize("level", ["single", "options", "attributes", "market"])
def test_another_kind_of_thing_is_worth_nothing_whatever_else_fits(level: str) -> None:
    for index in range(20):
        task = WebShop.task_source(None).by_index("test", level, index).data
        shelf = task.shop.shelf
        for product in (shelf.at(place) for place in range(0, len(shelf), 7)):
            worth = score(product, 1.0, (), task.goal, task.rule)
            assert (worth.kind == 1.0) == (product.query == task.goal.query), (product.title, task.goal.instruction)
            assert (worth.total == 0) == (product.query != task.goal.query)


def test_tasks_do_not_depend_on_the_process() -> None:
    script = (
        "from gymfleet_envs.webshop.environment import WebShop as W\n"
        "s = W.task_source(None)\n"
        "def go(t):\n"
        "    w = W(); w.reset(t, 0); return w.step(w.expert().action).observation\n"
        "print([go(s.by_index('test', level, i).data) for level in s.levels for i in range(5)])"
    )
    assert len(outputs_by_hash_seed(script)) == 1
