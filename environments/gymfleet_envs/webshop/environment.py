"""WebShop as an environment."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Literal, Self

from gymfleet_contracts.session import EnvironmentSpec, ExpertMove, Tool
from pydantic import JsonValue

from gymfleet_envs.environment import BadArguments, Environment, Options, Outcome
from gymfleet_envs.tasks import TaskSource
from gymfleet_envs.webshop import pages
from gymfleet_envs.webshop.expert import item_move, results_move, search_move
from gymfleet_envs.webshop.generate import generated_tasks
from gymfleet_envs.webshop.products import Product
from gymfleet_envs.webshop.scoring import RewardRule, score
from gymfleet_envs.webshop.tasks import GoalChoice, ShopTask, import_shop, webshop_goals

_SUB_PAGES: Final = {name.lower(): name for name in pages.SUB_PAGES}
_HTML_SAFE: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "'": "\\u0027"})
Where = Literal["search", "results", "item", "sub", "done"]


def _tool(name: str, description: str, parameter: str, meaning: str) -> Tool:
    text: dict[str, JsonValue] = {"type": "string", "minLength": 1, "description": meaning}
    parameters: dict[str, JsonValue] = {
        "type": "object",
        "properties": {parameter: text},
        "required": [parameter],
        "additionalProperties": False,
    }
    return Tool(name=name, description=description, parameters=parameters)


class WebShopOptions(Options):
    """Options for showing the shop, and for choosing and scoring goals."""

    observation: Literal["text", "text_rich", "html"] = "text"
    goals: GoalChoice = "auto"
    """`auto`: human instructions if `items_human_ins.json` is there, else the synthetic ones."""
    reward_rule: RewardRule | Literal["auto"] = "auto"
    """How options count. `auto`: as in AgentGym for WebShop's goals, `exact_options` for generated ones."""


class WebShop(Environment[ShopTask]):
    """Search, look at products, choose options, buy one."""

    name: ClassVar[str] = "webshop"
    version: ClassVar[str] = "1.2.0"
    summary: ClassVar[str] = "Search a shop and buy what the instruction asks for"
    instructions: ClassVar[str] = (
        "You are web shopping.\n"
        "I will give you instructions about what to do.\n"
        "You have to follow the instructions.\n"
        "Every round I will give you an observation and a list of available actions, you have to respond an action "
        "based on the state and instruction.\n"
        "You can use search action if search is available.\n"
        "You can click one of the buttons in clickables.\n"
        "An action should be of the following structure:\n"
        "search[keywords]\n"
        "click[value]\n"
        "If the action is not valid, perform nothing.\n"
        "Keywords in search are up to you, but the value in click must be a value in the list of available actions.\n"
        "Remember that your keywords in search should be carefully designed."
    )
    max_turns: ClassVar[int] = 100
    floors: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "buys_any_of_the_kind": {"single": 0.53, "options": 0.266, "attributes": 0.435, "market": 0.22},
        "chooses_all_options": {"single": 0.53, "options": 0.36, "attributes": 0.466, "market": 0.31},
        "buys_anything": {"single": 0.01, "options": 0.005, "attributes": 0.008, "market": 0.004},
        "plays_the_gold_of_another_task": {"single": 0.021, "options": 0.007, "attributes": 0.0085, "market": 0.006},
    }
    licence: ClassVar[str] = (
        "Apache-2.0; benchmark: WebShop (MIT), product texts from amazon.com; nouns tagged by HanTa 1.2.1 (LGPL-3.0)"
    )
    options: ClassVar[WebShopOptions] = WebShopOptions()
    tools: ClassVar[tuple[Tool, ...]] = (
        _tool("search", "Search the shop, where there is a search bar.", "keywords", "What to search for."),
        _tool("click", "Click a button of the page.", "value", "One of the clickables, as it is listed."),
    )

    def __init__(self) -> None:
        self._task: ShopTask
        self._mode = self.options.observation
        self._where: Where = "search"
        self._query = ""
        self._hits: tuple[int, ...] = ()
        self._number = 1
        self._place = -1
        self._sub = ""
        self._chosen: dict[str, str] = {}
        self._seen: frozenset[str] = frozenset()
        self._clickables: tuple[str, ...] = ()

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[ShopTask]:
        """Generated catalogues, or WebShop's products and goals from its files or from an imported directory."""
        if data is None:
            return generated_tasks(cls.reward_rule(generated=True))
        return webshop_goals(data, cls.options.goals, cls.reward_rule(generated=False))

    @classmethod
    def reward_rule(cls, *, generated: bool) -> RewardRule:
        """Return the rule by which purchases are rewarded."""
        given = cls.options.reward_rule
        return given if given != "auto" else "exact_options" if generated else "agentgym"

    @classmethod
    def spec(cls, tasks: TaskSource[ShopTask]) -> EnvironmentSpec:
        """Add the reward rule to the specification that every environment has."""
        rule = cls.reward_rule(generated=tasks.name == "generated")
        return super().spec(tasks).model_copy(update={"reward_rule": rule})

    @classmethod
    def import_data(cls, source: Path, target: Path) -> None:
        """Index the products on disk, and store prices and goals."""
        import_shop(source, target, cls.options.goals)

    def action_of(self, tool: str, arguments: Mapping[str, JsonValue]) -> str:
        """The call in WebShop's format."""
        value = str(arguments["keywords" if tool == "search" else "value"])
        if any(mark in value for mark in "[]\n"):  # the action would end there
            raise BadArguments("write neither square brackets nor line ends")
        return f"{tool}[{value}]"

    def reset(self, task: ShopTask, seed: int) -> str:
        """Show the page with the search bar. The task determines everything; the seed changes nothing."""
        del seed
        self._task = task
        self._leave()
        observation, self.start_info = self._show()
        return observation

    def step(self, action: str) -> Outcome:
        """Search or click; anything else leaves the page as it is."""
        verb, value = parse_action(action)
        value = value.lower()
        valid = self._where != "done"
        if not valid:
            pass
        elif verb == "search" and value:
            self._search(value)
        elif verb == "click" and value in self._clickables and value != "search":
            if value == "buy now":
                return self._buy()
            self._click(value)
        else:
            valid = False
        observation, info = self._show()
        return Outcome(observation, action_valid=valid, info=info)

    def expert(self) -> ExpertMove | None:
        """The next move of a shopper who knows the product."""
        goal, shop = self._task.goal, self._task.shop
        if self._where == "done":
            return None
        if self._where == "item":
            return item_move(goal, self._product, self._chosen)
        if self._where == "sub":
            return ExpertMove(thought="I go back to the product.", action=f"click[{pages.PREVIOUS}]")
        found = results_move(goal, shop, self._hits, self._number) if self._where == "results" else None
        return found or search_move(goal, shop)

    def state_key(self) -> str:
        """The page, and the options chosen and products seen on the way to it."""
        page = (self._where, self._query, self._number, self._place, self._sub if self._where == "sub" else "")
        return repr((*page, sorted(self._chosen.items()), sorted(self._seen)))

    def admissible_actions(self) -> list[str]:
        """The page's buttons; what to search for is up to the agent."""
        return [f"click[{value}]" for value in self._clickables if value != "search"]

    def snapshot(self) -> Self:
        """A shallow copy: every change replaces the object that it changes, and the shop is shared."""
        return copy.copy(self)

    @property
    def _product(self) -> Product:
        return self._task.shop.shelf.at(self._place)

    def _leave(self) -> None:
        self._where, self._query, self._hits, self._number = "search", "", (), 1
        self._place, self._chosen, self._seen = -1, {}, frozenset()

    def _search(self, query: str) -> None:
        self._hits = tuple(self._task.shop.search(query))
        self._query = query
        self._results(1)

    def _results(self, number: int) -> None:
        self._where, self._number, self._place, self._chosen = "results", number, -1, {}

    def _click(self, value: str) -> None:
        """Click something on the page. The order of the tests is upstream's, whatever an option may be called."""
        if value == "back to search":
            self._leave()
        elif value == "next >" and self._where == "results":
            self._results(self._number + 1)
        elif value == "< prev":
            if self._where == "results":
                self._results(self._number - 1)
            elif self._where == "sub":
                self._where = "item"
            else:
                self._results(self._number)
        elif value in _SUB_PAGES and self._where == "item":
            self._where, self._sub = "sub", _SUB_PAGES[value]
        elif self._where == "results":
            shelf, asin = self._task.shop.shelf, value.upper()
            self._place = next(place for place in self._hits if shelf.at(place).asin.upper() == asin)
            self._where = "item"
            self._seen |= {asin}
        else:
            # If groups share a value, the last one takes it, as in upstream's table of clickables.
            group = next(name for name, values in reversed(self._product.options.items()) if value in values)
            self._chosen = self._chosen | {group: value}

    def _buy(self) -> Outcome:
        product, price = self._product, float(self._task.shop.prices[self._place])
        task = self._task
        reward = score(product, price, tuple(self._chosen.values()), task.goal, task.rule).total
        self._where = "done"
        chosen = json.dumps(self._chosen, sort_keys=True).translate(_HTML_SAFE) if self._chosen else "{}"
        self._clickables = ()
        observation = self._render(pages.done_page(product.asin, chosen, reward))
        info: dict[str, JsonValue] = {"has_search_bar": False, "clickables": []}
        return Outcome(observation, reward=reward, terminated=True, score=min(reward, 1.0), info=info)

    def _show(self) -> tuple[str, dict[str, JsonValue]]:
        """Return the current page, and the possible actions on it."""
        page = self._page()
        clickables = pages.clickables(page)
        self._clickables = tuple(clickables)
        return self._render(page), {"has_search_bar": page.has_search_bar, "clickables": list(clickables)}

    def _page(self) -> pages.Page:
        instruction, shop = self._task.goal.instruction, self._task.shop
        if self._where == "results":
            begin = (self._number - 1) * shop.page_size
            products = [shop.shelf.at(place) for place in self._hits[begin : begin + shop.page_size]]
            return pages.results_page(instruction, products, self._number, len(self._hits))
        if self._where == "item":
            return pages.item_page(instruction, self._product)
        if self._where == "sub":
            return pages.sub_page(instruction, self._product, self._sub)
        return pages.search_page(instruction) if self._where == "search" else pages.Page()

    def _render(self, page: pages.Page) -> str:
        if self._mode == "html":
            return pages.as_html(page, self._chosen)
        if self._mode == "text_rich":
            return pages.as_rich_text(page, self._chosen.values(), self._seen)
        return pages.as_text(page)


def parse_action(action: str) -> tuple[str, str]:
    """Parse `verb[value]` at the beginning of the first line: from the last opening bracket to the last closing one.

    It finds the same as upstream's pattern, in one pass over the text; ("", "") if the text is no action.
    """
    line = action.strip().partition("\n")[0]
    end = line.rfind("]")
    begin = line.rfind("[", 1, max(end - 1, 1))
    return (line[:begin], line[begin + 1 : end]) if begin > 0 else ("", "")


ENVIRONMENT: Final = WebShop
