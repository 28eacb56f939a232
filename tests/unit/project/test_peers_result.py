"""Other people's clients are run by `make peers`, not by each `make test`: its result must speak of these sources."""

import json
import re

from tests.fixtures.paths import ROOT
from tests.peers.matrix import RESULT, sources


def test_the_result_is_of_these_sources() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))

    assert result["sources"] == sources(), (
        "what other people's clients speak with has changed: run `make peers`, and commit tests/peers/result.json"
    )


def test_every_test_with_a_peer_is_in_the_result() -> None:
    passed = json.loads(RESULT.read_text(encoding="utf-8"))["passed"]
    marked = [
        name
        for path in (ROOT / "tests/integration").glob("test_*.py")
        for name in re.findall(
            r"@pytest\.mark\.peers\n(?:@.*\n)*(?:async )?def (test_\w+)", path.read_text(encoding="utf-8")
        )
    ]

    assert len(marked) > 10
    assert {name for name in marked if not any(f".{name}" in case for case in passed)} == set()
    assert any("[openenv]" in case for case in passed), "the benchmark against OpenEnv's server"
