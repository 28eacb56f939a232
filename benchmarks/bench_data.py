"""How the environments do on the benchmarks' own tasks, and how many of their tasks the experts solve.

It needs the benchmarks' files (`--data`); a part whose files are missing is left out with a
message. Tasks that an expert does not solve are named on stderr.
"""

import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from gymfleet_env_server.catalogue import ENVIRONMENTS, Entry, load_entry
from gymfleet_env_server.expert_play import ExpertFault, solve
from gymfleet_envs.tasks import SPLITS, Task

from benchmarks.command import BenchmarkCommand, Size
from benchmarks.record import Row, record
from tests.fixtures import recorded_dialogues as dialogues
from tests.fixtures.mariadb import PrivateMariaDB

THREADS: Final = 2
"""Concurrent episodes of environments that wait for something outside Python."""
SAMPLE: Final = 200
EXPERT_GOAL: Final = 0.95
NUM_GENERATED: Final[Mapping[str, int]] = {"os": 40, "sciworld": 60}
"""Test tasks per level of environments whose episodes take seconds; the others play `SAMPLE`."""
DBBENCH_GOALS: Final[Mapping[str, float]] = {"SQLite": 0.97, "MariaDB": 0.99}
Rows = list[Row]
SIZES: Final = {"one_in": Size(1, smoke=100, help="play one task of so many")}


class Missing(Exception):
    """A part cannot be measured here. The message says what it needs."""


def os_tasks(data: Path, one_in: int) -> Rows:
    """AgentBench OS: how many tasks load, and how many gold scripts pass their checks in the sandbox."""
    tasks = load_entry("os", {"os": needed(data / "agentbench_os")})
    count = tasks.tasks.count("train", "default")
    chosen = random.Random(0).sample(range(count), SAMPLE // one_in)
    share = solved(tasks, [tasks.tasks.by_index("train", "default", index) for index in chosen])
    return [
        Row.of("os: AgentBench's training tasks that load", count, "", goal=1000),
        Row.of(f"  gold scripts that pass their check, of {len(chosen)}", share, "", goal=0.99),
        Row.of("  development tasks that load, of 26", tasks.tasks.count("validation", "default"), ""),
    ]


def db_tasks(data: Path, one_in: int) -> Rows:
    """DBBench's development tasks, in SQLite and in a MariaDB of our own."""
    folder = needed(data / "dbbench")
    rows = dbbench(folder, "SQLite", {}, one_in)
    if shutil.which("mariadbd") is None:
        tell("db: mariadbd is not on PATH: its rows are left out")
        return rows
    with tempfile.TemporaryDirectory() as directory:
        server = PrivateMariaDB(Path(directory))
        try:
            server.start()
            server.prepare()
            return rows + dbbench(folder, "MariaDB", server.options(Path(directory)), one_in)
        finally:
            server.kill()


def dbbench(folder: Path, backend: str, options: Mapping[str, Any], one_in: int) -> Rows:
    """A change scores 1 when the tables' digest is the stored one; a question, when the answer is the stored one."""
    entry = load_entry("db", {"db": folder}, {"db": options})
    tasks = every(entry, "validation")
    changes = [task for task in tasks if task.data.changes][::one_in]
    questions = [task for task in tasks if not task.data.changes][::one_in]
    return [
        Row.of(f"db: DBBench's {len(questions)} questions, {backend}: gold answers that score 1",
               solved(entry, questions), "", goal=1.0),
        Row.of(f"  stored hashes reached, of {len(changes)}", solved(entry, changes), "", goal=DBBENCH_GOALS[backend]),
    ]  # fmt: skip


def kg_tasks(data: Path, one_in: int) -> Rows:
    """Questions about published triples, with made-up numbers."""
    entry = load_entry("kg", {"kg": needed(data / "kg_triples" / "FB15k-237")})
    tasks = [entry.tasks.by_index("test", level, index) for level in entry.tasks.levels for index in range(SAMPLE)]
    chosen = tasks[::one_in]
    return [
        Row.of("kg: levels with questions about FB15k-237", len(entry.tasks.levels), "", goal=6),
        Row.of(f"  that the expert solves, of {len(chosen)}", solved(entry, chosen), "", goal=1.0),
    ]


def sql_tasks(data: Path, one_in: int) -> Rows:
    """Spider's development questions."""
    folder = needed(data / "spider")
    entry = load_entry("sql", {"sql": folder})
    tasks = every(entry, "validation")
    dropped = len(json.loads((folder / "dev.json").read_text(encoding="utf-8"))) - len(tasks)
    return [
        Row.of("sql: Spider's gold queries that run", len(tasks), ""),
        Row.of("  of those, that score 1", solved(entry, tasks[::one_in]), "", goal=1.0),
        Row.of("  questions dropped, as their query cannot run", dropped, ""),
    ]


def webshop_goals(data: Path, one_in: int) -> Rows:
    """WebShop's small set of products, and AgentGym's recorded purchases in it."""
    entry = load_entry("webshop", {"webshop": needed(data / "webshop")})
    count = dialogues.count(entry.tasks)
    chosen = [entry.tasks.by_id(str(number)) for number in random.Random(1).sample(range(count), SAMPLE // one_in)]
    rows = [
        Row.of("webshop: synthetic goals of the 1,000 products", count, "", goal=6910),
        Row.of(f"  goals bought with reward 1 by the expert, of {len(chosen)}", solved(entry, chosen), "", goal=0.95),
    ]
    if "webshop" not in dialogues.present(data):
        return rows
    replays = dialogues.replay("webshop", data, every=one_in)
    answers = dialogues.answers_of(replays)
    form = dialogues.GAMES["webshop"].form
    return [
        *rows,
        Row.of(f"  recorded episodes that end with reward 1, of {len(replays)}", won(replays), ""),
        Row.of("  recorded observations that are identical", dialogues.alike(answers, str.strip), ""),
        Row.of("  identical but for the price cap, which is drawn", dialogues.alike(answers, form), ""),
    ]


def recorded_games(data: Path, one_in: int) -> Rows:
    """AgentGym's recorded episodes of the light games."""
    here = dialogues.present(data)
    rows = []
    if "babyai" in here:
        babyai = dialogues.replay("babyai", data, every=one_in)
        rows.append(Row.of(f"babyai: recorded episodes that succeed, of {len(babyai)}", won(babyai), "", goal=0.99))
    if "maze" in here:
        answers = dialogues.answers_of(dialogues.replay("maze", data, every=one_in))
        name = f"maze: recorded observations that are identical, of {len(answers)}"
        rows.append(Row.of(name, dialogues.alike(answers, str), "", goal=1.0))
    if "textcraft" in here:
        crafted = dialogues.replay("textcraft", data, every=one_in)
        rows.append(Row.of(f"textcraft: recorded episodes solved, of {len(crafted)}", won(crafted), "", goal=0.95))
    if not rows:
        raise Missing(f"no recordings in {data / 'trajectories'}")
    return rows


def sciworld_dialogues(data: Path, one_in: int) -> Rows:
    """AgentGym's recorded episodes in ScienceWorld."""
    if "sciworld" not in dialogues.present(data):
        raise Missing(f"no recordings in {data / 'trajectories' / 'sciworld'}")
    replays = dialogues.replay("sciworld", data, every=one_in)
    return [Row.of(f"sciworld: recorded episodes that reach 100, of {len(replays)}", won(replays), "")]


def alfworld_names(data: Path, one_in: int) -> Rows:
    """Games generated for the names in AgentGym's and AgentBench's lists."""
    entry = load_entry("alfworld", {"alfworld": needed(data / "alfworld")})
    tasks = [task for split in SPLITS for task in every(entry, split)]
    chosen = random.Random(0).sample(tasks, 40)[::one_in]
    return [
        Row.of("alfworld: names in the published lists that load", len(tasks), ""),
        Row.of(
            f"  games for them that the expert solves, of {len(chosen)}", solved(entry, chosen), "", goal=EXPERT_GOAL
        ),
    ]


def searchqa_questions(data: Path, one_in: int) -> Rows:
    """HotpotQA's questions with their paragraphs: gold answers, and the passages found by a search for the question."""
    entry = load_entry("searchqa", {"searchqa": needed(data / "searchqa")})
    tasks = every(entry, "test")[::one_in]
    corpus = tasks[0].data.corpus
    found = [{corpus.passages[n].title for n in corpus.search(task.data.question, 5)} for task in tasks]
    hits = sum(bool(titles & set(task.data.support)) for task, titles in zip(tasks, found, strict=True))
    return [
        Row.of("searchqa: passages of HotpotQA's questions", len(corpus.passages), "", goal=2958),
        Row.of(f"  questions that the expert answers, of {len(tasks)}", solved(entry, tasks), "", goal=1.0),
        Row.of("  with a supporting passage among the first five for the question", hits / len(tasks), "", goal=0.95),
    ]


def tau_tasks(data: Path, one_in: int) -> Rows:
    """tau-bench's published tasks with the scripted customer."""
    rows = []
    for name, folder in (("tau_airline", "airline"), ("tau_retail", "retail")):
        entry = load_entry(name, {name: needed(data / "tau_bench" / folder)})
        tasks = [task for split in SPLITS for task in every(entry, split)][::one_in]
        rows.append(
            Row.of(
                f"{name}: published tasks that the expert solves, of {len(tasks)}", solved(entry, tasks), "", goal=1.0
            )
        )
    return rows


def bfcl_tasks(data: Path, one_in: int) -> Rows:
    """BFCL's questions and dialogues, from its unpacked package."""
    entry = load_entry("function_calling", {"function_calling": needed(data / "bfcl_eval")})
    tasks = every(entry, "test")
    chosen = tasks[::one_in]
    return [
        Row.of("function_calling: BFCL's tasks that load", len(tasks), ""),
        Row.of(f"  gold calls that score 1, of {len(chosen)}", solved(entry, chosen), "", goal=0.999),
    ]


def lateral_thinking_puzzles(data: Path, one_in: int) -> Rows:
    """AgentBench's puzzles in both languages: its keys asked as questions, of the host that compares words."""
    entry = load_entry("lateral_thinking", {"lateral_thinking": needed(data / "ltp")})
    tasks = [task for split in SPLITS for task in every(entry, split)]
    chosen = tasks[::one_in]
    return [
        Row.of("lateral_thinking: AgentBench's puzzles that load", len(tasks), "", goal=140),
        Row.of(f"  of which all keys are found when asked for, of {len(chosen)}", solved(entry, chosen), "", goal=1.0),
    ]


def tool_tasks(data: Path, one_in: int) -> Rows:
    """AgentGym's tools: gold calls of the tasks that need no live service, and its recorded episodes."""
    rows = []
    for name, splits in (("todo", ("train", "test")), ("sheet", ("test",))):
        entry = load_entry(name, {name: needed(data / "tool_agentgym")})
        tasks = [task for split in splits for task in every(entry, split)][::one_in]
        label = f"{name}: AgentGym's tasks that gold calls solve in time, of {len(tasks)}"
        rows.append(Row.of(label, solved(entry, tasks), "", goal=EXPERT_GOAL))
    for name in ("todo", "weather", "movie"):
        if name in dialogues.present(data):
            replays = dialogues.replay(name, data, every=one_in)
            alike = dialogues.alike(dialogues.answers_of(replays), dialogues.GAMES[name].form)
            rows.append(Row.of(f"{name}: recorded observations that are identical", alike, "", goal=0.99))
            rows.append(Row.of(f"  recorded episodes that end with reward 1, of {len(replays)}", won(replays), ""))
    return rows


def experts(_: Path, one_in: int) -> Rows:
    """Run every environment's expert on the first generated test tasks of every level."""
    return [row for env in ENVIRONMENTS for row in expert(env, one_in)]


def expert(env: str, one_in: int = 1) -> Rows:
    """Return one row per level."""
    began = time.monotonic()
    entry = load_entry(env, {})
    rows = []
    for level in entry.tasks.levels:
        number = min(entry.tasks.count("test", level), NUM_GENERATED.get(env, SAMPLE))
        number = max(1, number // one_in)
        share = solved(entry, [entry.tasks.by_index("test", level, index) for index in range(number)])
        rows.append(Row.of(f"{env}: expert, {level}, of {number} test tasks", share, "", goal=EXPERT_GOAL))
    tell(f"  {env}: {time.monotonic() - began:.0f} s")
    return rows


PARTS: Final[Mapping[str, Callable[[Path, int], Rows]]] = {
    "os": os_tasks,
    "db": db_tasks,
    "sql": sql_tasks,
    "kg": kg_tasks,
    "webshop": webshop_goals,
    "dialogues": recorded_games,
    "sciworld": sciworld_dialogues,
    "alfworld": alfworld_names,
    "searchqa": searchqa_questions,
    "tau": tau_tasks,
    "function_calling": bfcl_tasks,
    "lateral_thinking": lateral_thinking_puzzles,
    "tools": tool_tasks,
    "experts": experts,
}
SMOKE: Final = {"only": [name for name in PARTS if name != "experts"]}
"""The experts are left out: in the conformance suite every expert plays every level."""


def needed(folder: Path) -> Path:
    """Return the folder; raise `Missing` if it does not exist."""
    if not folder.is_dir():
        raise Missing(f"there is no {folder}")
    return folder


def every(entry: Entry, split: Any) -> list[Task[Any]]:
    """Return all tasks of a split, of all levels."""
    return [
        entry.tasks.by_index(split, level, index)
        for level in entry.tasks.levels
        for index in range(entry.tasks.count(split, level))
    ]


def solved(entry: Entry, tasks: Sequence[Task[Any]]) -> float:
    """Return the share of the tasks that the expert solves."""
    with ThreadPoolExecutor(THREADS if entry.kind.is_blocking() else 1) as threads:
        faults = list(threads.map(lambda task: fault(entry, task), tasks))
    failing = [f"{task.task_id} ({why})" for task, why in zip(tasks, faults, strict=True) if why]
    return share(entry.kind.name, failing, len(tasks))


def fault(entry: Entry, task: Task[Any]) -> str | None:
    """Return why the expert does not solve a task; None if it does."""
    try:
        return None if solve(entry, task.data) else "not solved"
    except ExpertFault as error:
        return str(error)


def won(replays: Iterable[dialogues.Replay]) -> float:
    """Return the share of the recorded episodes that reach the full score here too."""
    played = list(replays)
    return share("recorded", [episode.item_id for episode in played if episode.score < 1.0], len(played))


def share(what: str, failing: Sequence[str], count: int) -> float:
    """Return the share of `count` that did not fail, and print those that did."""
    if failing:
        tell(f"  {what}: {len(failing)} of {count} fail: {', '.join(failing)}")
    return (count - len(failing)) / count


def tell(line: str) -> None:
    """Print progress, apart from the table."""
    print(line, file=sys.stderr, flush=True)


def measure(name: str, data: Path, one_in: int = 1) -> Rows:
    """Return the rows of a part; none if something it needs is missing."""
    began = time.monotonic()
    try:
        rows = PARTS[name](data, one_in)
    except Missing as lack:
        tell(f"{name}: left out, {lack}")
        return []
    tell(f"{name}: {time.monotonic() - began:.0f} s")
    return rows


def main() -> None:
    """Measure and record."""
    parser = BenchmarkCommand(__doc__, SIZES, smoke=SMOKE)
    parser.add_argument("--data", type=Path, default=dialogues.DATA, help="the folder of the benchmarks' files")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME",
                        help=f"of {', '.join(PARTS)}")  # fmt: skip
    options = parser.options()
    record("data", [row for name in options.only for row in measure(name, options.data, options.one_in)], options)


if __name__ == "__main__":
    main()
