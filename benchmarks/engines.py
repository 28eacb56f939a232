"""The engines underneath the environments, driven without gymfleet: the baselines of `bench_envs`."""

import sqlite3
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import textworld
from gymfleet_env_server.catalogue import Entry
from gymfleet_envs.alfworld.engine import demangled
from gymfleet_envs.babyai.tasks import BabyAITask
from gymfleet_envs.babyai.world import World
from gymfleet_envs.db.tables import quoted
from gymfleet_envs.sql.task import TableData
from gymfleet_envs.webshop import pages
from gymfleet_envs.webshop.environment import parse_action
from gymfleet_envs.webshop.scoring import score
from gymfleet_envs.webshop.tasks import ShopTask
from scienceworld import ScienceWorldEnv
from textworld.envs.pddl import PddlEnv

Plays = Sequence[tuple[Any, tuple[str, ...]]]
"""Tasks, each with the actions that solve it."""


def _minigrid(entry: Entry, plays: Plays, seconds: float) -> float:
    """Minigrid alone: the primitive actions that make up our text actions, with observations discarded."""
    taken: list[tuple[BabyAITask, int, list[int]]] = []
    for task, actions in plays:
        environment: Any = entry.make()
        environment.reset(task, 0)
        engine = environment._world.engine  # noqa: SLF001 - the engine has no other door
        primitives: list[int] = []
        step = engine.step
        engine.step = lambda action, into=primitives, step=step: (into.append(action), step(action))[1]
        for action in actions:
            environment.step(action)
        taken.append((task, len(actions), primitives))
    steps, spent_s = 0, 0.0
    while spent_s < seconds:
        for task, num_actions, primitives in taken:
            engine = World(task.level, task.seed).engine
            del engine.gen_obs  # ours spares most pictures; the bare engine draws one per primitive
            began = time.perf_counter()
            for primitive in primitives:
                engine.step(primitive)
            spent_s += time.perf_counter() - began
            steps += num_actions
    return steps / spent_s


def _sqlite(entry: Entry, plays: Plays, seconds: float) -> float:
    """sqlite3 from the standard library, unguarded: the same statements on the same tables, all rows fetched."""
    del entry
    ready: list[tuple[sqlite3.Connection, list[str]]] = []
    for task, actions in plays:
        connection = sqlite3.connect(":memory:", isolation_level=None)
        for table in task.tables:
            if isinstance(table, TableData):
                connection.execute(table.definition)
            else:
                connection.execute(f"CREATE TABLE {quoted(table.name)} ({', '.join(map(quoted, table.columns))})")
            places = ", ".join("?" * len(table.rows[0]))
            connection.executemany(f"INSERT INTO {quoted(table.name)} VALUES ({places})", table.rows)  # noqa: S608 - ours
        ready.append((connection, [action for action in actions if "Final Answer" not in action]))

    def play(connection: sqlite3.Connection, actions: list[str]) -> None:
        for action in actions:
            connection.execute(action).fetchall()

    return _speed(ready, play, seconds)


def _shop(entry: Entry, plays: Plays, seconds: float) -> float:
    """Search, page, clickables and reward as plain functions, without a session's state."""
    del entry

    def play(task: ShopTask, actions: tuple[str, ...]) -> None:
        goal, shop = task.goal, task.shop
        hits: tuple[int, ...] = ()
        place = -1
        chosen: list[str] = []
        for action in actions:
            verb, value = parse_action(action)
            if verb == "search":
                hits = tuple(shop.search(value.lower()))
                products = [shop.shelf.at(hit) for hit in hits[: shop.page_size]]
                page = pages.results_page(goal.instruction, products, 1, len(hits))
            elif value.lower() == "buy now":
                total = score(shop.shelf.at(place), float(shop.prices[place]), tuple(chosen), goal, task.rule).total
                page = pages.done_page(shop.shelf.at(place).asin, "{}", total)
            else:
                found = [hit for hit in hits if shop.shelf.at(hit).asin.lower() == value.lower()]
                place, chosen = (found[0], []) if found else (place, [*chosen, value.lower()])
                page = pages.item_page(goal.instruction, shop.shelf.at(place))
            pages.clickables(page)
            pages.as_text(page)

    return _speed(plays, play, seconds)


def _bubblewrap(entry: Entry, plays: Plays, seconds: float) -> float:
    """A new bubblewrap around `bash -c` for each command: the simple way to confine it."""
    del entry
    argv = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--unshare-all", "--die-with-parent", "bash", "-c"]

    def play(_: Any, actions: tuple[str, ...]) -> None:
        for action in actions:
            subprocess.run([*argv, action.partition("```bash")[2].strip("`\n ")], capture_output=True, check=False)

    return _speed(plays, play, seconds)


def _scienceworld(entry: Entry, plays: Plays, seconds: float) -> float:
    """The wheel's own class: a virtual machine for each environment, and its `info` with every step."""
    del entry
    environment = ScienceWorldEnv()
    task, actions = plays[0]
    began, steps, spent_s = time.perf_counter(), 0, 0.0
    while time.perf_counter() - began < seconds:
        environment.load(task.task, task.variation, task.simplifications)
        spent_s += _stepping_s(environment, actions)
        steps += len(actions)
    environment.close()
    return steps / spent_s


def _textworld(entry: Entry, plays: Plays, seconds: float) -> float:
    """The stock environment with the same games; it parses its grammar at every step, as in its release."""
    del entry
    began, steps, spent_s = time.perf_counter(), 0, 0.0
    for task, actions in plays:
        game = task.game("classic")
        environment = PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True))
        environment.load({"pddl_domain": game.domain, "grammar": game.grammar, "pddl_problem": game.problem})
        names = demangled((f.name, tuple(v.name for v in f.arguments)) for f in environment._pddl_state.facts)  # noqa: SLF001 - alfworld's way
        for info in environment._entity_infos.values():  # noqa: SLF001
            info.name = names[info.id]
        spent_s += _stepping_s(environment, actions)
        steps += len(actions)
        environment.close()
        if time.perf_counter() - began > seconds:
            break
    return steps / spent_s


def _stepping_s(environment: Any, actions: Sequence[str]) -> float:
    """Play one episode and return the seconds that its steps took; the reset does not count."""
    environment.reset()
    began = time.perf_counter()
    for action in actions:
        environment.step(action)
    return time.perf_counter() - began


def _speed(plays: Sequence[tuple[Any, Sequence[str]]], play: Callable[[Any, Any], None], seconds: float) -> float:
    """Return the actions per second of `play`, repeated over all episodes."""
    steps, began = 0, time.perf_counter()
    while (spent_s := time.perf_counter() - began) < seconds or not steps:
        for task, actions in plays:
            play(task, actions)
            steps += len(actions)
    return steps / spent_s


ENGINES: Final[dict[str, tuple[str, Callable[[Entry, Plays, float], float]]]] = {
    "babyai": ("minigrid without texts", _minigrid),
    "db": ("sqlite3 without guard", _sqlite),
    "sql": ("sqlite3 without guard", _sqlite),
    "os": ("a sandbox per command", _bubblewrap),
    "webshop": ("its functions without a session", _shop),
    "sciworld": ("the stock class", _scienceworld),
    "alfworld": ("textworld's own environment", _textworld),
}
"""By environment: the engine's description, and a function that drives it and returns steps (our actions) a second."""
