"""The conformance suite of strategies: silent about the sound, and one line for what is broken."""

import re
from pathlib import Path

import pytest
from gymfleet_rollout.strategy import STRATEGIES
from gymfleet_rollout.strategy_checks import examine

from tests.fixtures.paths import ROOT
from tests.fixtures.strategies import EVALUATES, EVALUATING, FORKS, HEAD, PLAYS_ON, RESTARTS, SIDE_BY_SIDE

ONE = PLAYS_ON.replace("\n", "\n    ").rstrip(" ")


@pytest.mark.parametrize("name", STRATEGIES.included())
def test_those_that_come_with_gymfleet_are_sound(name: str) -> None:
    assert examine(name) == []


@pytest.mark.parametrize("body", [FORKS, PLAYS_ON, RESTARTS, SIDE_BY_SIDE])
def test_those_that_branch_are_sound(tmp_path: Path, body: str) -> None:
    (tmp_path / "mine.py").write_text(HEAD + body)

    assert examine(str(tmp_path / "mine.py")) == []


def test_one_that_evaluates_is_sound(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(EVALUATING + EVALUATES)
    assert examine(str(tmp_path / "mine.py")) == []

    greedy = (
        "        from types import SimpleNamespace as Some\n"
        "        asked = [Some(trajectory=Some(score=0.0))] * 2\n"
        "        await ctx._parts.evaluator.totals(asked, timeout_s=1)\n"
    )
    (tmp_path / "greedy.py").write_text(EVALUATING + EVALUATES + greedy)
    assert examine(str(tmp_path / "greedy.py")) == ["it uses 4 evaluations, and its budget is 3"]


def test_that_of_the_guide_is_sound(tmp_path: Path) -> None:
    page = (ROOT / "docs/adding-a-strategy.md").read_text(encoding="utf-8")
    (tmp_path / "branch.py").write_text(page.split("```python\n")[1].split("```")[0])

    assert examine(str(tmp_path / "branch.py")) == []
    assert examine(str(tmp_path / "branch.py"), {"shared_turns": 2, "keep": 1}) == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param("        1 / 0", "it fails without a reason: StrategyError: .* ZeroDivisionError", id="raises"),
        pytest.param("        await ctx.open()", "exported no episode of the group", id="exports nothing"),
        pytest.param(
            "        try:" + ONE + "        except BudgetSpent: pass",
            r"it fails with a budget of \d+ \w+: .* no episode", id="loses what it has when the budget is spent",
        ),
        pytest.param(
            "        import random\n        self.options = Options(width=random.randrange(1, 60))\n" + FORKS,
            "with the same seed it plays other episodes", id="draws by itself",
        ),
        pytest.param(
            PLAYS_ON + "        await ctx._sessions._desk.open()",
            "1 sessions are open when it has played",
            id="opens by itself",
        ),
        pytest.param(
            PLAYS_ON + "        from gymfleet_contracts.rollout import Sampling\n"
            "        for _ in range(9): await ctx._parts.policy.generate((), max_tokens=99, sampling=Sampling(), "
            "stop_token_ids=())",
            "model_calls, and its budget is 5", id="asks the policy by itself",
        ),
        pytest.param(
            "        try:" + ONE + "        except BaseException as error:\n"
            "            if not isinstance(error, asyncio.CancelledError): raise\n"
            "            await asyncio.sleep(9)",
            r"it goes on for 1\.\d s when it is cancelled", id="takes its time",
        ),
        pytest.param(
            PLAYS_ON.replace(
                "            node = await ctx.act(node, reply)",
                "            import dataclasses\n"
                "            reply = dataclasses.replace(reply, token_ids=reply.token_ids[::-1])\n"
                "            node = await ctx.act(node, reply)",
            ),
            "it records a reply that the policy did not give", id="edits a reply",
        ),
        pytest.param("        raise asyncio.CancelledError", "StrategyError: it cancelled itself", id="cancels itself"),
        pytest.param("        await asyncio.Event().wait()", "it was not over after 0.5 s", id="never ends"),
    ],
)  # fmt: skip
def test_what_is_broken_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, reason: str) -> None:
    if "Event" in body:
        monkeypatch.setattr("gymfleet_rollout.strategy_checks.PATIENCE_S", 0.5)
    (tmp_path / "mine.py").write_text(HEAD + body)

    told = examine(str(tmp_path / "mine.py"))

    assert any(re.search(reason, line) for line in told), told
    assert all("\n" not in line for line in told)


def test_a_failure_cannot_be_hidden(tmp_path: Path) -> None:
    hides = "        try:" + ONE + "        except BudgetSpent: raise\n        except Exception: ctx.export(node)"
    (tmp_path / "mine.py").write_text(HEAD + hides)

    assert examine(str(tmp_path / "mine.py")) == [], "the failure counts, whatever was handed in"


def test_what_cannot_be_used_is_the_only_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("1 / 0")

    (told,) = examine(str(tmp_path / "mine.py"))

    assert "mine.py cannot be imported: ZeroDivisionError" in told
