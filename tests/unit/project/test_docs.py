"""The docs against the code: every key, every setting, every link, and the example that runs."""

import re
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from gymfleet_contracts.recipe import Recipe
from gymfleet_env_server.catalogue import load_entry
from gymfleet_envs.environment import EngineLost
from gymfleet_trainer.model.families import FAMILIES, REFUSED
from gymfleet_trainer.run.plan import stages_of

from scripts import models_page
from scripts.reference_tables import recipe_page, recipe_tables, settings_page, tables_on
from tests.fixtures.paths import ROOT

REFERENCE = ROOT / "docs/reference.md"
GUIDE = ROOT / "docs/operations.md"
ENVIRONMENT_GUIDE = ROOT / "docs/adding-an-environment.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_tables_of_settings_and_recipe_keys_are_those_of_the_models() -> None:
    told = "`make tables` writes them from the fields and the docstrings below them"

    assert (ROOT / "docs/recipes.md").read_text(encoding="utf-8") == recipe_page(), told
    assert REFERENCE.read_text(encoding="utf-8") == settings_page(), told
    assert recipe_page().count("\n| `") > 100
    assert settings_page().count("| `GYMFLEET_") > 100


def test_families_and_refusals_of_the_page_are_those_of_the_trainer() -> None:
    assert models_page.PAGE.read_text(encoding="utf-8") == models_page.models_page(), "`make tables` writes them"
    assert models_page.models_page().count("\n| ") > len(FAMILIES) + len(REFUSED)


def test_every_table_of_a_recipe_is_on_its_page() -> None:
    tables = recipe_tables()

    assert {"environments.schedule", "stages", "options of filter", "stages.optimizer of sft", "reward.goal"} <= {
        *tables
    }
    page = recipe_page()
    assert tables.keys() - tables_on(page) == set()
    assert [name for name, rows in tables.items() if "\n".join(rows) not in page] == []


def test_examples_of_the_recipe_page_are_recipes() -> None:
    examples = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/recipes.md").read_text(encoding="utf-8"), re.DOTALL)
    needed = {"name": "example", "environments": [{"name": "babyai"}], "model": {"path": "model"}}

    plans = [[stage.name for stage in stages_of(Recipe.model_validate(needed | tomllib.loads(e)))] for e in examples]

    rounds = [f"round{number}.{name}" for number in (1, 2) for name in ("collect", "filter", "sft", "measure")]
    assert plans == [
        ["demonstrations", "filter"], ["demonstrations", "augment", "sft"], ["apart", "negatives", "mixed", "sft"],
        rounds, ["reinforce", "measure"], ["reinforce"],
    ]  # fmt: skip


def test_examples_of_the_page_on_preferences_are_stages() -> None:
    page = (ROOT / "docs/preferences.md").read_text(encoding="utf-8")
    needed = {"name": "example", "environments": [{"name": "babyai"}], "model": {"path": "model"}}
    given = [tomllib.loads(example)["stages"] for example in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)]
    needy = [[*([] if stages[0]["kind"] == "collect" else [{"kind": "collect"}]), *stages] for stages in given]

    plans = [stages_of(Recipe.model_validate(needed | {"stages": stages})) for stages in needy]

    assert [plan[-1].options.algorithm for plan in plans] == ["dpo", "dpo", "simpo", "ipo"]


def sources(*roots: str) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for root in roots for path in sorted((ROOT / root).rglob("*.py")))


def test_metrics_of_the_reference_page_are_those_of_the_services() -> None:
    documented = set(re.findall(r"`(gymfleet_[a-z_]+)`", REFERENCE.read_text(encoding="utf-8")))
    code = sources("services", "kit").replace("{prefix}_", "gymfleet_env_")
    declared = re.findall(r'(Counter|Gauge|Histogram)\w*\(\s*f?"(gymfleet_[a-z_]+)"', code)
    # A counter is asked for, and documented, as `NAME_total`.
    served = {f"{name.removesuffix('_total')}_total" if kind == "Counter" else name for kind, name in declared}

    assert len(served) > 40
    assert served - documented == set(), "the page lists all"
    missing = {name for name in documented if f'"{name.removesuffix("_total")}' not in code}
    assert missing == set(), "the page names metrics that do not exist"


def test_log_lines_of_the_docs_are_logged() -> None:
    table = REFERENCE.read_text(encoding="utf-8").split("## Log lines")[1]
    lost = GUIDE.read_text(encoding="utf-8").split("## A session was lost")[1].split("## When something fails")[0]
    events = {event for row in re.findall(r"^\| (`[a-z_.`, ]+`) \|", table, re.MULTILINE) for event in row.split(", ")}
    events |= set(re.findall(r"`[a-z]+\.[a-z_]+`", lost))

    code = sources("services", "kit", "clients")
    assert len(events) > 40
    assert {event for event in events if f'"{event.strip("`")}"' not in code} == set()


def test_every_log_line_of_gateway_and_env_server_that_warns_is_documented() -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    code = sources("services/env_gateway", "services/env_server")
    warned = set(re.findall(r'log\.(?:warning|error)\(\s*"([a-z_.]+)"', code))

    assert {event for event in warned if f"`{event}`" not in text} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))

    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_environment_of_the_guide_is_solved_by_its_expert(tmp_path: Path) -> None:
    source = next(
        block
        for block in re.findall(r"```python\n(.*?)```", ENVIRONMENT_GUIDE.read_text(encoding="utf-8"), re.DOTALL)
        if "Environment[int]" in block
    )
    (tmp_path / "guess.py").write_text(source, encoding="utf-8")
    entry = load_entry(str(tmp_path / "guess.py"), {})

    for index in range(20):
        environment = entry.make()
        environment.reset(entry.tasks.by_index("test", "only", index).data, 0)
        assert not environment.step("-1").action_valid
        scores: list[float] = []
        while not scores or scores[-1] < 1:
            move = environment.expert()
            assert move is not None
            scores.append(environment.step(move.action).score)
        assert len(scores) <= 10


def test_awaiting_environment_of_the_guide_is_played(tmp_path: Path) -> None:
    guide = ENVIRONMENT_GUIDE.read_text(encoding="utf-8")
    source = next(
        block for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "AsyncEnvironment" in block
    )
    (tmp_path / "desk.py").write_text(source, encoding="utf-8")

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = self.path.removeprefix("/number/")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(number.encode())

        def log_message(self, *_: object) -> None:
            """Quietly."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        entry = load_entry(str(tmp_path / "desk.py"), {}, {"desk": {"url": f"http://127.0.0.1:{service.server_port}"}})
        task = entry.tasks.by_index("test", "only", 0).data
        desk = entry.make()
        desk.reset(task, 0)
        assert desk.step("ask").observation == str(task)
        assert desk.step(str(2 * task)).score == 1
        service.shutdown()
    with pytest.raises(EngineLost):
        desk.step("ask")
