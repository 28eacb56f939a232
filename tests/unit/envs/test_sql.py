import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from gymfleet_envs.environment import Outcome
from gymfleet_envs.sql.engine import Databases, query
from gymfleet_envs.sql.environment import ENVIRONMENT, Sql, read_query
from gymfleet_envs.sql.options import SqlOptions
from gymfleet_envs.sql.schema import Schema, in_words
from gymfleet_envs.sql.task import SqlTask, TableData
from gymfleet_envs.sqlite.guard import StatementFailed
from gymfleet_envs.tasks import TaskDataError

from tests.fixtures.hash_seeds import outputs_by_hash_seed
from tests.fixtures.paths import SHARED_DATA

DATA = SHARED_DATA
PETS = TableData(
    "pet",
    "CREATE TABLE pet (id INTEGER PRIMARY KEY, name TEXT, age INTEGER)",
    ((1, "Rex", 3), (2, "Tom", 9), (3, "Kim", 3)),
)
TASK = SqlTask("Which ages are there?", "SELECT DISTINCT age FROM pet", tables=(PETS,))


def opened(task: SqlTask = TASK) -> Sql:
    environment = ENVIRONMENT()
    assert environment.reset(task, 0) == task.prompt
    return environment


@pytest.mark.parametrize(
    ("action", "score", "observation"),
    [
        ("SELECT age FROM pet", 1.0, "[(3,), (9,), (3,)]"),
        ("SELECT age FROM pet GROUP BY age ORDER BY age DESC;", 1.0, "[(9,), (3,)]"),
        ("```sql\nSELECT age FROM pet\n```", 1.0, "[(3,), (9,), (3,)]"),
        ("SELECT age FROM pet WHERE id = 1", 0.0, "[(3,)]"),
        ("SELECT CAST(age AS TEXT) FROM pet", 0.0, "[('3',), ('9',), ('3',)]"),
        ("SELECT age, 1 FROM pet", 0.0, "[(3, 1), (9, 1), (3, 1)]"),
        ("SELECT weight FROM pet", 0.0, "no such column: weight"),
    ],
)
def test_one_query_and_the_episode_is_over(action: str, score: float, observation: str) -> None:
    environment = opened()

    outcome = environment.step(action)

    assert outcome == Outcome(observation, reward=score, terminated=True, score=score)
    assert environment.step(TASK.gold_sql).reward == 0.0, "there is no second query"
    assert environment.expert() is None


def test_the_gold_query_is_never_shown() -> None:
    outcome = opened().step("SELECT 1")

    assert outcome.info == {}
    assert "DISTINCT" not in outcome.observation


def test_long_results_are_cut_as_agentgym_cuts_them() -> None:
    observation = opened().step("SELECT name, name, name, name, name FROM pet").observation

    assert (len(observation), observation[-3:]) == (103, "...")


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("SELECT 1", "SELECT 1"),
        ("Action: SELECT 1", "SELECT 1"),
        ("Thought: a\n\nAction: ```sql\nSELECT 1\n```", "SELECT 1"),
        ("```sql\nSELECT 1\n```\nor\n```sql\nSELECT 2\n```", "SELECT 2"),
        ("```SELECT 1```", "SELECT 1"),
        ("", ""),
    ],
)
def test_queries_in_a_block_and_bare(text: str, query: str) -> None:
    assert read_query(text) == query


@pytest.mark.parametrize(
    "action",
    [
        "", "x" * 8192, "日本語", "\x00", "SELECT '\ud800'", "(" * 8000, "SELECT 1; SELECT 2", "DROP TABLE pet",
        "DELETE FROM pet", "INSERT INTO pet VALUES (4, 'x', 1)", "ATTACH 'x' AS y", "PRAGMA query_only = OFF",
        "SELECT load_extension('x')", "SELECT readfile('/etc/passwd')", "SELECT * FROM pragma_database_list",
        "VACUUM INTO 'x'", "WITH d AS (DELETE FROM pet RETURNING age) SELECT age FROM d", "BEGIN",
        "SELECT randomblob(1000000000)", "SELECT hex(zeroblob(100000000))",
    ],
)  # fmt: skip
def test_hostile_queries_are_answered(action: str) -> None:
    outcome = opened().step(action)

    assert (outcome.score, outcome.terminated) == (0.0, True)
    assert 0 < len(outcome.observation) <= 103


def test_a_query_that_never_ends_is_stopped() -> None:
    class Hasty(Sql):
        options = SqlOptions(query_time_s=0.05)

    environment = Hasty()
    environment.reset(TASK, 0)

    outcome = environment.step("WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r")

    assert (outcome.score, outcome.observation) == (0.0, "interrupted: the statement takes longer than 0.05 s")


def test_a_function_that_nothing_interrupts_is_refused() -> None:
    environment = opened(TASK)

    outcome = environment.step("SELECT length(printf('%.2147483647c', 'x'))")

    assert (outcome.score, outcome.observation) == (0.0, "string or blob too big")


def test_too_many_rows_are_no_answer() -> None:
    class Small(Sql):
        options = SqlOptions(max_rows=5)

    environment = Small()
    environment.reset(TASK, 0)

    outcome = environment.step("SELECT a.age FROM pet a, pet b")

    assert (outcome.score, outcome.observation[:34]) == (0.0, "the result has more than 5 rows or")


def test_a_gold_query_that_fails_is_no_wrong_answer() -> None:
    with pytest.raises(StatementFailed):
        opened(SqlTask("q", "SELECT nope FROM pet", tables=(PETS,))).step("SELECT 1")


# As AgentGym's recorded prompts have it, with the column after the one that is meant.
LOANS = Schema(
    "student_loan",
    ("bool", "Person", "enlist"),
    ((-1, "*"), (0, "name"), (1, "name"), (2, "name"), (2, "organ")),
    frozenset({1, 2}),
    ((3, 2),),
)


def test_a_database_in_agentgym_s_words() -> None:
    assert in_words(LOANS, published=True) == (
        "student_loan contains tables such as bool, person, enlist. Table bool has columns such as name. name is the "
        "primary key. Table person has columns such as name. name is the primary key. Table enlist has columns such as "
        "name, organ.  is the primary key. The organ of enlist is the foreign key of name of person."
    )
    assert in_words(LOANS, published=False).endswith("The name of enlist is the foreign key of name of Person.")


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
def test_the_expert_solves_generated_tasks(level: str, split: Any) -> None:
    tasks = Sql.task_source(None)

    for index in range(40):
        environment = opened(tasks.by_index(split, level, index).data)
        move = environment.expert()
        assert move is not None
        outcome = environment.step(move.action)
        assert (outcome.score, outcome.action_valid) == (1.0, True)


@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
def test_a_query_that_says_nothing_of_the_question_is_wrong(level: str) -> None:
    tasks = Sql.task_source(None)

    for index in range(150):
        task = tasks.by_index("train", level, index).data
        names = [f"SELECT name FROM {table.name}" for table in task.tables if " name TEXT" in table.definition]  # noqa: S608
        for free in ("SELECT 1 WHERE 0", "SELECT NULL", *names):
            assert opened(task).step(free).score == 0.0, task.prompt


def test_generated_schemas_are_those_of_their_databases() -> None:
    for level in ("easy", "medium", "hard"):
        task = Sql.task_source(None).by_index("train", level, 0).data
        database = sqlite3.connect(":memory:")
        for table in task.tables:
            database.execute(table.definition)
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table.name})")]
            assert f"Table {table.name} has columns such as {', '.join(columns)}. {columns[0]} is" in task.prompt
            for row in database.execute(f"PRAGMA foreign_key_list({table.name})"):
                assert f"The {row[3]} of {table.name} is the foreign key of {row[4]} of {row[2]}." in task.prompt
        database.close()


def test_tasks_do_not_depend_on_the_process() -> None:
    script = (
        "from gymfleet_envs.sql.environment import Sql as T\n"
        "s = T.task_source(None)\n"
        "print([s.by_index('test', level, i).data for level in s.levels for i in range(8)])"
    )
    assert len(outputs_by_hash_seed(script)) == 1


def make(folder: Path, questions: object, *, databases: str = "database", name: str = "dev") -> Path:
    (folder / f"{name}.json").write_text(questions if isinstance(questions, str) else json.dumps(questions))
    (folder / databases / "pets").mkdir(parents=True)
    connection = sqlite3.connect(folder / databases / "pets" / "pets.sqlite")
    connection.execute("CREATE TABLE Owner (Id INTEGER PRIMARY KEY, Name TEXT)")
    connection.execute("CREATE TABLE Pet (Id INTEGER PRIMARY KEY, Name TEXT, OwnerId INTEGER REFERENCES Owner (Id))")
    connection.execute("INSERT INTO Owner VALUES (1, 'Ann'), (2, CAST(x'c4c4' AS TEXT))")
    connection.commit()
    connection.close()
    return folder


GOOD = {"db_id": "pets", "question": "Who?", "query": "SELECT Name FROM Owner"}
WORDS = (
    "pets contains tables such as Owner, Pet. Table Owner has columns such as Id, Name. Id is the primary key. "
    "Table Pet has columns such as Id, Name, OwnerId. Id is the primary key. "
    "The OwnerId of Pet is the foreign key of Id of Owner."
)


def test_spider_s_directory_becomes_tasks(tmp_path: Path) -> None:
    broken = GOOD | {"query": "SELECT alter FROM Owner"}
    write = GOOD | {"query": "DELETE FROM Owner"}
    tasks = Sql.task_source(make(tmp_path, [GOOD, broken, write, GOOD | {"question": "Again?"}]))

    assert (tasks.name, tasks.count("validation", "benchmark")) == ("spider", 2)
    assert [tasks.by_index("validation", "benchmark", place).task_id for place in (0, 1)] == ["dev.0", "dev.3"]
    task = tasks.by_id("dev.0").data
    assert task.prompt == f"{WORDS}\n\nWho?"
    outcome = opened(task).step("SELECT Name FROM Owner")
    assert (outcome.score, outcome.observation) == (1.0, "[('Ann',), ('\ufffd\ufffd',)]"), "Latin-1 is read somehow"


def test_bird_s_directories_become_tasks(tmp_path: Path) -> None:
    entry = {"db_id": "pets", "question": "Who?", "SQL": "SELECT Name FROM Owner", "evidence": "Ask."}
    for split in ("train", "dev"):
        (tmp_path / split).mkdir()
        make(tmp_path / split, [entry], databases=f"{split}_databases", name=split)
    tables = {"db_id": "pets", "table_names": ["owner", "pet"], "column_names": [[-1, "*"], [0, "Owner Name"]],
              "primary_keys": [1, [1]], "foreign_keys": []}  # fmt: skip
    (tmp_path / "dev" / "dev_tables.json").write_text(json.dumps([tables]))

    class Hinted(Sql):
        options = SqlOptions(evidence=True)

    tasks = Sql.task_source(tmp_path)

    assert (tasks.name, tasks.count("train", "benchmark"), tasks.count("validation", "benchmark")) == ("bird", 1, 1)
    assert tasks.by_id("train.0").data.prompt == f"{WORDS}\n\nWho?"
    assert tasks.by_id("dev.0").data.prompt.startswith(
        "pets contains tables such as owner, pet. Table owner has columns such as owner name."
    )
    assert Hinted.task_source(tmp_path).by_id("train.0").data.prompt == f"{WORDS}\n\nAsk.\n\nWho?"


def test_bird_s_mini_dev_has_the_databases_and_tables_of_dev(tmp_path: Path) -> None:
    make(tmp_path, [GOOD], databases="dev_databases", name="mini_dev_sqlite")
    tables = {"db_id": "pets", "table_names": ["owner"], "column_names": [[-1, "*"], [0, "Owner Name"]]}
    (tmp_path / "dev_tables.json").write_text(json.dumps([tables]))

    tasks = Sql.task_source(tmp_path)

    assert tasks.count("validation", "benchmark") == 1
    assert tasks.by_id("mini_dev_sqlite.0").data.prompt.startswith("pets contains tables such as owner.")


@pytest.mark.parametrize(
    ("questions", "fault"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ({}, "valid list"),
        ([{}], "db_id"),
        ([GOOD | {"db_id": "../pets"}], "cannot be the name of a database"),
        ([GOOD | {"db_id": "other"}], "there is no database other/other.sqlite"),
        ([GOOD | {"query": "nonsense"}], "none can be executed"),
    ],
)
def test_damaged_questions_are_named_with_their_fault(tmp_path: Path, questions: object, fault: str) -> None:
    with pytest.raises(TaskDataError, match=fault):
        Sql.task_source(make(tmp_path, questions))


def test_questions_without_databases_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskDataError, match="holds no questions"):
        Sql.task_source(tmp_path)
    (tmp_path / "dev.json").write_text(json.dumps([GOOD]))
    with pytest.raises(TaskDataError, match="there are no databases beside it"):
        Sql.task_source(tmp_path)


def test_damaged_databases_are_named(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    source = make(tmp_path / "source", [GOOD])
    file = source / "database" / "pets" / "pets.sqlite"
    good = file.read_bytes()
    for damaged in (b"no database at all" * 300, good[:4096] + b"\xff" * (len(good) - 4096)):
        file.write_bytes(damaged)
        target = tmp_path / f"target{len(damaged)}"
        with pytest.raises(TaskDataError, match=r"pets\.sqlite"):
            Sql.import_data(source, target)
    file.write_bytes(b"no database at all" * 300)
    with pytest.raises(TaskDataError, match=r"pets\.sqlite.*not a database"):
        Sql.task_source(source)


def test_a_database_file_is_not_written(tmp_path: Path) -> None:
    task = Sql.task_source(make(tmp_path, [GOOD])).by_id("dev.0").data
    assert task.path is not None
    before = task.path.read_bytes()

    outcome = opened(task).step("UPDATE Owner SET Name = 'x'")

    assert outcome.action_valid is False
    assert task.path.read_bytes() == before
    assert [path.name for path in task.path.parent.iterdir()] == ["pets.sqlite"], "no journal, no lock"


def test_gold_rows_are_worked_out_once(tmp_path: Path) -> None:
    task = Sql.task_source(make(tmp_path, [GOOD])).by_id("dev.0").data
    databases, options = Databases(), SqlOptions()
    with databases.connection(task, options) as connection:
        first = databases.gold(task, connection, options)
        connection.close()

    assert databases.gold(task, connection, options) is first, "not asked of the database again, which is closed"


def test_connections_are_used_again_by_one_episode_at_a_time(tmp_path: Path) -> None:
    task = Sql.task_source(make(tmp_path, [GOOD])).by_id("dev.0").data
    databases, options = Databases(max_idle=1), SqlOptions()
    with databases.connection(task, options) as first, databases.connection(task, options) as second:
        assert first is not second
    with databases.connection(task, options) as again:
        assert again in (first, second)
        other = Sql.task_source(None).by_id("easy.train.0").data
        with databases.connection(other, options) as third:
            assert query(third, other.gold_sql, options) == query(third, other.gold_sql, options)
    with databases.connection(other, options) as fresh:
        assert fresh is not third, "more than may be idle are closed"
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            query(third, other.gold_sql, options)


def test_a_connection_that_failed_oddly_is_not_used_again(tmp_path: Path) -> None:
    task = Sql.task_source(make(tmp_path, [GOOD])).by_id("dev.0").data
    databases, options = Databases(), SqlOptions()
    with pytest.raises(ZeroDivisionError), databases.connection(task, options) as broken:
        1 / 0  # noqa: B018

    with databases.connection(task, options) as fresh:
        assert fresh is not broken


def spider() -> list[Path]:
    return [DATA / "spider"] if (DATA / "spider" / "dev.json").is_file() else []


@pytest.mark.parametrize("data", spider(), ids=lambda _: "published")
def test_spider_s_gold_queries_score_1(data: Path) -> None:
    tasks = Sql.task_source(data)
    count = tasks.count("validation", "benchmark")

    assert count == 978, "of 1,030, 52 name a column ALTER without quotes"
    for index in range(count):
        task = tasks.by_index("validation", "benchmark", index)
        assert opened(task.data).step(task.data.gold_sql).score == 1.0, task.task_id


@pytest.mark.parametrize("data", [path for path in [DATA / "bird"] if path.is_dir()], ids=lambda _: "published")
def test_bird_without_its_databases_says_so(data: Path) -> None:
    with pytest.raises(TaskDataError, match="dev_databases"):
        Sql.task_source(data)
