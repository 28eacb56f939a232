"""The gold path: look it up or change it, then answer."""

import json

from gymfleet_contracts.session import ExpertMove

from gymfleet_envs.db.tables import quoted
from gymfleet_envs.db.task import DbTask
from gymfleet_envs.sql_text import statements, tokens


def next_move(task: DbTask, *, num_operations: int, gold_runs: bool) -> ExpertMove:
    """First the gold statement, then the answer.

    Args:
        task: what is to be done; some published changes take several statements.
        num_operations: the number of statements executed so far.
        gold_runs: whether the gold statement can be executed; some published ones cannot.
    """
    gold = statements(tokens(task.gold_sql, mysql=True)) if task.changes else []
    if num_operations < len(gold):
        return ExpertMove(thought=f"I {task.kind.lower()} the row as I am told.", action=gold[num_operations])
    if not num_operations and not task.changes:
        look = f"SELECT * FROM {quoted(task.tables[0].name)} LIMIT 5"  # noqa: S608 - shown, not executed
        return ExpertMove(thought="I look it up.", action=task.gold_sql if gold_runs else look)
    answer = ["done"] if task.changes else list(task.answers)
    thought = "The table is as it should be." if task.changes else "The result has the answer."
    return ExpertMove(thought=thought, action=f"Final Answer: {json.dumps(answer, ensure_ascii=False)}")
