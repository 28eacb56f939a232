"""What a statement that somebody else wrote can do to SQLite: nothing that its neighbours notice."""
# ruff: noqa: S608 - statements of an attacker

import sqlite3
import threading
from pathlib import Path

import pytest
from gymfleet_envs.sql_text import MAX_EXPANSION, UnfitStatement, one_statement, tokens
from gymfleet_envs.sqlite.functions import install_bounded, may_grow
from gymfleet_envs.sqlite.guard import (
    PURE_FUNCTIONS,
    READ_ACTIONS,
    WRITE_ACTIONS,
    GuardedConnection,
    StatementFailed,
    StatementLimits,
)
from hypothesis import given
from hypothesis import strategies as st

LIMITS = StatementLimits(time_s=30.0, steps=2_000_000, value_bytes=65_536, memory_bytes=128 * 2**20)
VERBS = frozenset(("select", "with"))
ENDLESS = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) "


def opened(limits: StatementLimits = LIMITS, *, actions: frozenset[int] = WRITE_ACTIONS) -> GuardedConnection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, cached_statements=0)
    connection.execute("CREATE TABLE t (x TEXT)")
    connection.execute("INSERT INTO t VALUES ('a'), ('b')")
    connection.execute("PRAGMA max_page_count = 1000").fetchall()
    return GuardedConnection(connection, limits, actions=actions, functions=PURE_FUNCTIONS)


def rows(guarded: GuardedConnection, sql: str) -> list[tuple[object, ...]]:
    return guarded.run(sql, max_rows=100, max_bytes=10_000)[0]


def test_rows_can_be_read_and_changed() -> None:
    guarded = opened()

    assert rows(guarded, "INSERT INTO t VALUES ('c')") == []
    assert rows(guarded, "UPDATE t SET x = upper(x) WHERE x <> 'a'") == []
    assert rows(guarded, "DELETE FROM t WHERE x = 'B'") == []
    assert rows(guarded, "SELECT x FROM t") == [("a",), ("C",)]


@pytest.mark.parametrize(
    ("sql", "fault"),
    [
        ("ATTACH '{file}' AS y", "not authorized"),
        ("ATTACH 'file:{file}?mode=rwc' AS y", "not authorized"),
        ("DETACH main", "not authorized"),
        ("PRAGMA hard_heap_limit = 1", "not authorized"),
        ("PRAGMA writable_schema = ON", "not authorized"),
        ("SELECT * FROM pragma_table_info('t')", "not authorized"),
        ("SELECT * FROM dbstat", "not authorized"),
        ("VACUUM INTO '{file}'", "not authorized|cannot VACUUM"),
        ("CREATE TABLE u (x)", "not authorized"),
        ("CREATE TEMP TABLE u (x)", "not authorized"),
        ("CREATE VIEW v AS SELECT 1", "not authorized"),
        ("CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM t; END", "not authorized"),
        ("CREATE VIRTUAL TABLE f USING fts5(x)", "not authorized"),
        ("DROP TABLE t", "not authorized"),
        ("ALTER TABLE t ADD COLUMN y", "not authorized"),
        ("BEGIN", "not authorized"),
        ("DELETE FROM sqlite_master", "not authorized|may not be modified"),
        ("SELECT load_extension('{file}')", "no such function|not authorized"),
        ("SELECT readfile('/etc/passwd')", "no such function"),
        ("SELECT writefile('{file}', 'x')", "no such function"),
        ("SELECT fts3_tokenizer('simple')", "no such function"),
        ("SELECT random()", "no such function: random"),
        ("SELECT current_timestamp", "no such function: current_timestamp"),
        ("SELECT date('now')", "no such function: date"),
        ("SELECT zeroblob(1000000000)", "no such function"),
        ("SELECT randomblob(1000000000)", "no such function"),
        ("SELECT replace(hex(printf('%.30000c', 'x')), '7', printf('%.60000c', 'y'))", "too big"),
        ("SELECT group_concat(x || printf('%.60000c', 'x')) FROM t", "too big"),
        (ENDLESS + "SELECT count(*) FROM r", "too many steps"),
        (ENDLESS + "INSERT INTO t SELECT x FROM r", "too many steps|full"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("SELECT '\x00'", "null character"),
        ("SELECT '\ud800'", "surrogates"),
        ("SELECT " + "(" * 300 + "1" + ")" * 300, "stack overflow|depth"),
        ("SELEC", "syntax error"),
    ],
)  # fmt: skip
def test_a_statement_reaches_nothing_but_rows_and_uses_up_little(tmp_path: Path, sql: str, fault: str) -> None:
    guarded = opened()

    with pytest.raises(StatementFailed, match=fault):
        rows(guarded, sql.replace("{file}", str(tmp_path / "escaped")))

    assert list(tmp_path.iterdir()) == []
    assert rows(guarded, "SELECT x FROM t") == [("a",), ("b",)], "as if nothing had happened"


@pytest.mark.parametrize("sql", ["INSERT INTO t VALUES ('c')", "UPDATE t SET x = ''", "DELETE FROM t"])
def test_a_reader_changes_nothing(sql: str) -> None:
    guarded = opened(actions=READ_ACTIONS)

    with pytest.raises(StatementFailed, match="not authorized"):
        rows(guarded, sql)


def test_a_statement_ends_at_its_time() -> None:
    guarded = opened(StatementLimits(time_s=0.01, steps=None, value_bytes=65_536, memory_bytes=128 * 2**20))

    with pytest.raises(StatementFailed, match=r"longer than 0\.01 s"):
        rows(guarded, ENDLESS + "SELECT count(*) FROM r")


def test_the_database_does_not_outgrow_its_pages() -> None:
    guarded = opened()
    rows(guarded, "UPDATE t SET x = printf('%.60000c', 'x')")

    for _ in range(5):
        rows(guarded, "INSERT INTO t SELECT x FROM t")
    with pytest.raises(StatementFailed, match="full"):
        rows(guarded, "INSERT INTO t SELECT x FROM t")


def test_a_result_is_cut_before_it_fills_the_memory() -> None:
    found, more = opened().run(ENDLESS + "SELECT printf('%.1000c', 'x') FROM r", max_rows=10**9, max_bytes=5000)

    assert (len(found), more) == (6, True)


def test_a_sorter_that_fills_the_memory_is_stopped_and_the_neighbour_gets_its_rows() -> None:
    patient = StatementLimits(time_s=60.0, steps=None, value_bytes=65_536, memory_bytes=128 * 2**20)
    bomb, neighbour = opened(patient), opened(patient)
    faults: list[str] = []

    def explode() -> None:
        try:
            rows(bomb, ENDLESS + "SELECT x, printf('%.60000c', 'a') || x AS y FROM r ORDER BY y")
        except StatementFailed as error:
            faults.append(str(error))

    thread = threading.Thread(target=explode)
    thread.start()
    while thread.is_alive():
        assert rows(neighbour, "SELECT group_concat(x) FROM t") == [("a,b",)]
        thread.join(0.02)

    assert faults == ["out of memory"]
    assert rows(bomb, "SELECT count(*) FROM t") == [(2,)]


def exponential(depth: int) -> str:
    definitions = ["c0 AS (SELECT 1 y FROM t)"]
    definitions += [f"c{n} (y) AS NOT MATERIALIZED (SELECT 1 FROM c{n - 1} a, `C{n - 1}` b)" for n in range(1, depth)]
    return f"WITH {', '.join(definitions)} SELECT count(*) FROM c{depth - 1}"


def test_definitions_that_double_each_other_never_reach_the_parser() -> None:
    assert one_statement(tokens(exponential(8)), VERBS)
    for hostile in (exponential(12), exponential(45), exponential(60), exponential(12).replace("`", '"')):
        with pytest.raises(UnfitStatement, match="nested too deeply"):
            one_statement(tokens(hostile), VERBS)
    assert MAX_EXPANSION == 1000
    assert one_statement(tokens(ENDLESS + "SELECT x FROM r LIMIT 3"), VERBS), "recursion is not expanded"


@pytest.mark.parametrize(
    ("sql", "mysql", "kinds"),
    [
        ("select 'it''s; ok'", False, ["word", "string"]),
        (r"select 'it\'s; ok'", True, ["word", "string"]),
        (r"select 'back\' , x", False, ["word", "string", "other", "word"]),
        ("select `a;b` -- c; d\n", False, ["word", "quoted"]),
        ("select [a;b]", False, ["word", "quoted"]),
        ("select 1 # c; d", True, ["word", "word"]),
        ("select /* ; */ 15, 2001_x", True, ["word", "word", "other", "word"]),
        ("select 5--3", True, ["word", "word", "other", "other", "word"]),
        ('select "a;b";', True, ["word", "double"]),
    ],
)
def test_tokens(sql: str, mysql: bool, kinds: list[str]) -> None:
    pieces = tokens(sql, mysql=mysql)

    assert "".join(piece.text for piece in pieces) == sql
    assert [piece.kind for piece in one_statement(pieces, VERBS)] == kinds


@given(st.text(alphabet="ab1'\"`;/*-\\# \n()[]€", max_size=60), st.booleans())
def test_any_text_can_be_taken_apart(text: str, mysql: bool) -> None:
    assert "".join(piece.text for piece in tokens(text, mysql=mysql)) == text


@pytest.mark.parametrize(
    ("sql", "fault"),
    [
        ("", "there is no SQL"),
        (" ; -- x", "there is no SQL"),
        ("select 1; select 2", "only one SQL statement"),
        ("select 1;;delete from t", "only one SQL statement"),
        ("drop table t", "begins with 'drop'"),
        ("/*! set x=1 */", "begins with '/'"),
        ("/*M! set x=1 */ select 1", "begins with '/'"),
        ("日本語", "begins with"),
    ],
)
def test_unfit_statements_are_told_apart(sql: str, fault: str) -> None:
    with pytest.raises(UnfitStatement, match=fault):
        one_statement(tokens(sql, mysql=True), VERBS)


LONG = "printf('%.65000c', 'a')"
"""A text as long as one may be."""


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("printf('%.2147483647c', 'x')", "too big"),
        ("format('%' || 2147483647 || 'd', 1)", "too big"),
        ("printf('%*d', 2147483647, 1)", "too big"),
        ("printf('%.*c', '2147483647', 'x')", "too big"),
        ("printf(replace(hex(zeroblob(9)), '0', '%9999d'))", "no such function: zeroblob"),
        ("printf(replace('aaaaaaaaa', 'a', '%9999d'))", "too big"),
        (f"instr({LONG}, substr({LONG}, 30000) || 'b')", "instr: the texts are too long"),
        (f"replace({LONG}, substr({LONG}, 30000) || 'b', '')", "replace: the texts are too long"),
        (f"trim({LONG} || 'z', {LONG} || 'z')", "trim: the texts are too long"),
        (f"{LONG} GLOB '*' || replace(substr({LONG}, 1, 600), 'a', '[b-z]')", "too long"),
        (f"{LONG} LIKE substr({LONG}, 1, 1001)", "too complex"),
        (f"{LONG} LIKE '%_' || substr({LONG}, 1, 990) || 'b%'", "too complex"),
    ],
)
def test_what_nothing_could_interrupt_is_refused(expression: str, fault: str) -> None:
    with pytest.raises(StatementFailed, match=fault):
        rows(opened(), f"SELECT length({expression})")


def test_a_pattern_with_many_wildcards_takes_no_longer_than_another() -> None:
    pattern = f"'%' || replace(substr({LONG}, 1, 450), 'a', 'a%') || 'b'"

    assert rows(opened(), f"SELECT {LONG} LIKE {pattern}, {LONG} || 'b' LIKE {pattern}") == [(0, 1)]


def test_time_is_looked_at_before_a_function_that_cannot_be_interrupted() -> None:
    many = ", ".join(["b LIKE p"] * 200)
    guarded = opened(StatementLimits(time_s=0.001, steps=None, value_bytes=65_536, memory_bytes=2**27))

    with pytest.raises(StatementFailed, match=r"longer than 0\.001 s"):
        rows(guarded, f"SELECT {many} FROM (SELECT {LONG} b, '%' || substr({LONG}, 1, 990) || 'b' p)")


_TEXTS = st.one_of(
    st.text("aAbBéÉ\n%_\\1.", max_size=8), st.integers(-9, 99), st.sampled_from([0.1 + 0.2, 1e20]), st.none()
)


@given(_TEXTS, st.text("aAbB%_éÉ\n\\1.", max_size=7), st.sampled_from(["", " ESCAPE '\\'"]))
def test_like_says_what_sqlite_says(text: object, pattern: str, escape: str) -> None:
    query = f"SELECT ? LIKE ?{escape}"
    connection = sqlite3.connect(":memory:")
    theirs = connection.execute(query, (text, pattern)).fetchall()
    install_bounded(connection, 65_536, lambda: None, lambda message: None)
    ours = connection.execute(query, (text, pattern)).fetchall()
    connection.close()

    assert ours == theirs


@pytest.mark.parametrize(
    "call",
    [
        "printf('%5.2f|%-6s|%,d|%05d|%%|%c|%x', 3.14159, 'ab', 1234567, 42, 'x', 255)",
        "printf('%*d', 5, 42)",
        "printf('%.*f', '2', 3.14159)",
        "format('%s', 0.1 + 0.2)",
        "printf(NULL)",
        "printf()",
        "printf('50% of 9999999 people %d', 3)",
        "replace(12.5, '.', ',')",
        "replace(NULL, 1, 2)",
        "replace('abc', '', 'x')",
        "trim('  a ')",
        "trim('xxaxx', 'x')",
        "ltrim(5, '5')",
        "instr(x'0102', x'02')",
        "instr('abc', 2)",
        "'abc' GLOB 'a[b-c]?'",
        "1.5 LIKE '1.%'",
    ],
)
def test_a_bounded_function_gives_what_sqlites_gives(call: str) -> None:
    plain = sqlite3.connect(":memory:")

    assert rows(opened(), f"SELECT {call}") == plain.execute(f"SELECT {call}").fetchall()
    plain.close()


@pytest.mark.parametrize(
    ("sql", "grows"),
    [
        ("SELECT a FROM t WHERE a LIKE '%x%' AND instr(a, 'y') > 0", False),
        ("SELECT 'Printf' FROM t", True),
        ("SELECT a || b FROM t", True),
        ('SELECT "printf"(a) FROM t', True),
        ("SELECT [hex] (a) FROM t", True),
        ("SELECT /* x */ group_concat(a) FROM t", True),
        (f"SELECT instr(a, '{'x' * 5000}') FROM t", True),
    ],
)
def test_a_statement_that_may_make_longer_texts_is_known(sql: str, grows: bool) -> None:
    assert may_grow(sql) is grows
