"""The documented figures are those of the result files."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.figures import FIGURES
from benchmarks.methods_page import drawn, height, methods_section
from benchmarks.tables import (
    ENVIRONMENTS_PAGE,
    METHODS_PAGE,
    PAGE,
    TABLES_PAGE,
    headlines,
    render,
    with_environments,
    with_methods,
)


def test_the_pages_are_what_the_results_say() -> None:
    assert TABLES_PAGE.read_text(encoding="utf-8") == render(), "run: python -m benchmarks.tables"
    assert PAGE.read_text(encoding="utf-8") == headlines(), "run: python -m benchmarks.tables"


def test_the_page_of_headlines_names_every_missed_goal() -> None:
    missed = [line.split(" | ")[0].strip("| ") for line in render().splitlines() if "**no**" in line]

    told = PAGE.read_text(encoding="utf-8").partition("## Goals that were missed")[2]
    assert len(missed) > 5
    assert [name for name in missed if f"| {name} |" not in told] == []


def test_the_environments_page_has_the_figures_of_the_results() -> None:
    page = ENVIRONMENTS_PAGE.read_text(encoding="utf-8")

    assert page == with_environments(page), "run: python -m benchmarks.tables"
    assert "| `alfworld` |" in page


def test_the_page_of_methods_has_the_figures_and_curves_of_the_results() -> None:
    page = METHODS_PAGE.read_text(encoding="utf-8")

    assert page == with_methods(page), "run: python -m benchmarks.tables"
    assert {path.name for path in FIGURES.glob("*.svg")} == set(drawn()), "run: python -m benchmarks.tables"
    for name, svg in drawn().items():
        assert (FIGURES / name).read_text(encoding="utf-8") == svg, "run: python -m benchmarks.tables"


def test_a_method_has_a_row_and_a_panel(tmp_path: Path) -> None:
    runs = [
        {
            "method": "grpo", "seed": seed, "success_before": 0.2, "success": success, "interval": [0.1, 0.9],
            "env_steps": 1000 + seed, "tokens_trained": 500_000, "collecting_s": 60.0, "training_s": 30.0,
            "memory_mib": 2048.0, "processors": 1, "curve": [[0, 0.2], [500, 0.3], [1000 + seed, 0.45]],
        }
        for seed, success in enumerate((0.4, 0.6))
    ]  # fmt: skip
    document = {"hardware": "a machine", "runs": runs}
    (tmp_path / "methods.json").write_text(json.dumps(document), encoding="utf-8")

    row = next(line for line in methods_section(tmp_path).splitlines() if line.startswith("| `grpo` |"))

    assert "| 20.0 % | 50.0 % | 10.0 % to 90.0 % | 40.0 %, 60.0 % |" in row
    assert "| 1,000 | 500,000 | 60 | 30 | 2,048 |" in row
    assert re.search(
        r"^Runs that are still to be done: all of `agent_evol`, .*, and 1 of the other methods'\.$",
        methods_section(tmp_path),
        re.MULTILINE,
    )
    assert drawn(tmp_path)["methods.svg"] == drawn(tmp_path)["methods.svg"]
    assert "grpo" in drawn(tmp_path)["methods.svg"]


@pytest.mark.parametrize(
    ("curve", "expected"), [([(0.0, 0.2), (50.0, 0.4), (100.0, 0.4)], 0.35), ([(0.0, 0.2), (0.0, 0.5)], 0.5)]
)
def test_the_height_of_a_curve(curve: list[tuple[float, float]], expected: float) -> None:
    assert height(curve) == pytest.approx(expected)
