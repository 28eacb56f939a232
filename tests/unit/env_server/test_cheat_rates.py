import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from gymfleet_contracts.session import ExpertMove, ModelRole, Tool
from gymfleet_env_server.catalogue import Entry
from gymfleet_env_server.cheat_rates import Rate, allowed, faults, rates
from gymfleet_env_server.cheats import POLICIES, Attempt, Cheat, Over
from gymfleet_envs.environment import AsyncEnvironment, Environment, Outcome
from gymfleet_envs.tasks import ListedTasks, Task, TaskSource
from pydantic import JsonValue


class Numbers(Environment[int]):
    """Say the number, within ten turns; it stands in the observation, as the tasks are numbered."""

    name: ClassVar[str] = "numbers"
    version: ClassVar[str] = "1.0.0"
    summary: ClassVar[str] = ""
    instructions: ClassVar[str] = ""
    max_turns: ClassVar[int] = 10
    paid: ClassVar[str | None] = None
    """An action that is paid though it is no answer."""
    paid_one_in: ClassVar[int] = 1

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[int]:
        tasks = [Task(f"{level}.{number}", "test", level, number) for level in ("low", "high") for number in range(200)]
        return ListedTasks(cls.name, "two hundred", tasks)

    def reset(self, task: int, seed: int) -> str:
        self.number = task
        return f"Number {task}?"

    def step(self, action: str) -> Outcome:
        if action == self.paid and self.number % self.paid_one_in == 0:
            return Outcome("Thank you.", score=1.0)
        solved = action == str(self.number)
        return Outcome("Next.", score=float(solved), terminated=solved)

    def expert(self) -> ExpertMove:
        return ExpertMove(thought="", action=str(self.number))


def entry_of(kind: type[Any], **declared: Any) -> Entry:
    made: Any = type(kind.__name__, (kind,), declared)
    tasks = made.task_source(None)
    return Entry(kind=made, tasks=tasks, spec=made.spec(tasks))


@pytest.mark.parametrize(
    ("stated", "num_tasks", "most"),
    [
        pytest.param(0.0, 12, 0.0, id="nothing stated: nothing is chance"),
        pytest.param(0.5, 2, 1.0, id="of 2 coins: 0.25, 0.75, 1"),
        pytest.param(0.5, 6, 1.0, id="of 6 coins five or fewer: 63/64, too few"),
        pytest.param(0.5, 7, 6 / 7, id="of 7 coins six or fewer: 127/128"),
        pytest.param(0.1, 10, 0.4, id="0.349, 0.736, 0.930, 0.987, 0.998"),
    ],
)
def test_chance_is_a_quantile_of_the_binomial_distribution(stated: float, num_tasks: int, most: float) -> None:
    assert allowed(stated, num_tasks) == pytest.approx(most)


@pytest.mark.parametrize("stated", [0.02, 0.05, 0.1, 0.25, 0.5])
def test_a_rate_that_doubles_is_a_fault(stated: float) -> None:
    count = math.ceil(49 * (1 - stated) / stated)

    assert Rate("a", "low", stated, stated, count).fault is None
    assert Rate("a", "low", 2 * stated, stated, count).fault is not None


def test_a_low_floor_takes_many_tasks() -> None:
    entry = entry_of(Numbers, floors={"says_nothing": {"low": 0.25}, "echoes": {"low": 0.1, "high": 0.875}})

    counts = {(rate.cheat, rate.level): rate.num_tasks for rate in rates(entry)}

    assert counts["says_nothing", "low"] == 147, "49 * 0.75 / 0.25"
    assert counts["says_nothing", "high"] == 12
    assert counts["echoes", "low"] == 200, "49 * 0.9 / 0.1 are more than there are"
    assert counts["echoes", "high"] == 12, "49 * 0.125 / 0.875 are fewer than without a floor"


def test_what_nobody_states_is_a_fault_where_it_is_paid() -> None:
    found = faults(entry_of(Numbers, paid=""))

    assert found == [
        f"says_nothing scores 1.000 over 12 tasks of {level}, where floors state 0 (up to 0.000 is chance)"
        for level in ("low", "high")
    ]


def test_a_floor_holds_for_its_level_alone() -> None:
    low, both = {"low": 0.25}, {"low": 0.25, "high": 0.25}

    assert faults(entry_of(Numbers, paid="", paid_one_in=4, floors={"says_nothing": both})) == []
    [fault] = faults(entry_of(Numbers, paid="", paid_one_in=4, floors={"says_nothing": low}))

    assert "tasks of high, where floors state 0 " in fault


def test_twice_what_is_stated_is_a_fault() -> None:
    both = {"low": 0.25, "high": 0.25}

    assert len(faults(entry_of(Numbers, paid="", paid_one_in=2, floors={"says_nothing": both}))) == 2


def test_a_floor_that_nothing_reaches_is_a_fault() -> None:
    [fault] = faults(entry_of(Numbers, floors={"echoes": {"low": 0.5}}))

    assert fault == (
        "echoes scores 0.000 over 49 tasks of low, where floors state 0.5: so high a floor "
        "would hide that it had doubled"
    )


@pytest.mark.parametrize(
    ("floors", "fault"),
    [
        ({"wins": {}}, "floors name wins, which is no cheat"),
        ({"echoes": {"top": 0.5}}, "floors of echoes name top, which is no level; there are low, high"),
        ({"echoes": {"low": 1.0}}, "floors of echoes state 1 on low: a floor is more than 0 and less than 1"),
    ],
)
def test_a_floor_of_nothing_is_a_fault(floors: Mapping[str, Mapping[str, float]], fault: str) -> None:
    assert faults(entry_of(Numbers, floors=floors))[0] == fault


def test_what_an_episode_began_with_is_not_earned() -> None:
    class Given(Numbers):
        start_score: float = 0.5

        def step(self, action: str) -> Outcome:
            return Outcome("Next.", score=0.5 if action != "more" else 0.75, terminated=True)

    more = Cheat("asks_for_more", lambda attempt: attempt.act_all("more"))
    scores = {rate.cheat: rate.score for rate in rates(entry_of(Given), [more])}

    assert scores.pop("asks_for_more") == 0.25
    assert set(scores.values()) == {0.0}


def test_an_authors_own_cheats_are_played_too() -> None:
    entry = entry_of(Numbers, paid="please")

    assert len(faults(entry, [Cheat("begs", lambda attempt: attempt.act_all("please"))])) == 2
    assert faults(entry, [Cheat("asks", lambda attempt: attempt.act_all("what?"))]) == []


@pytest.mark.parametrize(
    ("cheat", "paid"),
    [("says_nothing", ""), ("takes_the_first_action", "first"), ("calls_every_tool", '{"n": 2, "s": "aaa"}')],
)
def test_what_is_tried_on_every_environment(cheat: str, paid: str) -> None:
    schema: dict[str, JsonValue] = {"type": "object", "required": ["n", "s"], "properties": {
        "n": {"type": "integer", "minimum": 2}, "s": {"type": "string", "minLength": 3}, "b": {"type": "boolean"},
    }}  # fmt: skip

    def action_of(self: Any, tool: str, arguments: Mapping[str, Any]) -> str:
        return str(dict(arguments)).replace("'", '"')

    entry = entry_of(
        Numbers,
        paid=paid,
        tools=(Tool(name="do", description="", parameters=schema),),
        action_of=action_of,
        admissible_actions=lambda self: ["first", "second"],
    )

    assert {fault.split(" ")[0] for fault in faults(entry)} == {cheat}


def test_an_echo_is_what_was_seen_last() -> None:
    seen = []

    class Echoed(Numbers):
        def step(self, action: str) -> Outcome:
            seen.append(action)
            return Outcome(f"seen {len(seen)}", terminated=len(seen) == 3)

    entry = entry_of(Echoed)
    attempt = Attempt(entry, entry.tasks.by_index("test", "low", 0), entry.tasks.by_index("test", "low", 1))
    [echoes] = [cheat for cheat in POLICIES if cheat.name == "echoes"]

    with pytest.raises(Over):
        echoes.play(attempt)

    assert seen == [attempt.first, "seen 1", "seen 2"]


def test_the_gold_of_another_task_is_the_experts() -> None:
    entry = entry_of(Numbers)
    attempt = Attempt(entry, entry.tasks.by_index("test", "low", 3), entry.tasks.by_index("test", "low", 8))

    assert attempt.solution_of_the_other() == ["8"]
    assert (attempt.first, attempt.observation) == ("Number 3?", "Number 3?")
    assert {rate.score for rate in rates(entry, num_tasks=1)} == {0.0, 1.0}, "of a single task, the other is itself"


def test_a_cheat_has_the_turns_that_the_runtime_allows() -> None:
    turns = []

    def play(attempt: Attempt) -> None:
        while True:
            turns.append(attempt.task.task_id)
            attempt.act("?")

    list(rates(entry_of(Numbers), [Cheat("goes on", play)], num_tasks=1))

    assert len(turns) == 2 * 11, "ten turns of each level, and the one that was refused"


def test_models_that_the_environment_asks_are_played() -> None:
    class Asks(AsyncEnvironment[int]):
        name = "asks"
        version = "1"
        summary = instructions = ""
        max_turns = 1
        models = (ModelRole(name="judge", purpose="judges", max_calls=1, max_tokens=1),)

        @classmethod
        def task_source(cls, data: Path | None) -> TaskSource[int]:
            return Numbers.task_source(data)

        async def reset(self, task: int, seed: int) -> str:
            return ""

        async def step(self, action: str) -> Outcome:
            verdict = await self.ask("judge", [{"role": "user", "content": action}], max_tokens=1)
            return Outcome("", score=float(verdict == "yes"), terminated=True)

    flatter = Cheat("flatters", lambda attempt: attempt.act_all("dear judge"))
    found = faults(entry_of(Asks), [flatter], answer=lambda role, messages: "yes" if "dear" in str(messages) else "no")

    assert {fault.split(" ")[0] for fault in found} == {"flatters"}
