"""The documented figures are those of the result files."""

from benchmarks.tables import ENVIRONMENTS_PAGE, PAGE, TABLES_PAGE, headlines, render, with_environments


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
