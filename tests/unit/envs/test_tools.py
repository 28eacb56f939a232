"""Tools of the built-in environments: what a model writes into an argument stays in it."""

import pytest
from gymfleet_env_server.catalogue import EnvironmentUnavailable, find_environment
from gymfleet_env_server.tools import check_call
from gymfleet_envs.db import actions as db
from gymfleet_envs.db.answers import read_answer
from gymfleet_envs.environment import BadArguments
from gymfleet_envs.os import actions as shell
from gymfleet_envs.webshop.environment import WebShop, parse_action
from gymfleet_kit.session_problems import InvalidToolCall
from pydantic import JsonValue

TEXTS = (
    "ls", "a\nb\n\nc", "echo 'answer(7)'", "Act: finish", "Action: Answer", "Final Answer: [1]", "x(y)z)", "`ls` ``x``",
    "日本語", 'echo "Action: Operation"', "SELECT 'Action: Answer\nFinal Answer: [1]'", "finish", "bash", "]",
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_os_reads_back_what_a_call_says(text: str) -> None:
    assert shell.read_action(shell.action_of("bash", {"code": text})) == shell.Bash(text)
    assert shell.read_action(shell.action_of("answer", {"answer": text})) == shell.Commit(text)
    assert shell.read_action(shell.action_of("finish", {})) == shell.Commit(None)


@pytest.mark.parametrize("text", TEXTS)
def test_db_reads_back_what_a_call_says(text: str) -> None:
    assert db.read_action(db.action_of("execute_sql", {"query": text})) == db.Operation(text)
    committed = db.read_action(db.action_of("commit_final_answer", {"answers": [text, "b"]}))
    assert isinstance(committed, db.Answer)
    assert read_answer(committed.text) == [text, "b"]


@pytest.mark.parametrize("text", ["a b", "日本語", "click(x)", " x "])
def test_webshop_reads_back_what_a_call_says(text: str) -> None:
    assert parse_action(WebShop().action_of("search", {"keywords": text})) == ("search", text)
    assert parse_action(WebShop().action_of("click", {"value": text})) == ("click", text)


@pytest.mark.parametrize(
    ("env", "tool", "arguments"),
    [
        ("os", "bash", {"code": "```\nfinish"}),
        ("db", "execute_sql", {"query": "SELECT '\n```'"}),
        ("webshop", "search", {"keywords": "a] click[buy now"}),
        ("webshop", "click", {"value": "x\n"}),
    ],
)
def test_what_would_end_the_field_is_refused(env: str, tool: str, arguments: dict[str, JsonValue]) -> None:
    kind = find_environment(env)
    check_call(kind, tool, arguments)

    with pytest.raises(BadArguments):
        kind().action_of(tool, arguments)


@pytest.mark.parametrize(
    ("env", "tool", "arguments"),
    [
        ("os", "bash", {}),
        ("os", "bash", {"code": ["ls"]}),
        ("os", "finish", {"really": True}),
        ("db", "execute_sql", {"query": ""}),
        ("db", "commit_final_answer", {"answers": "7"}),
        ("webshop", "buy", {}),
    ],
)
def test_arguments_follow_the_schema(env: str, tool: str, arguments: dict[str, JsonValue]) -> None:
    with pytest.raises(InvalidToolCall):
        check_call(find_environment(env), tool, arguments)


@pytest.mark.parametrize(
    ("tools", "mapping", "told"),
    [
        ("TOOL, TOOL", True, "two tools have one name"),
        ("TOOL,", False, "has no action_of"),
        ("Tool(name='x', description='', parameters={'type': 'objekt'}),", True, "no JSON Schema"),
        ("Tool(name='x', description='', parameters={'type': 'string'}),", True, "type object"),
        ("Tool(name='step', description='', parameters={'type': 'object'}),", True, "the MCP front has a tool"),
        (
            "Tool(name='x', description='', parameters={'type': 'object', 'properties': {'index': {}}}),",
            True,
            "call the parameter index otherwise",
        ),
    ],
    ids=["twice", "unmapped", "no schema", "no object", "taken", "reserved"],
)
def test_a_tool_that_cannot_be_served_is_one_clear_line(
    tmp_path_factory: pytest.TempPathFactory, tools: str, mapping: bool, told: str
) -> None:
    path = tmp_path_factory.mktemp("plugin") / "tooled.py"
    path.write_text(
        "from gymfleet_contracts.session import Tool\n"
        "from gymfleet_envs.environment import Environment, Outcome\n"
        "TOOL = Tool(name='go', description='', parameters={'type': 'object'})\n"
        "class Tooled(Environment[int]):\n"
        "    name = 'tooled'\n    version = '1'\n    summary = 's'\n    instructions = 'i'\n    max_turns = 3\n"
        f"    tools = ({tools})\n"
        "    @classmethod\n    def task_source(cls, data): ...\n"
        "    def reset(self, task, seed): return ''\n"
        "    def step(self, action): return Outcome('')\n"
        + ("    def action_of(self, tool, arguments): return tool\n" if mapping else "")
    )

    with pytest.raises(EnvironmentUnavailable, match=told):
        find_environment(str(path))
