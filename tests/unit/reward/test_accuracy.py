"""Mathematical answers: what math-verify says of them, and what hostile ones come to."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.reward import ScoreRequest
from gymfleet_contracts.trajectory import Trajectory
from gymfleet_reward.component import ComponentError
from gymfleet_reward.components.accuracy import Accuracy, AccuracyOptions
from gymfleet_reward.composer import Scorer
from gymfleet_reward.maths.pool import POOL, MathPool, VerifierFailed
from gymfleet_reward.maths.verdict import Verdict

from tests.fixtures.rewards import make_spec
from tests.fixtures.trajectories import make_trajectory, make_turn

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    yield
    POOL.close()


def answering(answer: str | None, gold: Any, sample: int = 0) -> Trajectory:
    turn = make_turn(2).model_copy(update={"action": answer, "info": {"gold": gold}})
    return make_trajectory(turns=(make_turn(2), turn), sample=sample)


def raw(answer: str | None, gold: Any, **options: Any) -> Any:
    component = Accuracy(AccuracyOptions.model_validate({"ground_truth_from": "info.gold", **options}))
    return asyncio.run(component.score(answering(answer, gold)))


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        ("0.5", "1/2", 1.0),
        (r"The answer is $\boxed{0.5}$", r"$\frac{1}{2}$", 1.0),
        (r"$\frac12$", 0.5, 1.0),
        ("$(x+1)^2$", "$x^2+2x+1$", 1.0),
        ("$(x+1)^2$", "$x^2+2x+2$", 0.0),
        ("So he sold 72 clips.", 72, 1.0),
        ("1,200", "1200", 1.0),
        ("50%", "1/2", 1.0),
        (r"He pays \$50,000 + \$20,000 = \$70,000.", "70000", 1.0),
        (r"\$50,000", "70000", 0.0),
        (r"$\$70,000$", "70000", 1.0),
        ("18.9", r"\$18.90", 1.0),
        ("1", 1e-07, 0.0),
        ("1", 1e22, 0.0),
        ("$10^{22}$", 1e22, 1.0),
        ("0.000015", 1.5e-05, 1.0),
        ("1e3", "1000", 1.0),
        ("1e3", "1", 0.0),
        ("It is 1e3, not less.", "1000", 1.0),
        (r"$\{2, 1\}$", r"$\{1, 2\}$", 1.0),
        ("$x=3$", "$3$", 1.0),
        ("$3$", ["$2$", "$3$"], 1.0),
        ("$3+2x$", "2x+3", 1.0),
        ("2x + 3", "2x+3", 1.0),
        ("<answer>3</answer>", "2x+3", 0.0),
        ("So it is $\\boxed{2x+3}$.", "2x+3", 1.0),
        ("$x^2$", "x^2+1", 0.0),
        (r"$\frac12$", r"\frac{1}{2}", 1.0),
        (r"\dfrac{1}{2}", r"\frac{1}{2}", 1.0),
        ("$3$", r"3\sqrt{2}", 0.0),
        ("$(1,2)$", "(1, 2)", 1.0),
        ("$(2,1)$", "(1, 2)", 0.0),
        ("$x$", "x", 1.0),
        (r"$\boxed{y^2 + xy + x^2}$", "x^2 + xy + y^2", 1.0),
        ("4", "-2xy + 4", 0.0),
        (r"$\boxed{\begin{pmatrix} -1 \\ 2 \end{pmatrix}}$", r"\begin{pmatrix} -1 \\ 2 \end{pmatrix}", 1.0),
        (r"\begin{pmatrix} 7 \\ 2 \end{pmatrix}", r"\begin{pmatrix} -1 \\ 2 \end{pmatrix}", 0.0),
        (r"\boxed{\begin{pmatrix} 1 & 2 \end{pmatrix}}", r"\left( \begin{array}{ccc} 1 & 2 \end{array} \right)", 1.0),
        (r"\boxed{1 + \sqrt{\alpha}}", r"\sqrt{\alpha} + 1", 1.0),
        ("$3, 2$", "2 or 3", 1.0),
        ("15", "15 cm", 1.0),
        (r"\boxed{15}", r"15\mbox{ inches}", 1.0),
        ("So it is 0.5", r"\frac12", 1.0),
        ("So x = 5", "x=5", 1.0),
        (r"$\text{Evelyn}$", r"\text{Evelyn}", 1.0),
        ("10", r"10 \text{ square feet}", 1.0),
        ("18", r"\$18", 1.0),
        ("5", "The answer is 5", 1.0),
        ("5", "about 5", 1.0),
        ("no idea", "3", 0.0),
        ("", "3", 0.0),
        (None, "3", 0.0),
    ],
)
def test_it_says_what_math_verify_says(answer: str | None, gold: Any, value: float) -> None:
    assert raw(answer, gold) == value


@pytest.mark.parametrize("gold", ["blah blah", "", "Yes"])
def test_a_right_answer_that_cannot_be_read_makes_no_reward_where_open_r1_gives_one(gold: str) -> None:
    for answer in (gold, None):
        with pytest.raises(ComponentError, match=r"info\.gold is nothing that math-verify reads"):
            raw(answer or "3", gold)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param("9**9**9", id="a tower of powers"),
        pytest.param("$" + "x+" * 50_000 + "1$", id="100 kB of LaTeX"),
        pytest.param("9" * 2_000_000, id="2 MB"),
        pytest.param("9^9^9^9", id="a tower of powers in LaTeX"),
    ],
)
def test_a_hostile_answer_is_wrong_within_its_limits(answer: str) -> None:
    started = time.monotonic()

    assert raw(answer, "9", max_cpu_s=0.3) == 0.0
    assert raw(answer, "x", max_cpu_s=0.3) == 0.0

    assert time.monotonic() - started < 60
    assert raw("9", "9") == 1.0, "the service goes on"


def test_a_hostile_answer_keeps_no_thread_busy_before_it_is_compared() -> None:
    started = time.process_time()

    assert raw("\\" + "text" * 24_000, "2x+3", max_cpu_s=0.3) == 0.0

    assert time.process_time() - started < 1.0


def test_too_costly_may_be_a_failure_instead() -> None:
    with pytest.raises(ComponentError, match=r"the answer takes more than 0.3 s or 512 MiB to compare"):
        raw("9**9**9", "9", max_cpu_s=0.3, costly="fail")


@pytest.mark.parametrize("gold", ["$9^{9^9}$", "$" + "x+" * 50_000 + "1$"])
def test_a_right_answer_that_is_too_costly_is_no_answers_fault(gold: str) -> None:
    with pytest.raises(ComponentError, match=r"info\.gold takes more than 0.3 s to read"):
        raw("3", gold, max_cpu_s=0.3)


def test_a_hostile_answer_spoils_no_other_of_its_batch() -> None:
    spec = make_spec(
        goal={"enabled": False}, accuracy={"ground_truth_from": "info.gold", "max_cpu_s": 0.3, "costly": "fail"}
    )
    episodes = [answering(one, "9", sample) for sample, one in enumerate(["9", "9**9**9", "8", "9"])]
    scorer = Scorer()

    found = scorer.score([ScoreRequest(trajectory=episode, reward=spec) for episode in episodes])

    scorer.close()

    assert [one.reward and one.reward.total for one in found] == [1.0, None, 0.0, 1.0]
    assert "the answer takes more than 0.3 s" in str(found[1].reward_error)


def test_a_process_that_was_killed_makes_no_verdict_and_the_next_one_does() -> None:
    pool = MathPool(1)
    pool.verify("1", "1", cpu_s=3.0)
    (verifier,) = list(pool._free.queue)
    assert verifier is not None
    os.kill(verifier._process.pid, signal.SIGKILL)
    verifier._process.wait()

    with pytest.raises(VerifierFailed):
        pool.verify("1", "1", cpu_s=3.0)

    assert pool.verify("1", "1", cpu_s=3.0) is Verdict.RIGHT
    pool.close()


def test_it_sees_none_of_the_services_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYMFLEET_REWARD_SEAL_KEY", "secret")
    pool = MathPool(1)
    pool.verify("1", "1", cpu_s=3.0)
    (verifier,) = list(pool._free.queue)
    assert verifier is not None

    environment = Path(f"/proc/{verifier._process.pid}/environ").read_bytes()

    assert b"secret" not in environment
    pool.close()


def test_a_process_makes_way_after_many_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymfleet_reward.maths.pool._MAX_USES", 2)
    pool = MathPool(1)

    kept = [(pool.verify("1", "1", cpu_s=3.0), next(iter(pool._free.queue)) is not None) for _ in range(3)]

    assert kept == [(Verdict.RIGHT, True), (Verdict.RIGHT, False), (Verdict.RIGHT, True)]
    pool.close()
