"""The documented figures are those of the result files."""

from benchmarks.tables import PAGE, render


def test_the_page_is_what_the_results_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python -m benchmarks.tables"
