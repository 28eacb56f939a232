# ruff: noqa: S608, E501, ISC004 - statements and what they show, one to a line
"""MySQL's dialect on SQLite: what MySQL runs gives what it gives there, and what it refuses is refused."""

import re
import time
from typing import Any

import pytest
from gymfleet_envs.db.environment import ENVIRONMENT, DBBench
from gymfleet_envs.db.options import DbOptions
from gymfleet_envs.db.sqlite import SqliteDatabase
from gymfleet_envs.db.tables import Table, state_digest
from gymfleet_envs.db.task import DbTask
from gymfleet_envs.environment import Outcome

SHOP = Table("my shop", ("item", "Price", "sold on"), (("lamp", "9", "2020-05-01"), ("Rug", "12.5", "2021-06-02")))
QUESTION = DbTask("Which item?", "other", (SHOP,), "SELECT item FROM `my shop`", answers=("lamp", "Rug"))
UPDATED = state_digest([[("lamp", "10", "2020-05-01"), ("Rug", "12.5", "2021-06-02")]])
CHANGE = DbTask("Set it.", "UPDATE", (SHOP,), "UPDATE `my shop` SET Price = 10 WHERE item = 'lamp'", state=UPDATED)


def opened(task: DbTask = QUESTION) -> DBBench:
    environment = ENVIRONMENT()
    environment.reset(task, 0)
    return environment


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("SELECT item FROM `my shop` WHERE Price < 10", "[('lamp',)]"),
        ("SELECT item FROM `my shop` WHERE 10 > Price", "[('lamp',)]"),
        ("SELECT item FROM `my shop` WHERE Price BETWEEN 10 AND 20", "[('Rug',)]"),
        ("SELECT item FROM `my shop` WHERE Price NOT IN (9, 10)", "[('Rug',)]"),
        ("SELECT item FROM `my shop` AS s WHERE s.Price >= 12.5", "[('Rug',)]"),
        ("SELECT item FROM `my shop` WHERE item = 'RUG'", "[('Rug',)]"),
        ('SELECT item FROM `my shop` WHERE item = "rug"', "[('Rug',)]"),
        (r"SELECT 'it\'s', 'a''b', "'"say ""x"""', """[("it's", "a'b", 'say "x"')]"""),
        ("SELECT CONCAT(item, '-', Price), LEFT(item, 2), RIGHT(item, 1) FROM `my shop` LIMIT 1", "[('lamp-9', 'la', 'p')]"),
        ("SELECT CONCAT(item, NULL), CONCAT_WS(',', item, NULL, Price) FROM `my shop` LIMIT 1", "[(None, 'lamp,9')]"),
        ("SELECT IF(Price > 10, 'dear', 'cheap') FROM `my shop`", "[('cheap',), ('dear',)]"),
        ("SELECT MD5('a'), SUBSTRING('abc', 2, 1)", "[('0cc175b9c0f1b6a831c399e269772661', 'b')]"),
        ("SELECT CAST('12abc' AS UNSIGNED), CAST('x' AS SIGNED), 5 / 2", "[(12, 0, 2.5)]"),
        ("SELECT YEAR(`sold on`), STR_TO_DATE('May 3, 2020', '%M %d, %Y') FROM `my shop` LIMIT 1", "[(2020, '2020-05-03')]"),
        ("SELECT DATE_FORMAT('2020-05-03', '%e %b %Y'), DATEDIFF('2020-03-01', '2020-02-28')", "[('3 May 2020', 2)]"),
        ("SELECT SUBSTRING_INDEX('a-b-c', '-', 2), LOCATE('b', 'abc'), REPEAT('ab', 2)", "[('a-b', 2, 'abab')]"),
        ("SELECT REPEAT('a', 100000), LPAD('a', 3, 'xy'), FORMAT(1234.567, 1)", "[(None, 'xya', '1,234.6')]"),
        ("SELECT COUNT(*) FROM `my shop` # all of them", "[(2,)]"),
        ("SELECT item FROM `my shop` ORDER BY item DESC LIMIT 0, 1", "[('Rug',)]"),
        ("SHOW TABLES;", "[('my shop',)]"),
        ("DESCRIBE `my shop`", "[('item', 'text', 'YES', '', None, ''), ('Price', 'text', 'YES', '', None, ''), "
         "('sold on', 'text', 'YES', '', None, '')]"),
        ("COMMIT", "[]"),
        ("SELECT TRIM(LEADING 'x' FROM 'xax'), SUBSTRING('abc' FROM 2), POSITION('c' IN 'abc')", "[('ax', 'bc', 3)]"),
        ("SELECT EXTRACT(YEAR FROM `sold on`) FROM `my shop` LIMIT 1", "[(2020,)]"),
        ("SELECT 7 DIV 2, 7 MOD 4, 1 XOR 1, !1, NULL <=> NULL", "[(3, 3, 0, 0, 1)]"),
        ("SELECT 1 || 0, 1 && 0, 'a' 'b', x'41'", "[(1, 0, 'ab', b'A')]"),
        ("SELECT CAST('12.345' AS DECIMAL(9,2)), CONVERT('5', SIGNED INTEGER), CAST('2020-05-03 10:00:00' AS DATE)", "[(12.35, 5, '2020-05-03')]"),
        ("SELECT GROUP_CONCAT(item SEPARATOR '; ') FROM `my shop`", "[('lamp; Rug',)]"),
        # As MariaDB 10.11 has it, apart from 10.0 for 10.
        ("SELECT ROUND(7, -1), ROUND(1250, -2), ROUND('1,250', 1 - 1), ROUND(2.567, 1)", "[(10.0, 1300.0, 1.0, 2.6)]"),
        ("SELECT CAST(2.7 AS SIGNED), CAST('2.7' AS SIGNED), CAST(Price / 2 AS SIGNED) FROM `my shop`", "[(3, 2, 5), (3, 2, 6)]"),
        ("SELECT IF('abc', 1, 2), IF('0.0', 1, 2), IF('1x', 1, 2), IF('.5', 1, 2), IF(item, 1, 2) FROM `my shop` LIMIT 1", "[(2, 2, 1, 1, 2)]"),
        ("SELECT MID('abcdef', -3, 2), MID('abc', 2), MID('abc', 0, 2), SUBSTRING('abc', -5, 3)", "[('de', 'bc', '', '')]"),
        ("SELECT SUBSTRING(item, LOCATE('m', item)) FROM `my shop`", "[('mp',), ('',)]"),
        ("SELECT LOG(1, 5), LOG(0)", "[(None, None)]"),
        ("SELECT FLOOR('1,200'), CEILING('2.5 kg'), SIGN('x'), SQRT('9 m'), FLOOR(NULL)", "[(1.0, 3.0, 0, 3.0, None)]"),
        ("SELECT GROUP_CONCAT(item, '!') FROM `my shop`", "[('lamp!,Rug!',)]"),
        ("(SELECT item FROM `my shop` LIMIT 1) UNION ALL (SELECT Price FROM `my shop` WHERE Price > 10)", "[('lamp',), ('12.5',)]"),
        ("(SELECT item FROM `my shop`) ORDER BY item DESC LIMIT 1", "[('Rug',)]"),
        ("SELECT dbbench.`my shop`.item FROM dbbench.`my shop` WHERE Price = 9 FOR UPDATE", "[('lamp',)]"),
        ("SELECT 1 + 1 FROM DUAL", "[(2,)]"),
        ("SELECT item 'the item', Price AS 'order' FROM `my shop` ORDER BY `order` LIMIT 1", "[('Rug', '12.5')]"),
        ("SELECT ISNULL(item) FROM `my shop` WHERE item IS NOT UNKNOWN LIMIT 1", "[(0,)]"),
    ],
)  # fmt: skip
def test_mysql_s_dialect_on_sqlite(sql: str, shown: str) -> None:
    assert opened().step(sql) == Outcome(shown)


@pytest.mark.parametrize(
    "condition",
    [
        "Price > 10",
        "Price > (10)",
        "Price > 3 * 3",
        "Price + 0 > '10'",
        "Price > ABS(-10)",
        "Price > LENGTH('0123456789')",
        "Price > (SELECT AVG(Price) FROM `my shop`)",
        "Price >= (SELECT MAX(Price + 0) FROM `my shop`)",
        "CASE WHEN Price > 10 THEN 1 ELSE 0 END = 1",
        "IF(item = 'RUG', Price, 0) > 10",
        "COALESCE(Price, 0) > 10",
        "YEAR(`sold on`) = '2021'",
        "10 BETWEEN 0 AND Price",
        "'2021' = YEAR(`sold on`)",
        "LOWER(item) = 'RUG'",
        "CONCAT(item, '!') IN ('RUG!', 'x')",
        "LEFT(item, 1) BETWEEN 'Q' AND 's'",
        "item = 'rUg' COLLATE utf8mb4_general_ci",
        "BINARY item = 'Rug'",
        "item COLLATE utf8mb4_bin <> 'lamp'",
    ],
)
def test_conditions_that_hold_for_the_dear_one(condition: str) -> None:
    environment = opened()

    assert environment.step(f"SELECT item FROM `my shop` WHERE {condition}").observation == "[('Rug',)]"
    assert environment.step(f"SELECT item FROM `my shop` WHERE NOT ({condition})").observation == "[('lamp',)]"


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE `my shop` s SET s.Price = 10 WHERE s.item = 'lamp'",
        "UPDATE IGNORE `my shop` SET `my shop`.Price = '10' WHERE Price = 9",
        "UPDATE `my shop` SET Price = CASE WHEN Price < 10 THEN 10 ELSE Price END",
        "UPDATE `my shop` SET Price = Price + 1 ORDER BY item LIMIT 1",
    ],
)
def test_changes_in_mysql_s_words(sql: str) -> None:
    environment = opened(CHANGE)

    assert environment.step(sql) == Outcome("[]")
    assert environment.step("answer done").score == 1.0


@pytest.mark.parametrize(
    ("sql", "item", "price"),
    [
        ("INSERT INTO `my shop` SET item = 'cup', Price = 3", "cup", "3"),
        ("INSERT `my shop` (item, Price) VALUE ('cup', 3)", "cup", "3"),
        ("INSERT IGNORE INTO `my shop` (item) VALUES ('cup'), (DEFAULT)", "cup", None),
        ("REPLACE INTO `my shop` (item) VALUES ('cup')", "cup", None),
        ("INSERT INTO `my shop` (item) VALUES ('cup') ON DUPLICATE KEY UPDATE item = 'x'", "cup", None),
        ("INSERT INTO `my shop` () VALUES ()", None, None),
    ],
)
def test_rows_are_inserted_in_mysql_s_words(sql: str, item: str | None, price: str | None) -> None:
    environment = opened()
    environment.step("DELETE s FROM `my shop` s WHERE s.Price > 0")

    assert environment.step(sql) == Outcome("[]")

    assert environment.step("SELECT item, Price FROM `my shop` LIMIT 1").observation == str([(item, price)])


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        # As MariaDB 10.11 stores them in a TEXT column.
        ("Price * 2", ("18", "25")),
        ("Price + 1", ("10", "13.5")),
        ("20.6 + Price", ("29.6", "33.1")),
        ("Price - 4.4", ("4.6", "8.1")),
        ("Price * 1.1", ("9.9", "13.750000000000002")),
        ("ROUND(Price * 1.1, 2)", ("9.9", "13.75")),
        ("CONCAT(Price * 2, ' km')", ("18 km", "25 km")),
        ("IF(Price > 10, Price * 2, 3.10)", ("3.1", "25")),
        ("(SELECT 4.5 * '2')", ("9", "9")),
        ("12.50", ("12.50", "12.50")),
        ("-.50", ("-0.50", "-0.50")),
        ("0.0000001", ("0.0000001", "0.0000001")),
        ("007", ("7", "7")),
        ("1e3", ("1000", "1000")),
        ("1e16 * Price", ("9e16", "1.25e17")),
        ("TRUE", ("1", "1")),
        ("NULL", (None, None)),
        ("'12.50'", ("12.50", "12.50")),
        ("Price", ("9", "12.5")),
    ],
)
def test_numbers_are_stored_as_mysql_writes_them(value: str, stored: tuple[str | None, ...]) -> None:
    database = SqliteDatabase((SHOP,), DbOptions())

    assert database.execute(f"UPDATE `my shop` SET Price = {value}") == "[]"

    assert tuple(row[1] for row in database.state()[0]) == stored
    database.close()


def test_new_rows_hold_numbers_as_mysql_writes_them() -> None:
    database = SqliteDatabase((SHOP,), DbOptions())

    assert database.execute("INSERT INTO `my shop` SELECT item, Price * 2 AS n, NULL FROM `my shop`") == "[]"
    assert database.execute("INSERT INTO `my shop` VALUES ('cup', 3.50, 2 * 1.5), ('jug', -0.10, 10.0)") == "[]"

    inserted = [("lamp", "18", None), ("Rug", "25", None), ("cup", "3.50", "3.0"), ("jug", "-0.10", "10.0")]
    assert database.state()[0][2:] == inserted
    database.close()


def test_an_assignment_with_and_is_one_of_a_truth_value() -> None:
    environment = opened()
    environment.step("UPDATE `my shop` SET Price = '1' AND item = 'rug'")  # a slip that MySQL lets pass

    assert environment.step("SELECT Price FROM `my shop`").observation == "[('0',), ('1',)]"


def test_a_table_whose_name_begins_with_a_digit() -> None:
    environment = opened(DbTask("q", "other", (Table("2001_games", ("1st", "n"), (("x", "3"),)),), "", answers=("x",)))

    assert environment.step("SELECT 1st FROM 2001_games WHERE n = 3").observation == "[('x',)]"


@pytest.mark.parametrize(
    "opening", ["CHAR(", "STRUCT(", "DATE(", "YEAR(", "BINARY(", "(", "(SELECT * FROM (", "f(1 IN ("]
)
def test_to_read_a_statement_takes_no_longer_than_its_text(opening: str) -> None:
    database = SqliteDatabase([SHOP], DbOptions())
    began = time.thread_time()

    for depth in (10, 20, 30, 1000):
        text = f"SELECT {opening * depth}1"
        database.execute(text + ")" * text.count("("))
        assert re.match(r"1064|the statement is nested", database.execute(text))

    assert time.thread_time() - began < 10, "twice as long for each parenthesis would take years"
    database.close()


def test_long_statements_are_read_or_refused() -> None:
    database = SqliteDatabase([SHOP], DbOptions())
    numbers = ", ".join(str(number) for number in range(9000))

    assert database.execute(f"SELECT item FROM `my shop` WHERE Price IN ({numbers})") == "[('lamp',)]"
    assert database.execute("SELECT " + "(" * 60_000) == "the statement is nested too deeply"
    assert database.execute("SELECT " + "'" * 60_001).startswith("1064")
    assert database.execute("SELECT " + "'x'," * 20_000 + "1") == "query string is too large"
    database.close()


PEOPLE = Table("people", ("name", "age"), (("José", "9"), ("JOSE", "10"), ("Zoë", "8"), ("Ann", "x7")))


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT age FROM people WHERE name = 'jose' ORDER BY age + 0", [("9",), ("10",)]),
        ("SELECT COUNT(DISTINCT name) FROM people", [(3,)]),
        ("SELECT name FROM people WHERE name LIKE '%ZOE'", [("Zoë",)]),
        ("SELECT name FROM people WHERE name LIKE '_os_' AND age = 9", [("José",)]),
        ("SELECT '10%' LIKE '10\\%', '10x' LIKE '10\\%', '10x' LIKE '10|%' ESCAPE '|'", [(1, 0, 0)]),
        ("SELECT name FROM people WHERE name IN ('ZOE', 'ann') ORDER BY name DESC", [("Zoë",), ("Ann",)]),
        ("SELECT INSTR(name, 'E'), LOCATE('O', name), LENGTH(name) FROM people WHERE age = '9'", [(0, 2, 5)]),
        ("SELECT HEX(255), HEX('a'), ROUND(LOG(10), 3), LOG(2, 8)", [("FF", "61", 2.303, 3.0)]),
        ("SELECT FIELD('É', 'a', 'e'), STRCMP('José', 'jose')", [(2, 0)]),
        ("UPDATE people SET age = 1 WHERE age = (SELECT m FROM (SELECT MIN(age) m FROM people) x)", []),
        ("SELECT CAST(age AS SIGNED) FROM people WHERE name IS NOT NULL AND age IS TRUE LIMIT 1", [(9,)]),
    ],
)
def test_sqlite_compares_as_mysql_does(sql: str, rows: list[tuple[Any, ...]]) -> None:
    database = SqliteDatabase([PEOPLE], DbOptions())

    assert database.execute(sql) == str(rows)
    database.close()


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE people SET age = 1 RETURNING age",
        "SELECT * FROM people WHERE name == 'Ann'",
        "SELECT * FROM people WHERE name IS 'Ann'",
        "SELECT * FROM people WHERE name GLOB 'A*'",
        "SELECT CAST(age AS INTEGER) FROM people",
        "SELECT CAST(age AS TEXT) FROM people",
        "SELECT CAST(CONCAT(age, '') AS VARCHAR(9)) FROM people",
        "INSERT OR REPLACE INTO people VALUES ('a', 'b')",
        "INSERT INTO people VALUES ('a', 'b') ON CONFLICT DO NOTHING",
        "UPDATE OR IGNORE people SET age = 1",
        "SELECT * FROM people a FULL OUTER JOIN people b ON a.age = b.age",
        "SELECT COUNT(*) FILTER (WHERE age = 1) FROM people",
        "SELECT * FROM people ORDER BY age NULLS LAST",
        "SELECT rowid FROM people",
        "DELETE FROM people WHERE _rowid_ = 1",
        "SELECT * FROM people WHERE age IN (SELECT age FROM people ORDER BY age LIMIT 1)",
        "UPDATE people SET age = (SELECT MAX(age) FROM people)",
        "DELETE FROM people WHERE age = (SELECT MIN(p.age) FROM people p)",
        "SELECT age, FROM people",
        "SELECT age::int FROM people",
        "SELECT name FROM people WHERE name ILIKE 'a%'",
        "SELECT name FROM people WHERE name IS NOT DISTINCT FROM 'Ann'",
        "SELECT DISTINCT ON (name) age FROM people",
        "SELECT * EXCEPT (age) FROM people",
        "SELECT name FROM people FETCH FIRST 1 ROWS ONLY",
        "SELECT name FROM people QUALIFY ROW_NUMBER() OVER (ORDER BY age) = 1",
        "SELECT name FROM (FROM people) p",
        "SELECT name FROM people LIMIT 1 BY age",
        "SELECT name FROM people OFFSET 1",
        "SELECT [name] FROM people",
        "SELECT name FROM 'people'",
        "SELECT name FROM people 'p'",
        "SELECT CAST(age AS SIGNED FROM people",
        "SELECT name FROM people WHERE age IN ()",
        "SELECT MAX(age, 1) FROM people",
        "SELECT name AS order FROM people",
        "SELECT name FROM people WHERE rank = 1",
        "WITH p (SELECT 1) SELECT * FROM p",
        "INSERT INTO people VALUES 'a', 'b'",
        "INSERT INTO people ('name') VALUES ('a')",
        "INSERT INTO people (name) VALUES ('a',)",
        "INSERT INTO people DEFAULT VALUES",
        "UPDATE people SET (name, age) = ('a', 'b')",
        "UPDATE people SET age = p.age FROM people p",
        "DELETE people WHERE age = 1",
    ],
)
def test_what_mysql_refuses_is_refused(sql: str) -> None:
    database = SqliteDatabase([PEOPLE], DbOptions())

    shown = database.execute(sql)

    assert re.match(r"(1064|1054|1235|1093) \(\w+\): ", shown), shown
    assert database.execute("SELECT COUNT(*) FROM people WHERE age <> 1") == "[(4,)]"
    database.close()


@pytest.mark.parametrize(
    "word", ["escape", "isnull", "nothing", "raise", "autoincrement", "date", "end", "Year", "full"]
)
def test_words_of_sqlites_are_names_of_mysql_s(word: str) -> None:
    database = SqliteDatabase([Table("t", (word, "order"), (("a", "b"),))], DbOptions())

    assert database.execute(f"SELECT {word}, t.order FROM t WHERE {word} = 'A' ORDER BY {word}") == "[('a', 'b')]"
    assert database.execute(f"UPDATE t SET {word} = 'c' WHERE t.{word} LIKE 'a'") == "[]"
    assert database.execute(f"SELECT t.{word} FROM t") == "[('c',)]"
    database.close()


def test_a_name_in_backticks_is_never_a_text() -> None:
    assert opened().step("SELECT `colour` FROM `my shop`").observation == "no such column: colour"


@pytest.mark.parametrize(
    "call", ["TYPEOF(age)", "PRINTF('%d', 1)", "IIF(1, 2, 3)", "TOTAL(age)", "LEN(name)", "NVL(age, 1)"]
)
def test_functions_that_mysql_does_not_have_are_not_there(call: str) -> None:
    database = SqliteDatabase([PEOPLE], DbOptions())

    assert database.execute(f"SELECT {call} FROM people").startswith("no such function")
    database.close()


def test_a_column_may_have_the_name_of_a_word_that_is_sqlites() -> None:
    database = SqliteDatabase([Table("t", ("materialized", "oid"), (("a", "b"),))], DbOptions())

    assert database.execute("SELECT materialized, oid FROM t") == "[('a', 'b')]"
    other = SqliteDatabase([Table("t", ("materialized",), (("a",),))], DbOptions())
    assert other.execute("SELECT materialized, oid FROM t").startswith("1054"), "what is known of one is not of another"
    database.close()
    other.close()
