"""The documented figures are those of the result files."""

from benchmarks.tables import ENVIRONMENTS_PAGE, PAGE, render, with_environments


def test_the_page_is_what_the_results_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python -m benchmarks.tables"


def test_the_environments_page_has_the_figures_of_the_results() -> None:
    page = ENVIRONMENTS_PAGE.read_text(encoding="utf-8")

    assert page == with_environments(page), "run: python -m benchmarks.tables"
    assert "| `alfworld` |" in page
