"""The logs of a service."""

import subprocess
import sys
from typing import Final

PARSES: Final = """
import ast
from gymfleet_kit.logs import configure_logs
configure_logs("env-shard")
ast.parse("f(1or 2)", mode="eval")
ast.parse("1or 2", "<string>", "eval")
ast.parse("1or 2", "plugin.py", "eval")
"""


def test_what_models_write_badly_is_no_line_of_the_log() -> None:
    told = subprocess.run([sys.executable, "-c", PARSES], capture_output=True, text=True, timeout=60, check=True).stderr

    assert [line for line in told.splitlines() if "Warning" in line] == [
        "plugin.py:1: SyntaxWarning: invalid decimal literal"
    ]
