"""KG on a graph whose answers are worked out by hand: tools, wording, scoring, expert, generated questions."""

import json
from pathlib import Path
from typing import Any

import pytest
from gymfleet_envs.environment import BadArguments, Outcome
from gymfleet_envs.kg.actions import Call, FinalAnswer, action_of, read_action
from gymfleet_envs.kg.benchmark import benchmark_tasks, ontology_of
from gymfleet_envs.kg.environment import ENVIRONMENT, KnowledgeGraph
from gymfleet_envs.kg.graph import Graph, Words, identifier, link, number
from gymfleet_envs.kg.options import KgOptions
from gymfleet_envs.kg.program import And, Count, Extreme, Join, program_of
from gymfleet_envs.kg.sampling import LEVELS
from gymfleet_envs.kg.scoring import f1
from gymfleet_envs.kg.sources import base_of
from gymfleet_envs.kg.task import KgTask
from gymfleet_envs.kg.worlds import generated_tasks, world
from pydantic import HttpUrl
from pyoxigraph import NamedNode, Store

from tests.fixtures.hash_seeds import outputs_by_hash_seed

ENGINES = "rocket.engine"
"""AgentBench's own example, with three engines: Gas-generator cycle and Kerosene share F1 and RD."""
QUADS = [
    *[link("m.gas", "rocket.cycle.engines", engine) for engine in ("m.f1", "m.rd", "m.rs")],
    *[link("m.ker", "rocket.fuel.engines", engine) for engine in ("m.f1", "m.rd")],
    *[link(engine, "rocket.engine.fuel", "m.ker") for engine in ("m.f1", "m.rd")],
    link("m.f1", "rocket.engine.designed_by", "m.rocketdyne"),
    link("m.rd", "rocket.engine.designed_by", "m.glushko"),
    link("m.rs", "rocket.engine.designed_by", "m.rocketdyne"),
    number("m.f1", "rocket.engine.thrust", 6770),
    number("m.rd", "rocket.engine.thrust", 4003),
    number("m.rs", "rocket.engine.thrust", 1000),
    number("m.ker", "fuel.density", 820),
]
NAMES = {"m.gas": "Gas-generator cycle", "m.ker": "Kerosene, refined (RP-1)", "m.f1": "F-1", "m.rd": "RD-107",
         "m.rs": "RS-27", "m.rocketdyne": "Rocketdyne", "m.glushko": "Glushko"}  # fmt: skip
RANGES = {"rocket.cycle.engines": ENGINES, "rocket.fuel.engines": ENGINES, "rocket.engine.designed_by": "rocket.maker"}
BOTH = And(Join("rocket.cycle.engines", "m.gas"), Join("rocket.fuel.engines", "m.ker"))
TASK = KgTask(
    "who designed the engines with kerosene and a gas-generator cycle?",
    (("Gas-generator cycle", "m.gas"), ("Kerosene, refined (RP-1)", "m.ker")),
    frozenset(("m.rocketdyne", "m.glushko")),
    Join("rocket.engine.designed_by", BOTH),
    0,
)


def graph() -> Graph:
    store = Store()
    store.extend(QUADS)
    return Graph(store, Words(NAMES, {}, RANGES))


@pytest.fixture(autouse=True)
def rockets(monkeypatch: pytest.MonkeyPatch) -> Graph:
    """The graph in the place of the first generated world."""
    rocket_graph = graph()
    monkeypatch.setattr(
        "gymfleet_envs.kg.environment.base_of",
        lambda source, options: rocket_graph if source == 0 else base_of(source, options),
    )
    return rocket_graph


def opened(task: KgTask = TASK) -> KnowledgeGraph:
    environment = ENVIRONMENT()
    assert environment.reset(task, 0) == task.prompt
    return environment


def play(*actions: str, task: KgTask = TASK) -> tuple[list[str], Outcome]:
    environment = opened(task)
    outcomes = [environment.step(action) for action in actions]
    return [outcome.observation for outcome in outcomes], outcomes[-1]


def test_agentbenchs_example_in_its_words() -> None:
    assert TASK.prompt.endswith("\nEntities: [Gas-generator cycle, Kerosene, refined (RP-1)]")

    seen, last = play(
        "get_relations(Gas-generator cycle)",
        "get_neighbors(Gas-generator cycle, rocket.cycle.engines)",
        "get_relations(Kerosene, refined (RP-1))",
        "get_neighbors(Kerosene, refined (RP-1), rocket.fuel.engines)",
        "intersection(#0, #1)",
        "get_relations(#2)",
        "get_neighbors(#2, rocket.engine.designed_by)",
        "Final Answer: #3",
    )

    assert seen == [
        "Observation: [rocket.cycle.engines]",
        "Observation: variable #0, which are instances of rocket.engine",
        "Observation: [rocket.fuel.engines]",
        "Observation: variable #1, which are instances of rocket.engine",
        "Observation: variable #2, which are instances of rocket.engine",
        "Observation: [rocket.engine.designed_by, rocket.engine.fuel]",
        "Observation: variable #3, which are instances of rocket.maker",
        "The task is over.",
    ]
    assert (last.reward, last.score, last.terminated) == (1.0, 1.0, True)


NEIGHBORS = "get_neighbors(Gas-generator cycle, rocket.cycle.engines)"
MAKERS = (NEIGHBORS, "get_neighbors(#0, rocket.engine.designed_by)")


@pytest.mark.parametrize(
    ("actions", "observation", "valid"),
    [
        pytest.param(("get_relations(Saturn)",),
                     "Error processing tool call: get_relations: variable must be a variable or an entity", True),
        pytest.param(("get_neighbors(Gas-generator cycle, rocket.fuel.engines)",),
                     "Error processing tool call: get_neighbors: relation must be a relation of the variable", True),
        pytest.param(("get_neighbors(#0, rocket.cycle.engines)",),
                     "Error processing tool call: list index out of range", True),
        pytest.param((*MAKERS, "intersection(#0, #1)"),
                     "Error processing tool call: intersection: two variables must have the same type", True),
        pytest.param((NEIGHBORS, "argmax(#0, rocket.engine.fuel)"),
                     "Error processing tool call: argmax: attribute must be an attribute of the variable", True),
        pytest.param((NEIGHBORS, "argmin(#0, fuel.density)"),
                     "Error processing tool call: argmin: attribute must be an attribute of the variable", True),
        pytest.param(("count(Gas-generator cycle)",),
                     "Error processing tool call: count: variable must be a variable", True),
        pytest.param((NEIGHBORS, "count(#0)", "count(#1)"),
                     "Error processing tool call: count: variable must be a set of entities, not a number", True),
        pytest.param(("union(#0, #1)",), "Provide an invalid function name. Function union does not exist", False),
        pytest.param(("intersection(#0)",),
                     "Arguments do not match the function signature. Error processing arguments for intersection",
                     False),
        pytest.param(("I do not know",),
                     "No valid function calls found! Need to recheck the function calls.", False),
        pytest.param((NEIGHBORS, "get_attributes(#0)"), "Observation: [rocket.engine.thrust]", True),
        pytest.param((NEIGHBORS, "count(#0)"), "Observation: variable #1, which is a number", True),
        pytest.param((NEIGHBORS, "count(#0)", "get_relations(#1)"), "Observation: []", True),
        pytest.param((NEIGHBORS, "get_relations(variable #0)"),
                     "Observation: [rocket.engine.designed_by, rocket.engine.fuel]", True),
        pytest.param(("get_relations(m.rd)",), "Observation: [rocket.engine.designed_by, rocket.engine.fuel]", True),
        pytest.param(("get_relations(m.unknown)",), "Observation: []", True),
    ],
)  # fmt: skip
def test_what_a_call_shows(actions: tuple[str, ...], observation: str, valid: bool) -> None:
    seen, last = play(*actions)

    assert (seen[-1], last.action_valid, last.terminated, last.reward) == (observation, valid, False, 0.0)


@pytest.mark.parametrize(
    ("program", "members"),
    [
        pytest.param(Join("rocket.cycle.engines", "m.gas"), {"m.f1", "m.rd", "m.rs"}, id="an entity's"),
        pytest.param(BOTH, {"m.f1", "m.rd"}, id="both"),
        pytest.param(Count(BOTH), {"2"}, id="a number"),
        pytest.param(Extreme(BOTH, "rocket.engine.thrust", greatest=True), {"m.f1"}, id="greatest"),
        pytest.param(Extreme(BOTH, "rocket.engine.thrust", greatest=False), {"m.rd"}, id="least"),
        pytest.param(Extreme(BOTH, "fuel.density", greatest=True), set(), id="nobody has the attribute"),
        pytest.param(Join("rocket.engine.designed_by", Extreme(BOTH, "rocket.engine.thrust", greatest=True)),
                     {"m.rocketdyne"}, id="from an extreme"),
        pytest.param(Join("rocket.engine.fuel", Join("rocket.fuel.engines", "m.ker")), set(), id="back to the topic"),
        pytest.param(Count(Join("rocket.engine.fuel", Join("rocket.fuel.engines", "m.ker"))), {"0"}, id="no one"),
        pytest.param(Join("rocket.fuel.engines", Join("rocket.engine.fuel", Join("rocket.fuel.engines", "m.ker"))),
                     {"m.f1", "m.rd"}, id="through the topic"),
        pytest.param(Join("no.such", "m.gas"), set(), id="no such relation"),
    ],
)  # fmt: skip
def test_members(rockets: Graph, program: Any, members: set[str]) -> None:
    """The entities that a question names are never in its answer, as AgentBench filters them, but sets lead through."""
    assert rockets.members(program) == members


@pytest.mark.parametrize(
    ("predicted", "gold", "value"),
    [("abc", "abc", 1.0), ("a", "abc", 0.5), ("abcd", "a", 0.4), ("ab", "bc", 0.5), ("x", "a", 0.0), ("", "a", 0.0)],
)
def test_f1(predicted: str, gold: str, value: float) -> None:
    """(a of abc): precision 1, recall 1/3; (abcd of a): 1/4 and 1; (ab of bc): 1/2 and 1/2."""
    assert f1(frozenset(predicted), frozenset(gold)) == pytest.approx(value)


@pytest.mark.parametrize(
    ("actions", "reward", "score"),
    [
        pytest.param((*MAKERS, "Final Answer: #1"), 1.0, 1.0, id="another way to the same set"),
        pytest.param((*MAKERS, "Find Answer: #1"), 1.0, 1.0, id="as AgentBench reads it too"),
        pytest.param((NEIGHBORS, "Final Answer: #0"), 0.0, 0.0, id="nothing right"),
        pytest.param((NEIGHBORS, "argmax(#0, rocket.engine.thrust)", "get_neighbors(#1, rocket.engine.designed_by)",
                      "Final Answer: #2"), 0.0, 2 / 3, id="one of two: F1 is not success"),
        pytest.param(("Final Answer: #0",), 0.0, 0.0, id="no such variable"),
    ],
)  # fmt: skip
def test_reward_is_the_exact_set_and_score_is_f1(actions: tuple[str, ...], reward: float, score: float) -> None:
    _, last = play(*actions)

    assert (last.reward, last.terminated) == (reward, True)
    assert last.score == pytest.approx(score)
    assert not last.info


def test_nothing_follows_the_end() -> None:
    environment = opened()
    environment.step("Final Answer: #7")

    again = environment.step("Final Answer: #7")

    assert (again.terminated, again.action_valid, again.score, environment.expert()) == (True, False, 0.0, None)
    assert environment.admissible_actions() == []


def test_a_variable_that_doubles_itself_is_refused() -> None:
    environment = opened()
    seen = [environment.step(NEIGHBORS).observation]
    seen += [environment.step(f"intersection(#{number}, #{number})").observation for number in range(6)]

    assert seen[5] == "Observation: variable #5, which are instances of rocket.engine"  # of 63 calls
    assert seen[6] == ("Error processing tool call: intersection: the variable would be made of more than 64 calls")


def test_gold_answers_are_for_the_reward_service_alone() -> None:
    environment = opened()

    assert environment.start_private == {"answer": ["m.glushko", "m.rocketdyne"]}
    assert not environment.start_info


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("get_relations(#0)", Call("get_relations", ("#0",))),
        ("Action: get_relations(A)", Call("get_relations", ("A",))),
        ("Thought: I look.\nAction: count(#0)\nObservation: variable #1", Call("count", ("#0",))),
        ("Thought: done.\nFinal Answer: #12", FinalAnswer(12)),
        ("get_neighbors(Messiah (Dublin, 1742), music.album.releases)",
         Call("get_neighbors", ("Messiah (Dublin, 1742)", "music.album.releases"))),
        ("get_relations(Reading, Berkshire)", Call("get_relations", ("Reading, Berkshire",))),
        ("intersection(#0,#1)", Call("intersection", ("#0", "#1"))),
        ("get_relations()", Call("get_relations", ())),
        ("get_relations(Final Answer: #0)", Call("get_relations", ("Final Answer: #0",))),
        ("Final Answer: 0", None),
        ("Final Answer: #-1", None),
        ("Final Answer: #99999999", None),
        ("get_relations(", None),
        ("", None),
    ],
)  # fmt: skip
def test_actions_are_read(text: str, read: object) -> None:
    assert read_action(text) == read


def test_tools_spell_actions() -> None:
    assert action_of("get_neighbors", {"relation": "r", "variable": "a, b"}) == "get_neighbors(a, b, r)"
    assert action_of("final_answer", {"variable": " #3"}) == "Final Answer: #3"
    for tool, arguments in (
        ("final_answer", {"variable": "3"}),
        ("get_relations", {"variable": "a\nFinal Answer: #0"}),
        ("get_neighbors", {"variable": "a", "relation": "b,c"}),
    ):
        with pytest.raises(BadArguments):
            action_of(tool, arguments)


def test_the_expert_goes_on_from_wherever_one_is() -> None:
    environment = opened()
    for detour in ("get_neighbors(Kerosene, refined (RP-1), rocket.fuel.engines)", "count(#0)", "nonsense"):
        environment.step(detour)

    actions = []
    while (move := environment.expert()) is not None:
        actions.append(move.action)
        last = environment.step(move.action)

    assert actions == [
        "get_relations(Gas-generator cycle)",
        NEIGHBORS,
        "intersection(#2, #0)",
        "get_relations(#3)",
        "get_neighbors(#3, rocket.engine.designed_by)",
        "Final Answer: #4",
    ]
    assert (last.reward, last.score) == (1.0, 1.0)


def test_a_copy_goes_its_own_way() -> None:
    environment = opened()
    environment.step(NEIGHBORS)
    twin = environment.snapshot()

    twin.step("count(#0)")

    assert environment.step("count(#0)").observation == "Observation: variable #1, which is a number"
    assert environment.state_key() == twin.state_key()
    assert environment.step("count(#0)").observation == "Observation: variable #2, which is a number"
    assert environment.state_key() != twin.state_key()


def test_admissible_actions_are_none_that_is_refused() -> None:
    environment = opened()
    for action in MAKERS:
        environment.step(action)

    actions = environment.admissible_actions()

    assert actions is not None
    assert actions[0] == "get_relations(Gas-generator cycle)"
    assert {"argmax(#0, rocket.engine.thrust)", "count(#1)", "Final Answer: #1"} <= set(actions)
    assert not any(action.startswith("intersection") for action in actions), "they have different types"
    for action in actions:
        assert "Error" not in environment.snapshot().step(action).observation, action


def test_gold_calls_become_programs() -> None:
    calls = [("get_relations", ("m.a",)), ("get_neighbors", ("m.a", "r")), ("get_neighbors", ("B", "s")),
             ("intersection", ("#0", "#1")), ("get_attributes", ("#2",)), ("argmin", ("#2", "t"))]  # fmt: skip

    assert program_of(calls, {"B": "m.b"}) == Extreme(And(Join("r", "m.a"), Join("s", "m.b")), "t", greatest=False)
    for wrong in ([("count", ("#0",))], [], [("get_relations", ("m.a",))], [("count", ("m.a",))], [("union", ("#0",))]):
        with pytest.raises(ValueError, match=r"is no|makes a"):
            program_of(wrong, {})


HOSTILE = "".join(chr(code) for code in (*range(0x300), *range(0xE000, 0x10000), 0x1F600, 0xE0100, 0xE0001, 0x10FFFF))


def test_names_of_data_are_fit_for_calls() -> None:
    assert identifier("/m/07pd_j") == "m.07pd_j"
    assert identifier("/a/b/c./d/e/f") == "a.b.c..d.e.f"
    assert identifier("a, b (c)") == "a%2C_b_%28c%29"
    assert identifier("城市\uff0c出生地") == "城市%EF%BC%8C出生地"
    assert identifier("हिन्दी भाषा\u200c") == "हिन्दी_भाषा%E2%80%8C"
    assert NamedNode(f"urn:{identifier(HOSTILE)}").value == f"urn:{identifier(HOSTILE)}"


@pytest.mark.parametrize("level", LEVELS)
def test_generated_questions_are_solved_by_the_expert_alone(level: str) -> None:
    tasks = generated_tasks()
    for index in range(5):
        task = tasks.by_index("train", level, index).data
        environment = opened(task)
        last = Outcome("")
        for _ in range(ENVIRONMENT.max_turns):
            move = environment.expert()
            assert move is not None
            last = environment.step(move.action)
            if last.terminated:
                break
        assert (last.reward, last.score, last.terminated) == (1.0, 1.0, True)
        assert task.question.count("{}") == 0


def test_steps_on_the_way_are_no_answers() -> None:
    """A superlative is asked of five entities or more, so the set itself has F1 of at most 2 / 6."""
    for index in range(5):
        task = generated_tasks().by_index("train", "superlative", index).data
        assert isinstance(task.program, Extreme)
        assert isinstance(task.source, int)
        assert len(world(task.source).members(task.program.base)) >= 5


def test_worlds_are_the_same_on_every_machine() -> None:
    code = (
        "from gymfleet_envs.kg.worlds import generated_tasks as g;"
        "print([g().by_index('test', level, 0).data for level in ('one_hop', 'count')])"
    )
    assert len(set(outputs_by_hash_seed(code))) == 1


def test_files_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    entry = {"question": "which?", "qid": "1_grailqa", "entities": {"A": "m.0a"}, "actions": [],
             "answer": [{"answer_argument": "m.0b"}]}  # fmt: skip
    (tmp_path / "std.json").write_text(json.dumps([entry]), encoding="utf-8-sig")
    (tmp_path / "vocab.json").write_text(json.dumps({"relations": ["a.b"], "attributes": []}), encoding="utf-8-sig")
    (tmp_path / "fb_roles").write_text("a a.b c\n", encoding="utf-8-sig")

    assert benchmark_tasks(tmp_path).by_id("1_grailqa").data.gold == {"m.0b"}
    assert ontology_of(tmp_path).ranges == {"a.b": "c"}


def test_an_endpoint_without_questions_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ENVIRONMENT, "options", KgOptions(endpoint=HttpUrl("http://127.0.0.1:9/sparql")))

    with pytest.raises(Exception, match="endpoint is for AgentBench's own questions alone"):
        ENVIRONMENT.task_source(None)
