"""What the policy was asked before: known by the question, the role and the version of the weights."""

from pathlib import Path

import pytest
from gymfleet_rollout import answers as module
from gymfleet_rollout.answers import Answers
from gymfleet_rollout.replies import Context

from tests.fixtures.searches import RIGHT, Played
from tests.fixtures.strategies import HEAD, Table
from tests.unit.rollout.test_episode import LEFT, OPEN, ScriptedPolicy

ASKED = Context([1, 2, 3], [])


class Sampler:
    """Answers by the number of the answer; `publishes` is the version that goes live meanwhile."""

    def __init__(self) -> None:
        self.live, self.publishes = 3, 0
        self.num_asked: list[int] = []

    def version(self) -> int:
        return self.live

    async def sample(self, count: int) -> list[str]:
        first = sum(self.num_asked)
        self.num_asked.append(count)
        self.live += self.publishes
        return [str(first + place) for place in range(count)]


async def of(
    answers: Answers, sampler: Sampler, count: int, context: Context = ASKED, role: str = "valuer"
) -> tuple[list[str], int]:
    return await answers.of(context, role, count, sampler.version, sampler.sample)


async def test_several_answers_are_as_many_samples_and_only_what_lacks_is_sampled() -> None:
    answers, sampler = Answers(), Sampler()

    assert await of(answers, sampler, 3) == (["0", "1", "2"], 0)
    assert await of(answers, sampler, 2) == (["0", "1"], 2)
    assert await of(answers, sampler, 5) == (["0", "1", "2", "3", "4"], 3)
    assert await of(answers, sampler, 5) == (["0", "1", "2", "3", "4"], 5)
    assert sampler.num_asked == [3, 2]


@pytest.mark.parametrize(
    ("context", "role", "published"),
    [
        pytest.param(Context([1, 2, 4], []), "valuer", 0, id="another question"),
        pytest.param(Context([1, 2], []), "valuer", 0, id="a shorter one"),
        pytest.param(ASKED, "planner", 0, id="another role"),
        pytest.param(ASKED, "valuer", 1, id="other weights"),
    ],
)
async def test_what_may_be_answered_otherwise_is_asked(context: Context, role: str, published: int) -> None:
    answers, sampler = Answers(), Sampler()
    await of(answers, sampler, 1)
    sampler.live += published

    assert await of(answers, sampler, 1, context, role) == (["1"], 0)


async def test_what_was_answered_while_weights_changed_is_not_kept() -> None:
    answers, sampler = Answers(), Sampler()
    sampler.publishes = 1
    assert await of(answers, sampler, 1) == (["0"], 0)
    sampler.publishes = 0

    assert await of(answers, sampler, 1) == (["1"], 0), "at the version that went live"
    sampler.live -= 1
    assert await of(answers, sampler, 1) == (["2"], 0), "and at the one before"


async def test_what_is_asked_twice_at_once_keeps_the_more_answers() -> None:
    answers, sampler = Answers(), Sampler()

    async def slow(count: int) -> list[str]:
        few = await of(answers, sampler, 2)
        assert few == (["0", "1"], 0)
        return ["late"] * count

    assert await answers.of(ASKED, "valuer", 1, sampler.version, slow) == (["late"], 0)
    assert await of(answers, sampler, 2) == (["0", "1"], 2)


async def test_the_oldest_questions_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_QUESTIONS", 2)
    answers, sampler = Answers(), Sampler()

    for token in (1, 2, 3):
        await of(answers, sampler, 1, Context([token], []))

    assert [(await of(answers, sampler, 1, Context([token], [])))[1] for token in (3, 2, 1)] == [1, 1, 0]


async def test_a_thought_that_is_marked_again_is_not_asked_about_again() -> None:
    operations = [
        {"do": "generate", "count": 3}, {"do": "score", "count": 2}, {"do": "generate"}, {"do": "score", "count": 2},
    ]  # fmt: skip
    # Three thoughts, of which two are the same; two marks for each of two; a fourth like the second; no more marks.
    played = Played("graph_of_thoughts", LEFT, RIGHT, LEFT, "2", "4", "8", "9", RIGHT, max_turns=1)

    await played.play({"operations": operations})

    assert len(played.policy.calls) == 3 + 4 + 1
    (found,) = played.trajectories
    assert found.turns[0].action == "go right"


ASKS = """
        node = await ctx.open()
        first = await ctx.ask(node, "How good is it?", 2, role="valuer")
        again = await ctx.ask(node, "How good is it?", 3, role="valuer")
        assert again[:2] == first and len({*again}) == 3
        (reply,) = await ctx.propose(node)
        ctx.export(await ctx.act(node, reply))
"""


async def test_answers_that_were_known_are_counted_and_cost_nothing(tmp_path: Path) -> None:
    head = HEAD.replace("    Options = Options", '    Options, facts = Options, StrategyFacts(roles=("valuer",))')
    table = Table(tmp_path / "mine.py", ASKS, ScriptedPolicy("1", "2", "3", OPEN), head=head)

    (trajectory,) = await table.play(num_samples=1)

    assert trajectory.error is None
    (tree,) = table.trees
    assert tree.counts == {"answers that were known": 2}
    assert tree.spent.model_calls == len(table.policy.calls) == 4
