"""Runs every test with other people's programs, and writes down of which sources their passing speaks."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.sources import digest_of
from tests.fixtures.paths import ROOT

RESULT: Final = Path(__file__).with_name("result.json")
SOURCES: Final = (
    "contracts", "kit", "clients/python", "clients/conformance", "services/env_server", "services/env_gateway",
    "tests/peers",
    "requirements/peers.txt", "benchmarks/bench_openenv.py", "tests/integration/test_openenv_front.py",
    "tests/integration/test_mcp_front.py", "tests/integration/test_conformance_kit.py",
)  # fmt: skip
"""What the peers speak with, and what they say."""


def sources() -> str:
    """The hash of `SOURCES` as they are now."""
    return digest_of(SOURCES, ROOT)


def main() -> None:
    """Run; the result is written when all have passed, and the exit code is pytest's."""
    spoken_of = sources()
    with TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "peers", f"--junitxml={report}", "tests/integration"]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if code:
            raise SystemExit(code)
        passed = sorted(
            f"{case.get('classname', '').removeprefix('tests.')}.{case.get('name')}"
            for case in ET.parse(report).getroot().iter("testcase")  # noqa: S314 - pytest's own
            if case.find("skipped") is None
        )
    RESULT.write_text(json.dumps({"sources": spoken_of, "passed": passed}, indent=2) + "\n", encoding="utf-8")
    print(f"{len(passed)} passed; commit {RESULT.relative_to(ROOT)}")  # noqa: T201 - a program's own words


if __name__ == "__main__":
    main()
