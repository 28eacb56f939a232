"""`python -m benchmarks.tables` writes the figures in the docs from the result files.

All tables go to benchmarks/results/README.md, the headline figures and every missed goal to docs/benchmarks.md,
the tables of four more pages into those pages, and curves to docs/figures.
"""

import json
from pathlib import Path
from typing import Any, Final

from benchmarks.capacity_page import LOADS, summary_table, without_gpu, worked_example
from benchmarks.figures import FIGURES
from benchmarks.methods_page import drawn, methods_section
from benchmarks.record import RESULTS, cell
from benchmarks.search_page import learned_section, search_section
from benchmarks.sources import digest

PAGE: Final = Path(__file__).parents[1] / "docs" / "benchmarks.md"
TABLES_PAGE: Final = RESULTS / "README.md"
ENVIRONMENTS_PAGE: Final = PAGE.with_name("environments.md")
CAPACITY_PAGE: Final = PAGE.with_name("capacity.md")
METHODS_PAGE: Final = PAGE.with_name("methods.md")
SEARCH_PAGE: Final = PAGE.with_name("search.md")
_BEGIN: Final = "<!-- figures, written by python -m benchmarks.tables -->"
_END: Final = "<!-- end of figures -->"
_PUBLISHED: Final = {
    "sciworld": "10 to 40 steps/s, a Java machine of 150 MB or more for each episode",
    "webshop": "a thread for each session, none given back: dead after 2.5 hours of training",
    "alfworld": "one process for all, on the stock engine",
}
_WORKED: Final = ("textcraft", "sciworld")
_HEAD: Final = """# Results

Written by `python -m benchmarks.tables` from the JSON files beside this page: edit neither by hand.
Absolute figures on a shared machine are noisy; a baseline was measured side by side in the same run.
A commit with `+changes` was measured on a tree that had changes which were not committed yet.
**Older than the code** stands where what a benchmark measures has changed since: run it again with `--publish`.
Without that option, figures go to `runs/benchmarks` and stay yours; `--smoke` only shows that a benchmark runs.
"""
_HEADLINES_HEAD: Final = """# Benchmarks

What gymfleet does on two cores without a GPU, and its trainer on one H100, in one page ([what ran
there](models.md#what-ran-on-one)). Each figure comes from a benchmark that you can run again;
[all tables](../benchmarks/results/README.md) have hardware, command and commit, and say which are older than the code.
Written by `make tables`.

| what | figure | baseline | goal | met | measured by |
|---|---:|---:|---:|---|---|
"""
_MISSED_HEAD: Final = """
## Goals that were missed

| what | figure | goal | measured by |
|---|---:|---:|---|
"""
_HEADLINES: Final = (
    ("quickstart", "seed 0: gain", "share of held-out tasks won by the quickstart's training"),
    ("quickstart", "seed 0: training and measuring", "time of the quickstart"),
    ("quickstart", "seed 0: worst mean |difference| in log-probability of all publishes",
     "log-probabilities of engine and trainer, worst of all published versions"),
    ("alfworld", "seed 0: gain", "share of ALFWorld's held-out tasks won by a training of 14 minutes"),
    ("stack-compose", "recoveries within the goal", "kills of any process that the stack recovered from in 15 s"),
    ("stack-compose", "groups trained twice", "groups trained twice after them"),
    ("workers", "a worker killed: both successors joined", "a training worker killed: its successors train"),
    ("gateway", "stream: gateway with journal, over direct", "steps through the gateway, beside none"),
    ("openenv", "  speed, times OpenEnv's", "speed at 512 sessions, beside OpenEnv's own server"),
    ("agentgym", "16 clients, front with Redis, over a server of AgentGym's kind",
     "16 AgentGym clients, beside a server of AgentGym's kind"),
    ("agentgym", "64 clients, front with Redis, over a server of AgentGym's kind", "64 AgentGym clients, beside it"),
    ("sessions", "sessions held at once, before the first step", "sessions open at once"),
    ("sessions", "memory of an idle session", "memory of an idle session"),
    ("sessions", "fork into 8 children, p99", "eight children of a session, p99"),
    ("chaos", "bad network: episodes finished", "episodes finished on a network that loses and doubles messages"),
    ("chaos", "  steps executed twice", "steps executed twice there"),
    ("overload", "episodes finished at 10x load", "episodes under ten times the load, beside the full load"),
    ("isolation", "beside 8 busy sessions: p99 of a light step", "p99 of a light step beside eight busy sessions"),
    ("soak", "memory at the end, all", "memory after a million sessions, beside that after the first"),
    ("envs", "sciworld: served", "steps of ScienceWorld"),
    ("envs", "alfworld: class as a multiple of it", "steps of ALFWorld, times textworld's own environment"),
    ("data", "babyai: recorded episodes that succeed, of 140", "AgentGym's recorded BabyAI episodes that end the same"),
    ("rollout", "embedded: share of the bare engine", "replies while episodes run, as a share of the bare engine"),
    ("rewards", "goal, format, length, 2 processes, with reading and writing",
     "episodes scored by three rules, with reading and writing their records"),
    ("records", "convert to JSON", "records of AgentTraj-L's form converted, of a million"),
    ("records", "filter by length and duplicates", "of these filtered by length and duplicates"),
    ("records", "split", "of these split by task"),
    ("demonstrations", "seed 0: held-out success, plain", "held-out tasks won by imitating plain demonstrations"),
    ("demonstrations", "seed 0, all: held-out success",
     "by imitating augmented and filtered ones, at equal tokens"),
    ("variants-formats", "react: success at equal steps, mean of 3 seeds",
     "held-out tasks won after 5,000 turns, replies in ReAct's form"),
    ("variants-formats", "plain: success at equal steps, mean of 3 seeds", "the same with plain actions"),
    ("variants-exploration", "off: success at equal steps, mean of 2 seeds",
     "in batches of 16 groups, without any option that explores"),
    ("variants-exploration", "hints: success at equal steps, mean of 2 seeds", "with hints that fade"),
    ("trainer", "update, micro-batches of 16384", "an update, beside a plain padded loop"),
    ("gpu-checkpointing", "update, packed 16384", "updates of a 0.6B model on one H100, layers recomputed"),
    ("gpu", "update, packed 16384", "the same with all activations kept"),
    ("gpu-compile", "update, packed 16384", "the same with compiled layers too, `trainer.compile`"),
    ("gpu-check", "parity: mean |difference| in log-probability of engine and trainer, bfloat16",
     "log-probabilities of engine and trainer there, in bfloat16"),
)  # fmt: skip
_OLDER: Final = "**older than the code**"
_COLUMNS: Final = ("name", "value", "unit", "baseline", "ratio", "goal", "met")


def render(results: Path = RESULTS) -> str:
    """Return the page of all tables."""
    parts = [_HEAD]
    for path in sorted(results.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        parts.append(f"## {path.stem}\n")
        parts.append(f"{_origin(path.stem, document)}\n")
        parts.append("| | value | unit | baseline | ratio | goal | met |\n|---|---:|---|---:|---:|---:|---|")
        parts.extend(_line(row) for row in document["rows"])
        parts.append("")
    return "\n".join(parts)


def headlines(results: Path = RESULTS) -> str:
    """Return the page of headline figures and missed goals."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8"))["rows"] for path in sorted(results.glob("*.json"))}
    lines = []
    for benchmark, name, what in _HEADLINES:
        row = next(row for row in found[benchmark] if row["name"] == name)
        cells = (what, _figure(row), _cell(row["baseline"]), _cell(row["goal"]), _cell(row["met"]), _link(benchmark))
        lines.append("| " + " | ".join(cells) + " |")
    missed = [
        "| " + " | ".join((f"{row['name'].strip()}", _figure(row), _cell(row["goal"]), _link(benchmark))) + " |"
        for benchmark, rows in found.items()
        for row in rows
        if row["met"] is False
    ]
    return _HEADLINES_HEAD + "\n".join(lines) + "\n" + _MISSED_HEAD + "\n".join(missed) + "\n"


def environments_table(results: Path = RESULTS) -> str:
    """Return the part of docs/environments.md between its marks."""
    document = json.loads((results / "envs.json").read_text(encoding="utf-8"))
    figures: dict[str, dict[str, dict[str, Any]]] = {}
    for row in document["rows"]:
        env, _, metric = row["name"].partition(": ")
        figures.setdefault(env, {})[metric] = row
    columns = ("", "steps/s, served", "p99, ms", "create, ms", "MB per session", "steps/s, class alone",
               "bare engine, steps/s", "AgentGym's server, as published")  # fmt: skip
    lines = [
        _origin("envs", document),
        "",
        f"| {' | '.join(columns)} |",
        "|---|---:|---:|---:|---:|---:|---|---|",
    ]
    for env, rows in figures.items():
        shown = [_cell(rows[name]["value"]) for name in ("served", "p99 of a step", "create", "memory per session")]
        shown.append(_cell(rows["served"]["baseline"]))
        engine = next((name for name in rows if name.startswith("class beside ")), None)
        bare = "" if engine is None else f"{_cell(rows[engine]['baseline'])}, {engine.removeprefix('class beside ')}"
        lines.append("| " + " | ".join((f"`{env}`", *shown, bare, _PUBLISHED.get(env, ""))) + " |")
    return "\n".join(lines)


def capacity_tables(results: Path = RESULTS) -> str:
    """Return the part of docs/capacity.md between its marks."""
    document = json.loads((results / "costs.json").read_text(encoding="utf-8"))
    parts = [_origin("costs", document)]
    parts += [f"### {env}\n\n{summary_table(env, results)}" for env in LOADS]
    parts += [f"### {env}, 10,000 episodes, worked out\n\n{worked_example(env, 10_000, results)}" for env in _WORKED]
    parts.append(f"### Two cores and no GPU, a model of 0.9 million parameters\n\n{without_gpu(results)}")
    return "\n\n".join(parts)


def with_environments(page: str, results: Path = RESULTS) -> str:
    """Return the page with a new table."""
    return _renewed(page, environments_table(results))


def with_capacity(page: str, results: Path = RESULTS) -> str:
    """Return the page with new tables."""
    return _renewed(page, capacity_tables(results))


def with_methods(page: str, results: Path = RESULTS) -> str:
    """Return the page with new tables."""
    return _renewed(page, methods_section(results))


def with_search(page: str, results: Path = RESULTS) -> str:
    """Return the page with new tables."""
    figures = f"{search_section(results)}\n\n### Learned from, on a hard level\n\n{learned_section(results)}"
    return _renewed(page, figures)


def _origin(name: str, document: dict[str, Any]) -> str:
    origin = f"{document['hardware']} · commit {document['commit']} · `{document['command']}`"
    return origin if document.get("sources") == digest(name) else f"{origin} · {_OLDER}"


def _renewed(page: str, figures: str) -> str:
    head, mark, rest = page.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    return f"{head}{mark}\n{figures}\n{end}{tail}"


def _figure(row: dict[str, Any]) -> str:
    return f"{_cell(row['value'])} {row['unit']}".strip()


def _link(benchmark: str) -> str:
    return f"[{benchmark}](../benchmarks/results/README.md#{benchmark})"


def _line(row: dict[str, Any]) -> str:
    return "| " + " | ".join(_cell(row[column]) for column in _COLUMNS) + " |"


def _cell(value: object) -> str:
    return cell(value, missing="", no="**no**").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(headlines(), encoding="utf-8")
    TABLES_PAGE.write_text(render(), encoding="utf-8")
    ENVIRONMENTS_PAGE.write_text(with_environments(ENVIRONMENTS_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    CAPACITY_PAGE.write_text(with_capacity(CAPACITY_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    METHODS_PAGE.write_text(with_methods(METHODS_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    SEARCH_PAGE.write_text(with_search(SEARCH_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    FIGURES.mkdir(exist_ok=True)
    for file_name, svg in drawn().items():
        (FIGURES / file_name).write_text(svg, encoding="utf-8")
