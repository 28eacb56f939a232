# ruff: noqa: S608 - statements and what they show, one to a line
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.formats.dbbench import Dbbench
from gymfleet_contracts.reply_format import FormatOptions
from gymfleet_envs.db import generate
from gymfleet_envs.db.actions import Answer, Operation, read_action
from gymfleet_envs.db.answers import read_answer, same_answer
from gymfleet_envs.db.benchmark import benchmark_tasks
from gymfleet_envs.db.environment import ENVIRONMENT, DBBench
from gymfleet_envs.db.options import DbOptions
from gymfleet_envs.db.sqlite import SqliteDatabase, state_after
from gymfleet_envs.db.tables import Table, fit_names, state_digest
from gymfleet_envs.db.task import DbTask
from gymfleet_envs.environment import Outcome
from gymfleet_envs.tasks import TaskDataError

from tests.fixtures.hash_seeds import outputs_by_hash_seed
from tests.fixtures.paths import SHARED_DATA

DATA = SHARED_DATA / "dbbench"
SHOP = Table("my shop", ("item", "Price", "sold on"), (("lamp", "9", "2020-05-01"), ("Rug", "12.5", "2021-06-02")))
QUESTION = DbTask("Which item?", "other", (SHOP,), "SELECT item FROM `my shop`", answers=("lamp", "Rug"))
UPDATED = state_digest([[("lamp", "10", "2020-05-01"), ("Rug", "12.5", "2021-06-02")]])
CHANGE = DbTask("Set it.", "UPDATE", (SHOP,), "UPDATE `my shop` SET Price = 10 WHERE item = 'lamp'", state=UPDATED)


def opened(task: DbTask = QUESTION) -> DBBench:
    environment = ENVIRONMENT()
    assert environment.reset(task, 0) == task.prompt
    return environment


def test_an_episode_by_hand() -> None:
    environment = opened()

    assert environment.step("SELECT item, Price FROM `my shop`") == Outcome("[('lamp', '9'), ('Rug', '12.5')]")
    assert environment.step("SELECT colour FROM `my shop`") == Outcome("no such column: colour")
    assert environment.step("look around").action_valid is False
    last = environment.step('Final Answer: ["rug", "lamp"]')
    assert (last.reward, last.score, last.terminated) == (0.0, 0.0, True), "texts are compared to the letter"
    assert environment.step('Final Answer: ["Rug", "lamp"]').score == 0.0, "there is one answer"
    last = opened().step('Action: Answer\nFinal Answer: ["Rug", "lamp"]')
    assert (last.reward, last.score, last.terminated, last.info) == (1.0, 1.0, True, {})


def test_a_change_is_scored_by_the_state_that_it_leaves() -> None:
    right, wrong, untouched = opened(CHANGE), opened(CHANGE), opened(CHANGE)

    assert right.step("UPDATE `my shop` SET `Price`='10' WHERE `item` = 'LAMP'").observation == "[]"
    wrong.step("UPDATE `my shop` SET Price = 10")

    assert right.step("answer done").score == 1.0
    assert wrong.step("answer done").score == 0.0
    assert untouched.step('Final Answer: ["done"]').score == 0.0


def test_the_digest_is_that_of_the_formula() -> None:
    # Worked out with MariaDB 10.11 by DBBench's own query.
    rows = [("a", "1"), ("b", None), ("c", "")]

    assert state_digest([rows]) == "f5311ca2b84fdc88b1957eb7b376f397"
    assert state_digest([[]]) == "None"
    assert state_digest([rows, []]) == "None_f5311ca2b84fdc88b1957eb7b376f397"
    long = [(str(number),) for number in range(200)]
    assert state_digest([long]) != state_digest([long], cut=True)


@pytest.mark.parametrize(
    ("action", "read"),
    [
        ("SELECT 1", Operation("SELECT 1")),
        ("Action: Operation\n```sql\nSELECT 1;\n```", Operation("SELECT 1;")),
        ("I think so.\nAction: Operation\n```sql\nSELECT 1\n```\n```sql\nSELECT 2\n```", Operation("SELECT 1")),
        ("Operation\n```sql\nSELECT 1\n```", Operation("SELECT 1")),
        ("```sql\nSELECT 1\n```", Operation("SELECT 1")),
        ("```\nSELECT 1", Operation("SELECT 1")),
        ("Operation: SELECT 1", Operation("SELECT 1")),
        ("Action: SELECT 1", Operation("SELECT 1")),
        ('Action: Answer\nFinal Answer: ["a", "b"]', Answer('["a", "b"]')),
        ('Done.\nAction: Answer\nFinal Answer: ["a"]\nThat is it.', Answer('["a"]')),
        ('Final Answer: ["a"]', Answer('["a"]')),
        ('answer ["a"]', Answer('["a"]')),
        ('answer(["a"])', Answer('(["a"])')),
        ("Answer: 26", Answer("26")),
        ("", None),
        ("Action: Operation", None),
        ("Action: Operation\n```sql\n```", None),
    ],
)
def test_actions_in_agentbench_s_form_and_in_the_plain_one(action: str, read: object) -> None:
    assert read_action(action) == read


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ('["a", "b"]', ["a", "b"]),
        ("['a, b', 'it\\'s']", ["a, b", "it's"]),
        ("[1, 2.5, null]", ["1", "2.5", "none"]),
        ("[('a',), ('b',)]", ["a", "b"]),
        ("[('a', 1), ('b', 2)]", ["a", "1", "b", "2"]),
        ('[["a", 1], ["b", null]]', ["a", "1", "b", "none"]),
        ("[(26,)]", ["26"]),
        ('(["a"])', ["a"]),
        ("[a, b c]", ["a", "b c"]),
        ("[]", []),
        ("26", ["26"]),
        ("1,200", ["1,200"]),
        ("__import__('os').system('true')", ["__import__('os').system('true')"]),
        ("[" * 4000, ["[" * 4000]),
        ("['" * 2000 + "]", None),
    ],
)
def test_answers_are_read_and_never_run(text: str, items: list[str] | None) -> None:
    read = read_answer(text)

    assert items is None or read == items


@pytest.mark.parametrize(
    ("given", "gold", "same"),
    [
        (["26"], ["26.0"], True),
        (["26.009"], ["26"], True),
        (["26.02"], ["26"], False),
        (["1,200"], ["1200"], True),
        (["12%"], ["12"], True),
        (["none"], ["0"], True),
        (["None"], ["null"], True),
        (["a"], ["A"], False),
        (["'a' "], ["a"], True),
        (["b", "a", "a"], ["a", "b"], True),
        (["a"], ["a", "b"], False),
        (["1", "2.001"], ["2", "1"], True),
        (["1", "1"], ["1"], False),
        (["1", "1"], ["1", "2"], False),
        ([], ["a"], False),
        (["nan"], ["nan"], True),
        (["1e999"], ["2e999"], False),
    ],
)
def test_answers_are_compared_as_dbbench_does(given: list[str], gold: list[str], same: bool) -> None:
    assert same_answer(given, gold) is same


def test_long_output_is_cut() -> None:
    environment = opened(DbTask("q", "other", (Table("t", ("a",), (("x",),) * 1000),), "", answers=("x",)))

    observation = environment.step("SELECT a, 1 FROM t").observation

    assert observation.startswith("[('x', 1), ('x', 1)")
    assert (len(observation), observation[-11:]) == (811, "[TRUNCATED]")


@pytest.mark.parametrize(
    "action",
    [
        "ATTACH 'x' AS y", "PRAGMA database_list", "VACUUM INTO 'x'", "CREATE TABLE x (a)", "DROP TABLE `my shop`",
        "SELECT 1; DROP TABLE `my shop`", "BEGIN; DELETE FROM `my shop`", "SELECT load_extension('x')",
        "SELECT readfile('/etc/passwd')", "SELECT * FROM pragma_database_list", "SELECT LOAD_FILE('/etc/passwd')",
        "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM r) SELECT count(*) FROM r", "日本語 🙂", "\x00",
        "SELECT '\ud800'", "SELECT \u202e1 FROM", "x" * 8192, "(" * 8192, "'" * 8191, "SELECT " + "'" * 8001,
        "SELECT 1" + " UNION SELECT 1" * 500, "SELECT NOW()", "SELECT RAND()", "Final Answer: " + "[" * 8000,
        "SELECT * FROM " + ", ".join(f"`my shop` a{n}" for n in range(60)),
        "SELECT " + "CHAR(" * 1000, "SELECT " + "STRUCT(" * 1000, "SELECT " + "(" * 4000 + "1" + ")" * 4000,
        "SELECT " + "NOT " * 2000 + "1", "SELECT " + "- " * 4000 + "1", "SELECT " + "1+" * 4000 + "1",
        "SELECT " + "CASE WHEN " * 800 + "1", "SELECT { , : 1 }", "SELECT " + "," * 8000, "SELECT 1 /*" + "x" * 8000,
    ],
)  # fmt: skip
def test_hostile_actions_are_answered_and_change_nothing(action: str) -> None:
    environment = opened()

    outcome = environment.step(action)

    assert outcome.score == 0.0
    assert len(outcome.observation) < 900
    if not outcome.terminated:
        assert environment.step("SELECT COUNT(*) FROM `my shop`").observation == "[(2,)]"


def test_a_snapshot_is_independent() -> None:
    environment = opened(CHANGE)
    environment.step("INSERT INTO `my shop` VALUES ('cup', '1', '')")
    twin = environment.snapshot()
    environment.step("DELETE FROM `my shop`")

    assert twin.step("SELECT item FROM `my shop` WHERE item IN ('CUP', 'x')").observation == "[('cup',)]"
    assert environment.step("SELECT COUNT(*) FROM `my shop`").observation == "[(0,)]"
    environment.close()
    assert twin.step("SELECT MD5('a') = md5('a')").observation == "[(1,)]", "the twin has the functions too"
    assert twin.step("DROP TABLE `my shop`").action_valid is False, "and the guard"
    twin.close()


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
def test_generated_answers_are_what_the_gold_statement_gives(level: str, split: Any) -> None:
    tasks = DBBench.task_source(None)

    for index in range(60):
        task = tasks.by_index(split, level, index).data
        environment = opened(task)
        move = environment.expert()
        assert move is not None
        result = environment.step(move.action)
        assert result.action_valid
        if task.changes:
            assert task.state == state_digest(state_after(task.tables, task.gold_sql, DbOptions())), task
            assert opened(task).step("answer done").score == 0.0, "doing nothing is wrong"
        else:
            assert same_answer(read_answer(result.observation), task.answers), (task, result)
        move = environment.expert()
        assert move is not None
        reply_format = Dbbench(FormatOptions())
        reply = reply_format.parse(reply_format.render(move.thought, move.action))
        assert (reply.action, reply.well_formed) == (move.action, True)
        assert environment.step(move.action).score == 1.0
        environment.close()


@pytest.mark.parametrize(("there", "drawn", "new"), [("30", 30, "31"), ("99", 99, "10"), ("30", 40, "40")])
def test_an_update_asks_for_another_value(there: str, drawn: int, new: str) -> None:
    class Rigged(random.Random):
        def randint(self, a: int, b: int) -> int:
            assert (a, b) == (10, 99), "ages"
            return drawn

    world = generate._World(Rigged(1), "barn list", [{"item": "harp", "age": there}], [], ["age"])

    question = generate._update(world)

    assert question.after == [{"item": "harp", "age": new}]
    assert f"Set the age to {new} where" in question.text


def test_an_easy_task_is_small() -> None:
    task = DBBench.task_source(None).by_index("train", "easy", 0).data

    assert (len(task.tables[0].columns), len(task.tables[0].rows)) == (2, 3)
    assert len(task.prompt) < 160


def test_tasks_do_not_depend_on_the_process() -> None:
    script = (
        "from gymfleet_envs.db.environment import DBBench as T\n"
        "s = T.task_source(None)\n"
        "print([s.by_index('test', level, i).data for level in s.levels for i in range(8)])"
    )
    assert len(outputs_by_hash_seed(script)) == 1


def test_names_that_no_database_takes_are_mended() -> None:
    assert fit_names(["", "a ", "A", "x" * 70]) == ("column_1", "a", "A_2", "x" * 64)


def entry(**changes: object) -> dict[str, object]:
    table = {"table_name": "t", "table_info": {"columns": [{"name": "a", "type": "INT"}], "rows": [[1], ["2"]]}}
    return {"description": "Q?", "add_description": "N.", "label": ["2"], "type": ["other"], "table": table} | changes


def write(folder: Path, *entries: object, name: str = "dev") -> Path:
    lines = [line if isinstance(line, str) else json.dumps(line) for line in entries]
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_benchmark_files_become_tasks(tmp_path: Path) -> None:
    write(tmp_path, entry(), entry(type=["DELETE"], label=["DELETE FROM t WHERE a = 1"]))
    write(tmp_path, entry(answer_md5="[('" + "0" * 32 + "',)]", type=["INSERT"]), name="standard")
    write(tmp_path, entry(evidence="E.", table=[entry()["table"]]), name="more")

    tasks = DBBench.task_source(tmp_path)

    assert [tasks.count(split, "dbbench") for split in ("train", "validation", "test")] == [1, 2, 1]
    question, change = tasks.by_id("dev.0").data, tasks.by_id("dev.1").data
    assert (question.prompt, question.answers) == ("Q?\nN.", ("2",))
    assert question.tables == (Table("t", ("a",), (("1",), ("2",))),)
    assert change.state == state_digest([[("2",)]])
    assert tasks.by_id("standard.0").data.state == "0" * 32
    assert tasks.by_id("more.0").data.prompt == "Evidence about the question: E.\nQ?\nN."


def test_lines_of_the_training_file_become_tasks(tmp_path: Path) -> None:
    """As in `db_out_new.jsonl`: digests in lists, results as MySQL prints them, changes in several statements."""
    several = "UPDATE t SET a = '3;'\nWHERE a = '1';\nUPDATE t SET a = '4' WHERE a = '2';"
    write(
        tmp_path,
        entry(type=["SELECT"], label="[('x', 1), ('y', 2)]", answer_md5=[]),
        entry(type=["SELECT"], label="[]", answer_md5=[]),
        entry(type=["UPDATE"], label=[], answer_md5=[state_digest([[("3;",), ("4",)]])], sql={"query": several}),
        name="db_out_new",
    )

    tasks = DBBench.task_source(tmp_path)

    assert tasks.by_id("db_out_new.0").data.answers == ("x", "1", "y", "2")
    for number, num_moves in enumerate((2, 2, 3)):
        environment = opened(tasks.by_id(f"db_out_new.{number}").data)
        for _ in range(num_moves):
            move = environment.expert()
            assert move is not None
            last = environment.step(move.action)
        assert last.score == 1.0, number


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "valid dictionary|object"),
        (entry(type=[]), "type: "),
        (entry(label=[]), "label: a question needs an answer"),
        (entry(table={"table_name": "t", "table_info": {"columns": [], "rows": []}}), "columns"),
        (entry(answer_md5="nonsense", type=["UPDATE"]), "answer_md5 holds no md5"),
        (entry(answer_md5=["nonsense"], type=["UPDATE"]), "answer_md5 holds no md5"),
        (entry(type=["UPDATE"], label=["UPDATE nowhere SET a = 1"]), "the gold statement fails: no such table"),
        (entry(type=["UPDATE"], label=["ATTACH 'x' AS y"]), "the gold statement fails: .*cannot be executed"),
    ],
)  # fmt: skip
def test_damaged_files_are_named_with_line_and_fault(tmp_path: Path, line: object, fault: str) -> None:
    with pytest.raises(TaskDataError, match=rf"dev.jsonl:2: .*({fault})"):
        DBBench.task_source(write(tmp_path, entry(), line))


def test_a_directory_without_tasks_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskDataError, match=re.escape(f"{tmp_path} holds no tasks")):
        DBBench.task_source(tmp_path)
    (tmp_path / "dev.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(TaskDataError, match="not UTF-8"):
        DBBench.task_source(tmp_path)


@pytest.mark.parametrize("data", [path for path in [DATA] if path.is_dir()], ids=["dev"])
def test_published_tasks_are_solved_by_their_gold_answers_and_states(data: Path) -> None:
    tasks = DBBench.task_source(data)
    solved = states = changes = 0

    for number in range(60):
        task = tasks.by_id(f"dev.{number}").data
        environment = opened(task)
        for _ in range(2):
            move = environment.expert()
            assert move is not None
            last = environment.step(move.action)
        solved += last.score == 1.0
        if task.changes:
            changes += 1
            states += state_digest(state_after(task.tables, task.gold_sql, DbOptions())) == task.state
        environment.close()

    assert solved == 60
    assert (states, changes) == (40, 40)


def test_sessions_are_cheap() -> None:
    databases = [SqliteDatabase((SHOP,), DbOptions()) for _ in range(200)]

    assert all(database.execute("SELECT COUNT(*) FROM `my shop`") == "[(2,)]" for database in databases)
    for database in databases:
        database.close()


def test_a_line_with_a_ragged_table_is_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ragged = entry(table={"table_name": "t", "table_info": {"columns": [{"name": "a"}], "rows": [["x"], [1, 2]]}})
    lines = [entry(), ragged, entry(description="Another?")]
    (tmp_path / "dev.jsonl").write_text("\n".join(json.dumps(line) for line in lines))

    tasks = benchmark_tasks(tmp_path, DbOptions())

    assert tasks.count("validation", "dbbench") == 2
    assert tasks.by_id("dev.2").data.prompt.startswith("Another?"), "the ids of the others stay"
    assert "dev.jsonl:2: table 't': row 1 has 2 values for 1 columns" in capsys.readouterr().out


def test_calls_go_into_threads_with_mariadb_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not DBBench.is_blocking()

    monkeypatch.setattr(DBBench, "options", DbOptions(backend="mariadb"))

    assert DBBench.is_blocking()
