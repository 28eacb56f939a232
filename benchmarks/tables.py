"""`python -m benchmarks.tables` writes docs/benchmarks.md from benchmarks/results/*.json."""

import json
from pathlib import Path
from typing import Any, Final

from benchmarks.record import RESULTS

PAGE: Final = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_HEAD: Final = """# Benchmarks

Written by `python -m benchmarks.tables` from `benchmarks/results/*.json`: edit neither by hand.
Absolute figures on a shared machine are noisy; a baseline was measured side by side in the same run.
A commit with `+changes` was measured on a tree that had changes which were not committed yet.
"""
_COLUMNS: Final = ("name", "value", "unit", "baseline", "ratio", "goal", "met")


def render(results: Path = RESULTS) -> str:
    """The whole page."""
    parts = [_HEAD]
    for path in sorted(results.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        parts.append(f"## {path.stem}\n")
        parts.append(f"{document['hardware']} · commit {document['commit']} · `{document['command']}`\n")
        parts.append("| | value | unit | baseline | ratio | goal | met |\n|---|---:|---|---:|---:|---:|---|")
        parts.extend(_line(row) for row in document["rows"])
        parts.append("")
    return "\n".join(parts)


def _line(row: dict[str, Any]) -> str:
    return "| " + " | ".join(_cell(row[column]) for column in _COLUMNS) + " |"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
