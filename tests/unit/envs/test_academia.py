"""AgentGym's academia."""

import ast
import json
from typing import Any

import pytest
from gymfleet_env_server.catalogue import load_entry
from gymfleet_envs.academia.environment import ENVIRONMENT, Academia
from gymfleet_envs.academia.network import Author, Network, Paper, Service
from gymfleet_envs.agentgym_tools.questions import Question
from gymfleet_envs.environment import Outcome

FIRST = Paper("First", ("Ann", "Bob"), 2010, "KDD", 5, ("graph",), ())
SECOND = Paper("Second", ("Ann", "Bob", "Cy"), 2011, "WWW", 9, ("hashing",), ("First",))
NETWORK = Network((FIRST, SECOND), (Author("Ann", "ETH"), Author("Bob", "KTH"), Author("Cy", "MIT")))
QUESTION: Question[Service] = Question("How many?", NETWORK, ("14",), ())
LOADS = ("loadPaperNet", "loadAuthorNet")


def opened(*loads: str) -> Academia:
    environment = ENVIRONMENT()
    environment.reset(QUESTION, 0)
    for load in loads:
        call(environment, load)
    return environment


def call(environment: Academia, tool: str, **arguments: Any) -> Outcome:
    return environment.step(f"{tool} with Action Input: {json.dumps(arguments)}")


def result(outcome: Outcome) -> Any:
    text = outcome.observation.removeprefix("Observation: ").rpartition("\n")[0]
    return ast.literal_eval(text) if text[:1] in ("[", "{") else text


@pytest.mark.parametrize(
    ("tool", "arguments", "shown"),
    [
        ("loadPaperNet", {}, "PaperNet is loaded."),
        ("neighbourCheck", {"graph": "PaperNet", "node": "Second"}, ["First"]),
        ("neighborCheck", {"graph": "AuthorNet", "node": "Ann"}, ["Bob", "Cy"]),
        ("neighbourCheck", {"graph": "PaperNet", "node": "Third"}, "There is no node named Third in the PaperNet."),
        ("neighbourCheck", {"graph": "GoldNet", "node": "Ann"},
         "AttributeError('str' object has no attribute 'neighbors')"),
        ("neighbourCheck", {"node": "Ann"}, "ERROR | KeyError('graph')"),
        ("paperNodeCheck", {"node": "First"},
         {"authors": ["Ann", "Bob"], "year": 2010, "venue": "KDD", "n_citation": 5, "keywords": ["graph"],
          "doc_type": "Conference"}),
        ("authorNodeCheck", {"node": "Bob"}, {"name": "Bob", "org": "KTH"}),
        ("authorNodeCheck", {"node": ["Bob"]}, "There is no node named ['Bob'] in the AuthorNet."),
        ("authorEdgeCheck", {"node1": "Bob", "node2": "Ann"}, {"collaborative_papers": ["First", "Second"]}),
        ("authorEdgeCheck", {"node1": "Bob", "node2": "Bob"}, "There is no edge between Bob and Bob."),
        ("paperEdgeCheck", {"node1": "Second", "node2": "First"}, {}),
        ("paperEdgeCheck", {"node1": "First", "node2": "Second"}, "There is no edge between First and Second."),
        ("readPaper", {}, "ERROR | Invalid action: readPaper."),
    ],
)  # fmt: skip
def test_what_tools_show(tool: str, arguments: dict[str, Any], shown: Any) -> None:
    assert result(call(opened(*LOADS), tool, **arguments)) == shown


@pytest.mark.parametrize(
    ("tool", "arguments", "needs"),
    [
        ("neighbourCheck", {"graph": "PaperNet", "node": "First"}, "PaperNet"),
        ("neighbourCheck", {"graph": "AuthorNet", "node": "Ann"}, "AuthorNet"),
        ("paperNodeCheck", {"node": "First"}, "PaperNet"),
        ("paperEdgeCheck", {"node1": "Second", "node2": "First"}, "PaperNet"),
        ("authorNodeCheck", {"node": "Ann"}, "AuthorNet"),
        ("authorEdgeCheck", {"node1": "Ann", "node2": "Bob"}, "AuthorNet"),
    ],
)
def test_each_tool_needs_its_own_network(tool: str, arguments: dict[str, Any], needs: str) -> None:
    other = next(load for load in LOADS if needs not in load)

    assert result(call(opened(other), tool, **arguments)) == f"Please load the {needs} first."
    assert result(call(opened(f"load{needs}"), tool, **arguments)) != f"Please load the {needs} first."


def test_what_is_loaded_is_part_of_the_state_and_of_a_copy() -> None:
    environment = opened()
    copy = environment.snapshot()
    call(copy, "loadPaperNet")

    assert environment.state_key() != copy.state_key()
    assert result(call(environment, "paperNodeCheck", node="First")) == "Please load the PaperNet first."


def test_a_new_episode_has_nothing_loaded() -> None:
    environment = opened(*LOADS)
    environment.reset(QUESTION, 0)

    assert result(call(environment, "paperNodeCheck", node="First")) == "Please load the PaperNet first."


@pytest.mark.parametrize(("answer", "score"), [(14, 1), (14.0, 1), ("14", 0), (9, 0)])
def test_answers(answer: Any, score: float) -> None:
    assert call(opened(), "finish", answer=answer).score == score


def test_generated_authors_whose_papers_are_compared_have_three_or_four() -> None:
    tasks = load_entry("academia", {}).tasks
    for index in range(100):
        task = tasks.by_index("test", "hard", index).data
        looked = [json.loads(move.arguments)["node"] for move in task.plan if move.tool == "paperNodeCheck"]
        assert isinstance(task.world, Network)
        name = json.loads(task.plan[1].arguments)["node"]
        assert sorted(looked) == sorted(paper.title for paper in task.world.papers if name in paper.authors)
        assert len(looked) in (3, 4)
        assert len(task.plan) <= ENVIRONMENT.max_turns
