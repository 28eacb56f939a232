"""DBBench on a real MariaDB server, started for these tests."""
# ruff: noqa: S608, E501 - statements of an attacker, one to a line

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gymfleet_env_server.catalogue import EnvironmentUnavailable, load_entry
from gymfleet_envs.db.environment import DBBench
from gymfleet_envs.db.mariadb_server import MariaServer, server_for
from gymfleet_envs.db.options import DbOptions
from gymfleet_envs.db.tables import Table, state_digest
from gymfleet_envs.db.task import DbTask
from gymfleet_envs.environment import EngineLost
from gymfleet_envs.tasks import TaskDataError

from tests.fixtures.mariadb import PrivateMariaDB
from tests.fixtures.paths import SHARED_DATA

DATA = SHARED_DATA / "dbbench"
SHOP = Table("my shop", ("item", "price"), (("lamp", "9"), ("rug", "12.5")))
TASK = DbTask("Which?", "other", (SHOP,), "SELECT item FROM `my shop`", answers=("lamp", "rug"))

pytestmark = pytest.mark.skipif(shutil.which("mariadbd") is None, reason="needs MariaDB")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateMariaDB]:
    server = PrivateMariaDB(tmp_path_factory.mktemp("db"))
    server.start()
    server.prepare()
    yield server
    server.kill()


@pytest.fixture
def options(server: PrivateMariaDB, tmp_path: Path) -> dict[str, Any]:
    if server.process is None:
        server.start()
    return server.options(tmp_path)


@pytest.fixture
def kind(options: dict[str, Any]) -> Iterator[type[DBBench]]:
    class OnMaria(DBBench):
        pass

    OnMaria.options = DbOptions.model_validate(options | {"statement_time_s": 1.0, "max_changed_rows": 50})
    yield OnMaria
    server_for(OnMaria.options).close()


def opened(kind: type[DBBench], task: DbTask = TASK) -> DBBench:
    environment = kind()
    environment.reset(task, 0)
    return environment


def test_an_episode_leaves_nothing_behind(server: PrivateMariaDB, kind: type[DBBench]) -> None:
    environment = opened(kind)

    assert environment.step("SELECT item FROM `my shop` WHERE price > 10").observation == "[('rug',)]"
    assert environment.step("SELECT nope FROM `my shop`").observation.startswith("1054: Unknown column 'nope'")
    assert environment.step("INSERT INTO `my shop` VALUES ('cup', 3)").observation == "[]"
    twin = environment.snapshot()
    assert environment.step("DELETE FROM `my shop`").observation == "[]"
    assert twin.step("SELECT COUNT(*) FROM `my shop`").observation == "[(3,)]"
    assert environment.step("SELECT COUNT(*) FROM `my shop`").observation == "[(0,)]"
    assert twin.step('Final Answer: ["rug", "lamp"]').score == 1.0
    assert len(server.left()) == 2, "a database each, and a user of the same name"

    environment.close()
    twin.close()

    assert server.left() == []


def test_the_same_actions_show_the_same(kind: type[DBBench]) -> None:
    actions = [
        "SELECT DATABASE(), NOW(), RAND()",
        "SELECT * FROM nowhere",
        "SHOW DATABASES",
        "SHOW CREATE TABLE `my shop`",
    ]
    shown = []
    for _ in range(2):
        environment = opened(kind)
        shown.append([environment.step(action).observation for action in actions])
        environment.close()

    assert shown[0] == shown[1]
    assert shown[0][0].startswith("[('dbbench', datetime.datetime(2023, ")
    assert shown[0][1] == "1146: Table 'dbbench.nowhere' doesn't exist"


@pytest.mark.parametrize(
    "action",
    [
        "SELECT * FROM mysql.user", "SELECT LOAD_FILE('/etc/passwd')", "SELECT 1 INTO OUTFILE '/tmp/escaped'",
        "LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE `my shop`", "SET max_statement_time = 0", "KILL 1", "SHUTDOWN",
        "SET STATEMENT max_statement_time = 0 FOR SELECT SLEEP(60)", "/*! SET max_statement_time = 0 */",
        "CREATE DATABASE other", "DROP DATABASE dbbench", "CREATE TABLE x (a INT)", "CREATE USER x", "GRANT ALL ON *.* TO x",
        "SELECT 1; DROP TABLE `my shop`", "SHOW PROCESSLIST", "SHOW GRANTS", "LOCK TABLES `my shop` WRITE",
        "SELECT SLEEP(60)", "SELECT BENCHMARK(1000000000, MD5('a'))", "SELECT REPEAT('a', 10000000)",
        "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT COUNT(*) FROM r", "日本語", "\x00",
        "SELECT '\ud800'", "INSERT INTO `my shop` SELECT a.item, 1 FROM `my shop` a, information_schema.columns LIMIT 60",
    ],
)  # fmt: skip
def test_an_agent_reaches_nothing_but_its_rows(server: PrivateMariaDB, kind: type[DBBench], action: str) -> None:
    environment = opened(kind)

    outcome = environment.step(action)

    assert outcome.score == 0.0
    assert len(outcome.observation) < 900
    assert "root" not in outcome.observation
    assert "gymfleet" not in outcome.observation
    assert environment.step("SELECT COUNT(*) FROM `my shop`").observation == "[(2,)]"
    environment.close()
    assert server.left() == []


@pytest.mark.parametrize("returned", ["", " RETURNING 1"], ids=["alone", "with RETURNING"])
@pytest.mark.parametrize(
    ("kind_of_change", "statement"),
    [
        ("INSERT", "INSERT INTO `my shop` VALUES ('cup', '3')"),
        ("INSERT", "REPLACE INTO `my shop` VALUES ('cup', '3')"),
        ("DELETE", "DELETE FROM `my shop` WHERE item = 'rug'"),
    ],
)
def test_what_a_statement_changes_counts_whether_it_gives_rows_or_not(
    kind: type[DBBench], kind_of_change: str, statement: str, returned: str
) -> None:
    rows = [*SHOP.rows, ("cup", "3")] if kind_of_change == "INSERT" else SHOP.rows[:1]
    environment = opened(kind, DbTask("Change it", kind_of_change, (SHOP,), statement, state=state_digest([rows])))

    shown = environment.step(statement + returned).observation
    score = environment.step("Final Answer: done").score

    assert (shown, score) == ("[(1,)]" if returned else "[]", 1.0)
    environment.close()


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO `my shop` SELECT a.item, b.item FROM `my shop` a, `my shop` b{}",
        "DELETE FROM `my shop`{}",
        "UPDATE `my shop` SET price = 1",
        "DELETE a FROM `my shop` a, `my shop` b",
    ],
)
@pytest.mark.parametrize("returned", ["", " RETURNING item"], ids=["alone", "with RETURNING"])
def test_no_statement_changes_more_rows_than_one_may(kind: type[DBBench], statement: str, returned: str) -> None:
    shop = Table("my shop", ("item", "price"), tuple((f"item {number}", "9") for number in range(60)))
    environment = opened(kind, DbTask("Which?", "other", (shop,), "SELECT 1", answers=("1",)))

    shown = environment.step(statement.format(returned)).observation

    assert shown == "one statement may change at most 50 rows"
    assert environment.step("SELECT COUNT(*), MIN(price) FROM `my shop`").observation == "[(60, '9')]"
    environment.close()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT price FROM people WHERE name = 'jose' ORDER BY price + 0",
        "SELECT COUNT(DISTINCT name) FROM people",
        "SELECT name FROM people WHERE name LIKE '%ZOE'",
        "SELECT name FROM people WHERE name LIKE '_os_' AND price = 9",
        r"SELECT '10%' LIKE '10\%', '10x' LIKE '10\%', '10x' LIKE '10|%' ESCAPE '|'",
        "SELECT name FROM people WHERE name IN ('ZOE', 'ann') ORDER BY name DESC",
        "SELECT INSTR(name, 'E'), LOCATE('O', name), LENGTH(name), CHAR_LENGTH(name) FROM people WHERE price = '9'",
        "SELECT HEX(255), HEX('a'), ROUND(LOG(10), 3), LOG(2, 8)",
        "SELECT FIELD('É', 'a', 'e'), STRCMP('José', 'jose')",
        "SELECT name, COUNT(*) FROM people GROUP BY name HAVING COUNT(*) > 1",
        "UPDATE people SET price = 1 WHERE name = 'JOSÉ'",
        "SELECT MAX(name), MIN(name) FROM people WHERE name < 'k'",
        "SELECT name FROM people WHERE CASE WHEN price > 8 THEN 1 ELSE 0 END = 1",
        "SELECT name FROM people WHERE price > (SELECT AVG(price) FROM people)",
        "SELECT name FROM people WHERE price > ABS(-9) OR price + 0 = '8'",
        "SELECT name FROM people WHERE LOWER(name) = 'JOSE' AND price BETWEEN '8' AND 9",
        "SELECT name FROM people WHERE BINARY name = 'JOSE' OR name COLLATE utf8mb4_bin = 'ann'",
        "SELECT name AS 'order' FROM people ORDER BY `order` DESC LIMIT 1 FOR UPDATE",
        "SELECT GROUP_CONCAT(name SEPARATOR '; '), GROUP_CONCAT(price, '!') FROM people",
        "SELECT TRIM(TRAILING 'x' FROM 'axx'), SUBSTRING('abc' FROM 2 FOR 1), POSITION('c' IN 'abc'), 'a' 'b'",
        "SELECT EXTRACT(YEAR FROM '2020-05-03'), 7 DIV 2, 1 XOR 1, 1 || 0, !1, NULL <=> NULL",
        "SELECT 1 FROM DUAL",
        "(SELECT name FROM people WHERE price = 9) UNION ALL (SELECT price FROM people WHERE name = 'ann')",
        "UPDATE people p SET p.price = 1 WHERE p.name = 'ann'",
        "UPDATE people SET price = '1' AND name = 'ann'",
        "UPDATE people SET price = IF(price > 8, 1, 0) ORDER BY name LIMIT 2",
        "DELETE p FROM people p WHERE p.price > 8",
        "INSERT INTO people SET name = 'Eve', price = 5",
        "INSERT IGNORE people VALUES ('Eve', DEFAULT), ('Fay', 6)",
        "REPLACE INTO people (name) VALUE ('Eve')",
        "INSERT INTO people () VALUES ()",
    ],
)
def test_sqlite_shows_what_mariadb_shows(kind: type[DBBench], sql: str) -> None:
    people = Table("people", ("name", "price"), (("José", "9"), ("JOSE", "10"), ("Zoë", "8"), ("Ann", "x7")))
    task = DbTask("Which?", "other", (people,), "SELECT 1", answers=("1",))
    maria, lite = opened(kind, task), opened(DBBench, task)

    assert lite.step(sql).observation == maria.step(sql).observation
    assert lite._database.state() == maria._database.state()
    maria.close()
    lite.close()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT name, FROM people",
        "SELECT price::int FROM people",
        "SELECT name FROM people WHERE name ILIKE 'a%'",
        "SELECT name FROM 'people'",
        "SELECT name FROM people WHERE name IS NOT DISTINCT FROM 'Ann'",
        "SELECT name AS order FROM people",
        "SELECT CAST(price AS SIGNED FROM people",
        "SELECT COUNT(*) FILTER (WHERE price = 9) FROM people",
        "INSERT INTO people VALUES 'a', 'b'",
        "INSERT INTO people ('name') VALUES ('a')",
        "UPDATE people SET (name, price) = ('a', 'b')",
        "UPDATE people SET price = p.price FROM people p",
        "UPDATE people SET price = 1 RETURNING price",
    ],
)
def test_sqlite_refuses_what_mariadb_refuses(kind: type[DBBench], sql: str) -> None:
    people = Table("people", ("name", "price"), (("Ann", "9"),))
    task = DbTask("Which?", "other", (people,), "SELECT 1", answers=("1",))
    maria, lite = opened(kind, task), opened(DBBench, task)

    assert maria.step(sql).observation.startswith("1064")
    assert lite.step(sql).observation.startswith("1064")
    maria.close()
    lite.close()


def test_a_statement_that_only_reads_holds_no_locks_after_it(kind: type[DBBench]) -> None:
    environment = opened(kind)

    environment.step("SELECT item FROM `my shop` FOR UPDATE")
    twin = environment.snapshot()  # reads the same rows

    assert twin.step("SELECT COUNT(*) FROM `my shop`").observation == "[(2,)]"
    environment.close()
    twin.close()


def test_each_statement_has_a_session_of_its_own(kind: type[DBBench]) -> None:
    environment = opened(kind)

    assert environment.step("SELECT @rank := 3").observation == "[(3,)]"
    assert environment.step("SELECT @rank").observation == "[(None,)]", "a fork would not have it either"
    environment.close()


@pytest.mark.parametrize("call", ["GET_LOCK('a', 1)", "`is_used_lock`('a')", "/*! release_all_locks() */"])
def test_sessions_have_no_locks_in_common(kind: type[DBBench], call: str) -> None:
    environment = opened(kind)

    outcome = environment.step(f"SELECT {call}")

    assert not outcome.action_valid
    assert "LOCK" in outcome.observation
    assert environment.step('SELECT item FROM `my shop` WHERE item = "get_lock"').observation == "[]"
    environment.close()


def test_a_database_keeps_within_its_size(server: PrivateMariaDB, kind: type[DBBench]) -> None:
    class Small(kind):  # type: ignore[valid-type, misc]
        options = kind.options.model_copy(update={"database_bytes": 2**20, "max_changed_rows": 10_000})

    shop = Table("my shop", ("item", "price"), tuple((f"item {number}", "9") for number in range(1500)))
    environment = opened(Small, DbTask("Which?", "other", (shop,), "SELECT 1", answers=("1",)))
    full = "the tables may hold at most 1048576 bytes"

    assert environment.step("UPDATE `my shop` SET item = REPEAT('x', 60000) LIMIT 20").observation == full
    assert environment.step("UPDATE `my shop` SET item = REPEAT('x', 60000), price = item").observation == full
    assert environment.step("UPDATE `my shop` SET item = REPEAT('x', 60000) LIMIT 5").observation == "[]"

    assert environment.step("SELECT COUNT(*) FROM `my shop` WHERE price = '9'").observation == "[(1500,)]"
    assert server_for(Small.options).size(environment._database._name) < 4 * 2**20  # type: ignore[attr-defined]
    environment.close()
    server_for(Small.options).close()


def test_the_sql_mode_is_that_of_the_published_answers_whatever_the_server_has(
    server: PrivateMariaDB, kind: type[DBBench]
) -> None:
    server.run("SET GLOBAL sql_mode = 'ANSI_QUOTES,STRICT_ALL_TABLES'")
    environment = opened(kind)
    server.run("SET GLOBAL sql_mode = DEFAULT")

    assert environment.step("UPDATE `my shop` SET price = CAST('12 kg' AS UNSIGNED) + 1").observation == "[]"
    assert environment.step('SELECT price FROM `my shop` WHERE item = "rug"').observation == "[('13',)]"
    environment.close()


def test_an_administrator_who_may_not_watch_the_files_is_refused(server: PrivateMariaDB, kind: type[DBBench]) -> None:
    server.run("REVOKE PROCESS ON *.* FROM gymfleet@localhost")
    try:
        with pytest.raises(TaskDataError, match="PROCESS"):
            kind.task_source(None)
    finally:
        server.run("GRANT PROCESS ON *.* TO gymfleet@localhost")


def test_an_endless_result_is_given_up(kind: type[DBBench]) -> None:
    environment = opened(kind)
    environment.step("UPDATE `my shop` SET item = REPEAT('x', 60000)")

    outcome = environment.step("SELECT a.item, b.item, c.item FROM `my shop` a, `my shop` b, `my shop` c")

    assert outcome.observation.endswith("[TRUNCATED]")
    assert environment.step("SELECT COUNT(*) FROM `my shop`").observation == "[(2,)]"
    environment.close()


def test_one_episode_does_not_see_another(kind: type[DBBench]) -> None:
    mine, other = opened(kind), opened(kind)
    name: str = other._database._name  # type: ignore[attr-defined]

    assert "denied" in mine.step(f"SELECT * FROM `{name}`.`my shop`").observation
    assert mine.step("SHOW DATABASES").observation == "[('dbbench',), ('information_schema',)]"
    mine.close()
    other.close()


def test_sessions_run_side_by_side(kind: type[DBBench]) -> None:
    slow, quick = opened(kind), opened(kind)
    shown: list[str] = []
    thread = threading.Thread(target=lambda: shown.append(slow.step("SELECT SLEEP(60)").observation))
    thread.start()

    assert quick.step("SELECT COUNT(*) FROM `my shop`").observation == "[(2,)]"
    assert thread.is_alive()
    thread.join(30)

    assert shown in (["[(1,)]"], ["1969: Query execution was interrupted (max_statement_time exceeded)"])
    slow.close()
    quick.close()


def test_what_a_dead_process_left_is_dropped_and_a_living_one_keeps_its_own(
    server: PrivateMariaDB, kind: type[DBBench]
) -> None:
    alive = opened(kind)
    dead = "gymfleet" + "0" * 16 + "1" * 16
    server.run(f"CREATE DATABASE {dead}", f"CREATE USER '{dead}'@'%'", "CREATE DATABASE gymfleetother")

    sweeper = MariaServer(kind.options)
    assert sweeper.sweep() == 1
    sweeper.close()

    assert sorted(set(server.left())) == sorted([alive._database._name, "gymfleetother"])  # type: ignore[attr-defined]
    assert alive.step("SELECT COUNT(*) FROM `my shop`").observation == "[(2,)]"
    alive.close()
    server.run("DROP DATABASE gymfleetother")


def test_a_server_that_lets_everybody_in_is_refused(server: PrivateMariaDB, kind: type[DBBench]) -> None:
    server.run("CREATE DATABASE test", "GRANT SELECT ON test.* TO PUBLIC")

    with pytest.raises(EngineLost, match=r"lets every user into \['test'\]"):
        opened(kind)

    server.run("REVOKE SELECT ON test.* FROM PUBLIC", "DROP DATABASE test")
    assert server.left() == []


def test_a_server_that_is_not_there_is_named(options: dict[str, Any], tmp_path: Path) -> None:
    for wrong in ({"unix_socket": str(tmp_path / "no")}, {"password_file": str(tmp_path / "no")}):
        with pytest.raises(EnvironmentUnavailable, match=r"environment db: .*cannot be (used|read)"):
            load_entry("db", {}, {"db": options | wrong})
    load_entry("db", {}, {})  # puts the default options back


@pytest.mark.parametrize("data", [path for path in [DATA] if path.is_dir()], ids=["dev"])
def test_published_states_are_reached(kind: type[DBBench], data: Path) -> None:
    tasks = DBBench.task_source(data)
    same = solved = 0
    for number in range(60):
        task = tasks.by_id(f"dev.{number}").data
        environment = opened(kind, task)
        for _ in range(2):
            move = environment.expert()
            assert move is not None
            last = environment.step(move.action)
        solved += last.score == 1.0
        same += task.changes and state_digest(environment._database.state()) == task.state
        environment.close()

    assert (solved, same) == (60, 40)


def test_generated_tasks_are_solved(kind: type[DBBench]) -> None:
    tasks = DBBench.task_source(None)
    for level in tasks.levels:
        for index in range(8):
            environment = opened(kind, tasks.by_index("test", level, index).data)
            for _ in range(2):
                move = environment.expert()
                assert move is not None
                last = environment.step(move.action)
            assert last.score == 1.0
            environment.close()


def test_a_server_that_dies_loses_the_episode_and_serves_again(server: PrivateMariaDB, kind: type[DBBench]) -> None:
    environment = opened(kind)
    server.kill()

    with pytest.raises(EngineLost):
        environment.step("SELECT 1")
    environment.close()
    with pytest.raises(EngineLost):
        opened(kind)

    server.start()
    environment = opened(kind)
    assert environment.step("SELECT COUNT(*) FROM `my shop`").observation == "[(2,)]"
    environment.close()
