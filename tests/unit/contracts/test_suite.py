"""Suites: what their files say, and AgentBench's overall score."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.recipe import RecipeError
from gymfleet_contracts.suite import Suite, load_suite

from tests.fixtures.paths import ROOT

SUITES = sorted((ROOT / "recipes" / "suites").glob("*.toml"))


def suite_of(*references: float | None) -> Suite:
    tables = [{"name": f"env{place}", "reference": reference} for place, reference in enumerate(references)]
    return Suite.model_validate({"name": "some", "environments": tables})


def test_overall_score_is_agentbenchs() -> None:
    """GPT-4's row and the inverse weights of table 3 of arXiv:2308.03688, whose overall score is 4.01."""
    suite = suite_of(10.8, 13.0, 13.9, 12.0, 3.5, 13.0, 30.7, 11.6)
    gpt4 = [0.424, 0.320, 0.588, 0.745, 0.166, 0.780, 0.611, 0.290]

    assert suite.overall(gpt4) == pytest.approx(4.01, abs=0.005)


def test_without_references_there_is_no_overall_score() -> None:
    assert suite_of(None, None).overall([0.5, 0.5]) is None


def refused(tables: list[dict[str, Any]], path: Path) -> str:
    lines = ['name = "some"']
    for table in tables:
        lines += ["[[environments]]", *(f"{key} = {value!r}" for key, value in table.items())]
    path.write_text("\n".join(lines))
    with pytest.raises(RecipeError) as error:
        load_suite(path)
    return str(error.value)


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ([{"name": "maze"}, {"name": "maze"}], "two tables are called maze: give them labels"),
        ([{"name": "maze", "reference": 5.0}, {"name": "wordle"}], "wordle lack a reference, which others have"),
        ([{"name": "maze", "metric": "speed"}], "metric"),
        ([{"name": "maze", "episodes": 0}], "episodes"),
        ([{"name": "maze", "tries": 2}], "tries"),
        ([], "environments"),
    ],
)  # fmt: skip
def test_unusable_files_are_refused_by_name(tables: list[dict[str, Any]], told: str, tmp_path: Path) -> None:
    message = refused(tables, tmp_path / "suite.toml")

    assert message.startswith(str(tmp_path / "suite.toml"))
    assert told in message


def test_missing_and_damaged_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "damaged.toml").write_text("name = ")
    with pytest.raises(RecipeError, match="is not readable TOML"):
        load_suite(tmp_path / "damaged.toml")
    with pytest.raises(RecipeError, match="no suite at"):
        load_suite(tmp_path / "absent.toml")


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_shipped_suites_are_called_as_their_files(path: Path) -> None:
    assert load_suite(path).name == path.stem


def test_the_example_of_the_page_is_a_suite() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "suites.md").read_text("utf-8"), re.DOTALL)

    suite = Suite.model_validate(tomllib.loads(block))

    assert [env.title for env in suite.environments] == ["webshop", "webshop_hard"]
