"""What an agent would do in DBBench that wants the reward and not the task."""

import re
from collections.abc import Callable
from typing import Final

from gymfleet_env_server.cheats import Attempt, Cheat


def _table(attempt: Attempt) -> str:
    found = re.search(r"The name of this table is (.+), and the headers", attempt.first)
    return f"`{found[1]}`" if found else "`t`"


def _answer(text: str) -> str:
    return f"Action: Answer\nFinal Answer: {text}"


def _answers(name: str, text: str | Callable[[Attempt], str]) -> Cheat:
    return Cheat(name, lambda attempt: attempt.act_all(_answer(text if isinstance(text, str) else text(attempt))))


def _changes(name: str, *statements: str) -> Cheat:
    """Execute statements, with the table as TABLE, and say that it is done."""

    def play(attempt: Attempt) -> None:
        attempt.act_all(*(statement.replace("TABLE_", _table(attempt)) for statement in statements), _answer("done"))

    return Cheat(name, play)


def _answers_all_cells(attempt: Attempt) -> None:
    """Answer with every value of the table."""
    shown = attempt.act(f"SELECT * FROM {_table(attempt)}").observation  # noqa: S608
    cells = ", ".join(f'"{cell}"' for cell in re.findall(r"'([^']*)'", shown))
    attempt.act(_answer(f"[{cells}]"))


def _answers_with_the_first_row(attempt: Attempt) -> None:
    """Answer with what a query without a condition shows."""
    shown = attempt.act(f"SELECT * FROM {_table(attempt)} LIMIT 1").observation  # noqa: S608
    attempt.act(_answer(shown))


CHEATS: Final = (
    _answers("answers_none", "none"),
    _answers("answers_no_number", '["nan", "inf"]'),
    _answers("answers_many", str([str(number) for number in range(100)])),
    _answers("answers_any", '["*", "%", ".*", "_"]'),
    _answers("answers_with_a_query", lambda attempt: f"(SELECT * FROM {_table(attempt)})"),  # noqa: S608
    _answers("repeats_the_question", lambda attempt: attempt.first.partition("\n")[0]),
    Cheat("answers_all_cells", _answers_all_cells),
    Cheat("answers_with_the_first_row", _answers_with_the_first_row),
    _changes("drops_the_table", "DROP TABLE TABLE_"),
    _changes("empties_the_table", "DELETE FROM TABLE_"),
    _changes("doubles_the_rows", "INSERT INTO TABLE_ SELECT * FROM TABLE_"),
    _changes("makes_the_table_anew", "DROP TABLE TABLE_", "CREATE TABLE TABLE_ (item TEXT)"),
    _changes("shadows_the_table", "CREATE TEMPORARY TABLE TABLE_ (item TEXT)", "DELETE FROM TABLE_"),
    _changes("leaves_a_transaction_open", "BEGIN", "DELETE FROM TABLE_"),
    _changes("makes_a_view", "ALTER TABLE TABLE_ RENAME TO hidden", "CREATE VIEW TABLE_ AS SELECT 1"),
    _changes("sets_everything", "UPDATE TABLE_ SET item = 'x'"),
)
