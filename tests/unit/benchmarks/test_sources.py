"""The hash of what a benchmark measures: code counts, and what is said about it does not."""

from pathlib import Path

import pytest

from benchmarks.sources import digest_of

SOURCE = '''"""A module."""

# It adds.
TEXT = """
# no comment

"""
"""About TEXT."""


def add(a: int, b: int) -> int:
    """Add.

    At length.
    """
    return a + b
'''


def digest(directory: Path, source: str) -> str:
    """Of a folder with one module."""
    (directory / "module.py").write_text(source, encoding="utf-8")
    return digest_of([directory.name], directory.parent)


@pytest.mark.parametrize(
    ("said", "otherwise"),
    [
        pytest.param('"""A module."""', '"""Another\n\nmodule: é."""', id="the module's docstring"),
        pytest.param("# It adds.\n", "", id="a comment"),
        pytest.param('"""About TEXT."""\n', "", id="the docstring of a constant"),
        pytest.param("    At length.\n", "    At greater length.\n\n    And more.\n", id="a function's docstring"),
    ],
)
def test_what_is_said_about_code_does_not_count(tmp_path: Path, said: str, otherwise: str) -> None:
    changed = SOURCE.replace(said, otherwise)

    assert changed != SOURCE
    assert digest(tmp_path, changed) == digest(tmp_path, SOURCE)


@pytest.mark.parametrize(
    ("code", "otherwise"),
    [
        pytest.param("a + b", "a - b", id="an operator"),
        pytest.param("# no comment\n", "", id="a line of a string that looks like a comment"),
        pytest.param('comment\n\n"""', 'comment\n"""', id="a blank line of a string"),
        pytest.param("    return a + b", '    """Add."""; return a - b', id="code beside a docstring"),
        pytest.param("    return a + b", "    if a:\n        return a + b", id="a level of indentation"),
    ],
)
def test_code_counts(tmp_path: Path, code: str, otherwise: str) -> None:
    changed = SOURCE.replace(code, otherwise)

    assert changed != SOURCE
    assert digest(tmp_path, changed) != digest(tmp_path, SOURCE)


def test_a_file_has_its_place(tmp_path: Path) -> None:
    before = digest(tmp_path, SOURCE)
    (tmp_path / "module.py").rename(tmp_path / "other.py")

    assert digest_of([tmp_path.name], tmp_path.parent) != before


def test_of_recipes_every_character_counts(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("a = 1  # one\n", encoding="utf-8")
    before = digest_of([tmp_path.name], tmp_path.parent)
    recipe.write_text("a = 1\n", encoding="utf-8")

    assert digest_of([tmp_path.name], tmp_path.parent) != before
