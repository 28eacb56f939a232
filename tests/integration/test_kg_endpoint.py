"""AgentBench's own questions, over a real SPARQL endpoint with a small part of what Freebase could hold."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gymfleet_env_server.importing import import_benchmark
from gymfleet_envs.environment import EngineLost, Outcome
from gymfleet_envs.kg.environment import ENVIRONMENT, KnowledgeGraph
from gymfleet_envs.kg.options import KgOptions
from gymfleet_envs.kg.program import And, Count, Extreme, Join
from gymfleet_envs.kg.sparql import links_query, members_query
from gymfleet_envs.tasks import ListedTasks, TaskDataError
from pydantic import HttpUrl

from tests.conformance.env_server import EnvServer
from tests.fixtures.sparql_server import SparqlServer

TRIPLES: list[tuple[str, str, str | int]] = [
    ("m.gas", "rocket.cycle.engines", "m.f1"), ("m.gas", "rocket.cycle.engines", "m.rd"),
    ("m.gas", "rocket.cycle.engines", "m.rs"), ("g.ker", "rocket.fuel.engines", "m.f1"),
    ("g.ker", "rocket.fuel.engines", "m.rd"), ("m.f1", "rocket.engine.designed_by", "m.rocketdyne"),
    ("m.rd", "rocket.engine.designed_by", "m.glushko"), ("m.f1", "rocket.engine.fuel", "g.ker"),
    ("m.f1", "rocket.engine.thrust", 6770), ("m.rd", "rocket.engine.thrust", 983),
    ("m.rs", "rocket.engine.thrust", 1000),
    ("m.gas", "type.object.name", "Gas generator"), ("m.gas", "secret.relation", "m.f1"),
    ("rocket.cycle.engines", "type.property.expected_type", "rocket.engine"),
    ("rocket.fuel.engines", "type.property.expected_type", "rocket.engine"),
]  # fmt: skip
ENTITIES = {"Gas-generator cycle": "m.gas", "Kerosene, refined": "g.ker"}
BOTH = ["get_relations(m.gas)", "get_neighbors(m.gas,rocket.cycle.engines)", "get_relations(g.ker)",
        "get_neighbors(g.ker,rocket.fuel.engines)", "intersection(#0,#1)"]  # fmt: skip


def question(qid: str, actions: list[str], *answers: str, **more: Any) -> dict[str, Any]:
    return {
        "question": f"the question of {qid}?",
        "qid": qid,
        "source": "grailqa",
        "entities": ENTITIES,
        "s_expression": "(AND ...)",
        "actions": actions,
        "answer": [{"answer_type": "Entity", "answer_argument": answer, "entity_name": "x"} for answer in answers],
        **more,
    }


DESIGNERS = question("1_grailqa", [*BOTH, "get_relations(#2)", "get_neighbors(#2,rocket.engine.designed_by)"],
                     "m.rocketdyne", "m.glushko")  # fmt: skip
STRONGEST = question(
    "2_cwq",
    [*BOTH[:2], "get_attributes(#0)", "argmax(#0,rocket.engine.thrust)", "get_neighbors(#1,rocket.engine.fuel)"],
    "g.ker",
    entities={"Gas-generator cycle": "m.gas"},
)  # fmt: skip
NUMBER = question("3_graphquestions", [*BOTH, "count(#2)"], "2")
FILES = {"std.json": [DESIGNERS], "dev.json": [STRONGEST], "kg_rl_all.json": [NUMBER, DESIGNERS]}
VOCABULARY = {"relations": ["rocket.cycle.engines", "rocket.fuel.engines", "rocket.engine.designed_by",
                            "rocket.engine.fuel"], "attributes": ["rocket.engine.thrust"]}  # fmt: skip
ROLES = "rocket.cycle rocket.cycle.engines rocket.engine\nrocket.fuel rocket.fuel.engines rocket.engine\n"


def write(folder: Path, files: dict[str, Any], *, ontology: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    if ontology:
        (folder / "vocab.json").write_text(json.dumps(VOCABULARY))
        (folder / "fb_roles").write_text(ROLES)
    return folder


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SparqlServer]:
    with SparqlServer(TRIPLES) as running:
        options = KgOptions(endpoint=HttpUrl(running.url), query_timeout_s=2, max_response_bytes=50_000)
        monkeypatch.setattr(ENVIRONMENT, "options", options)
        yield running


def tasks_in(folder: Path) -> ListedTasks[Any]:
    tasks = ENVIRONMENT.task_source(folder)
    assert isinstance(tasks, ListedTasks)
    return tasks


def opened(tasks: ListedTasks[Any], qid: str) -> KnowledgeGraph:
    environment = ENVIRONMENT()
    environment.reset(tasks.by_id(qid).data, 0)
    return environment


def expert_play(environment: KnowledgeGraph) -> list[tuple[str, Outcome]]:
    played = []
    while (move := environment.expert()) is not None:
        played.append((move.action, environment.step(move.action)))
    return played


def test_a_question_in_agentbenchs_words(server: SparqlServer, tmp_path: Path) -> None:
    played = expert_play(opened(tasks_in(write(tmp_path, FILES)), "1_grailqa"))

    assert [(action, outcome.observation) for action, outcome in played] == [
        ("get_relations(Gas-generator cycle)", "Observation: [rocket.cycle.engines]"),
        ("get_neighbors(Gas-generator cycle, rocket.cycle.engines)",
         "Observation: variable #0, which are instances of rocket.engine"),
        ("get_relations(Kerosene, refined)", "Observation: [rocket.fuel.engines]"),
        ("get_neighbors(Kerosene, refined, rocket.fuel.engines)",
         "Observation: variable #1, which are instances of rocket.engine"),
        ("intersection(#0, #1)", "Observation: variable #2, which are instances of rocket.engine"),
        ("get_relations(#2)", "Observation: [rocket.engine.designed_by, rocket.engine.fuel]"),
        ("get_neighbors(#2, rocket.engine.designed_by)",
         "Observation: variable #3, which are instances of common.topic"),
        ("Final Answer: #3", "The task is over."),
    ]  # fmt: skip
    assert (played[-1][1].reward, played[-1][1].score) == (1.0, 1.0)


def test_every_gold_answer_scores_and_questions_belong_to_their_splits(server: SparqlServer, tmp_path: Path) -> None:
    tasks = tasks_in(write(tmp_path, FILES))

    assert {split: tasks.count(split, "benchmark") for split in ("train", "validation", "test")} == {
        "train": 1, "validation": 1, "test": 1,
    }  # fmt: skip
    assert tasks.by_id("1_grailqa").split == "test", "a held-out question is not trained on"
    assert tasks.left_out == ("kg_rl_all.json: question 1 (1_grailqa): is there already, for test",)
    for qid in ("1_grailqa", "2_cwq", "3_graphquestions"):
        last = expert_play(opened(tasks, qid))[-1][1]
        assert (last.reward, last.score) == (1.0, 1.0), qid


def test_without_its_ontology_freebase_itself_is_asked(server: SparqlServer, tmp_path: Path) -> None:
    environment = opened(tasks_in(write(tmp_path, FILES, ontology=False)), "1_grailqa")

    shown = [environment.step(action).observation for action in (BOTH[0], BOTH[1], "get_attributes(#0)")]

    assert shown == [
        "Observation: [rocket.cycle.engines, secret.relation]",
        "Observation: variable #0, which are instances of rocket.engine",
        "Observation: [rocket.engine.thrust]",
    ]
    assert environment.admissible_actions() is None, "it would ask the endpoint"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("status", "status 500: Virtuoso 42000 Error: too long"),
        ("html", "not the results of a query"),
        ("other json", "not the results of a query"),
        ("part", "a part of the answer: timed out"),
        ("long", "an answer of more than 50000 bytes"),
    ],
)
@pytest.mark.parametrize("action", ["get_relations(#0)", "get_relations(Kerosene, refined)", "Final Answer: #0"])
def test_what_the_endpoint_fails_to_answer_is_no_empty_answer(
    server: SparqlServer, tmp_path: Path, action: str, fault: str, said: str
) -> None:
    environment = opened(tasks_in(write(tmp_path, FILES)), "1_grailqa")
    environment.step(BOTH[1])
    server.fault = fault

    with pytest.raises(EngineLost, match=said):
        environment.step(action)


def test_an_endpoint_that_is_late_or_gone_loses_the_session(server: SparqlServer, tmp_path: Path) -> None:
    environment = opened(tasks_in(write(tmp_path, FILES)), "1_grailqa")
    server.late_s = 3.0
    with pytest.raises(EngineLost, match="no answer within 2 s"):
        environment.step(BOTH[0])
    server.stop()
    with pytest.raises(EngineLost, match="ConnectError"):
        environment.step(BOTH[0])


def test_an_answer_that_comes_in_drops_is_late(server: SparqlServer, tmp_path: Path) -> None:
    environment = opened(tasks_in(write(tmp_path, FILES)), "1_grailqa")
    server.pause_s, server.piece_bytes = 0.5, 10

    with pytest.raises(EngineLost, match="no answer within 2 s"):
        environment.step(BOTH[0])
    server.pause_s = 0.0


def test_served_sessions_play_over_the_endpoint_and_are_lost_with_it(server: SparqlServer, tmp_path: Path) -> None:
    data = write(tmp_path / "data", FILES)
    options = json.dumps({"kg": {"endpoint": server.url}})
    settings = {"shards": 1, "data": json.dumps({"kg": str(data)}), "options": options}
    with EnvServer(tmp_path, "kg", **settings) as env, httpx.Client(base_url=env.url, timeout=60) as http:
        opened = [http.post("/v1/sessions", json={"env": "kg", "task_id": "2_cwq"}).json() for _ in range(2)]
        assert opened[0]["observation"] == "the question of 2_cwq?\nEntities: [Gas-generator cycle]"

        def step(session: int, index: int, action: str) -> httpx.Response:
            return http.post(
                f"/v1/sessions/{opened[session]['session_id']}/steps", json={"index": index, "action": action}
            )

        for index, action in enumerate([*STRONGEST["actions"], "Final Answer: #2"]):
            last = step(0, index, action).json()
        assert (last["reward"], last["score"], last["terminated"]) == (1.0, 1.0, True)
        server.fault = "status"
        lost = step(1, 0, "get_relations(m.rd)")

    assert (lost.status_code, lost.json()["type"]) == (410, "/problems/session-lost")


def test_calls_over_an_endpoint_wait_and_say_how_long(server: SparqlServer) -> None:
    assert ENVIRONMENT.longest_call_s() == 6.0
    assert ENVIRONMENT.is_blocking()


def test_an_answer_with_too_many_members_is_wrong_and_no_failure(
    server: SparqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ENVIRONMENT, "options", KgOptions(endpoint=HttpUrl(server.url), max_rows=2))
    environment = opened(tasks_in(write(tmp_path, FILES)), "1_grailqa")
    environment.step(BOTH[1])

    last = environment.step("Final Answer: #0")

    assert (last.reward, last.score, last.terminated) == (0.0, 0.0, True)
    assert server.queries[-1].endswith("LIMIT 3")


HOSTILE = ("m.gas> ?a ?b . ?x ?y ?z . <u:", "m.gas } UNION { ?x ?y ?z", "m.a\\u003e", "m.a b", "m.a\n", "?x", "m.",
           "<u:a>", "m." + "a" * 100)  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE)
def test_what_an_agent_writes_is_no_part_of_a_query(server: SparqlServer, tmp_path: Path, hostile: str) -> None:
    environment = opened(tasks_in(write(tmp_path, FILES)), "1_grailqa")
    environment.step(BOTH[1])
    known = set(server.queries)

    for action in (f"get_relations({hostile})", f"get_neighbors({hostile}, rocket.cycle.engines)",
                   f"get_neighbors(#0, {hostile})", f"argmax(#0, {hostile})"):  # fmt: skip
        assert environment.step(action).reward == 0.0

    assert all(hostile not in query for query in set(server.queries) - known if len(hostile) > 2)
    for program in (
        Join(hostile + "`", "m.a"),
        Join("r", hostile),
        Extreme(Join("r", "m.a"), hostile + " ", greatest=True),
    ):
        with pytest.raises(ValueError, match="is no"):
            members_query(program, 1)


def test_queries_mean_what_the_tools_say(server: SparqlServer) -> None:
    both = And(Join("rocket.cycle.engines", "m.gas"), Join("rocket.fuel.engines", "g.ker"))

    def rows(query: str) -> set[str]:
        found: Any = server.store.query(query)
        return {row[0].value.rpartition("/")[2] for row in found}

    assert rows(members_query(both, 10)) == {"m.f1", "m.rd"}
    assert rows(members_query(Count(both), 10)) == {"2"}
    assert rows(members_query(Extreme(both, "rocket.engine.thrust", greatest=False), 10)) == {"m.rd"}
    strongest = Extreme(Join("rocket.cycle.engines", "m.gas"), "rocket.engine.thrust", greatest=True)
    assert rows(members_query(Join("rocket.engine.designed_by", strongest), 10)) == {"m.rocketdyne"}
    assert rows(members_query(Join("rocket.engine.fuel", both), 10)) == set(), "the question names kerosene itself"
    assert rows(links_query(strongest, literals=False)) == {
        "rocket.engine.designed_by", "rocket.engine.fuel", "rocket.engine.thrust",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("files", "said"),
    [
        pytest.param({"std.json": "[{"}, "std.json: not JSON", id="no JSON"),
        pytest.param({"std.json": [{"qid": "a"}]}, "std.json: 0.question", id="fields"),
        pytest.param({"std.json": [question("a", [])]}, "holds no question that can be asked", id="no answers"),
        pytest.param({"std.json": [DESIGNERS], "fb_roles": ROLES}, "has one of vocab.json and fb_roles", id="half"),
        pytest.param({"std.json": [DESIGNERS], "vocab.json": VOCABULARY, "fb_roles": "a b\n"},
                     "fb_roles: line 1: not a type", id="roles"),
    ],
)  # fmt: skip
def test_damaged_files_are_named(server: SparqlServer, tmp_path: Path, files: dict[str, Any], said: str) -> None:
    with pytest.raises(TaskDataError, match=said):
        ENVIRONMENT.task_source(write(tmp_path, files, ontology=False))


def test_calls_that_could_not_be_made_leave_the_question_without_an_expert(
    server: SparqlServer, tmp_path: Path
) -> None:
    """AgentBench has some that begin with a class: `get_neighbors(common.topic, ...)`."""
    odd = question("4_cwq", ["get_neighbors(common.topic,language.main_country)"], "m.a")

    environment = opened(tasks_in(write(tmp_path, {"std.json": [odd]})), "4_cwq")

    assert environment.expert() is None


def test_what_is_no_id_of_freebase_is_no_entity(server: SparqlServer, tmp_path: Path) -> None:
    """Upstream's tools refuse it as well; an answer that is a number may be written as one."""
    year = question("5_grailqa", ["get_neighbors(2009,time.event)"], "m.f1", entities={"2009": "2009^^xsd:gYear } #"})
    year["answer"] = [{"answer_argument": 133}]

    environment = opened(tasks_in(write(tmp_path, {"std.json": [year]})), "5_grailqa")

    refused = "Error processing tool call: get_relations: variable must be a variable or an entity"
    assert environment.step("get_relations(2009)").observation == refused
    assert environment.start_private == {"answer": ["133"]}


def test_questions_need_an_endpoint_that_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, FILES)
    with pytest.raises(TaskDataError, match="set the option endpoint to the URL of its SPARQL endpoint"):
        ENVIRONMENT.task_source(tmp_path)
    monkeypatch.setattr(ENVIRONMENT, "options", KgOptions(endpoint=HttpUrl("http://127.0.0.1:9/sparql")))
    with pytest.raises(TaskDataError, match=r"the option endpoint: http://127\.0\.0\.1:9/sparql: ConnectError"):
        ENVIRONMENT.task_source(tmp_path)


def test_agentbenchs_repository_is_imported(server: SparqlServer, tmp_path: Path) -> None:
    tree = tmp_path / "AgentBench"
    write(tree / "data" / "knowledgegraph", FILES, ontology=False)
    write(tree / "src" / "server" / "tasks" / "knowledgegraph" / "ontology", {})

    found = import_benchmark("kg", tree, tmp_path / "home", {"kg": {"endpoint": server.url}})

    assert (found["task_source"], found["tasks"]) == (
        "agentbench", {"benchmark": {"train": 1, "validation": 1, "test": 1}},
    )  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "home" / "kg").iterdir()) == [
        "dev.json", "fb_roles", "kg_rl_all.json", "std.json", "vocab.json",
    ]  # fmt: skip
