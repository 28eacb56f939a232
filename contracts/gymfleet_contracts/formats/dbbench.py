"""`dbbench`: AgentBench's DBBench. Actions are an SQL statement, or `Final Answer: [...]`."""

from typing import Final

from gymfleet_contracts.formats._markers import ACTION, SQL_FENCE, THOUGHT, first_line, without
from gymfleet_contracts.reply_format import FormatOptions, ParsedReply, ReplyFormat, no_action

_OPERATION: Final = "Operation"
_FINAL_ANSWER: Final = "Final Answer:"


class Dbbench(ReplyFormat[FormatOptions]):
    """`Action: Operation` and an SQL block, or `Action: Answer` and a line `Final Answer: [...]` (AgentBench)."""

    instructions = (
        "Write down your thoughts, then one of two things. To operate, one SQL statement in one line:\n"
        "Action: Operation\n```sql\nSELECT * FROM table WHERE condition;\n```\n"
        "To commit your final answer:\n"
        'Action: Answer\nFinal Answer: ["ANSWER1", "ANSWER2", ...]'
    )
    complaint = (
        "Invalid format. Write Action: Operation and then a ```sql block, "
        'or Action: Answer and then Final Answer: ["ANSWER1", ...]'
    )
    examples = ("SELECT `a b` FROM t WHERE c = 'd'", "UPDATE t\nSET a = 1;", 'Final Answer: ["1", "2"]')

    def parse(self, text: str) -> ParsedReply:
        """Read the first `Action:` and, for an operation, its first block, as AgentBench does."""
        head, marker, tail = text.partition(ACTION)
        if not marker:
            return no_action(without(THOUGHT, text))
        kind, _, rest = tail.strip().partition("\n")
        alone = ACTION not in rest
        if _FINAL_ANSWER in tail and kind.strip() != _OPERATION:
            return _answer(without(THOUGHT, head), tail, alone)
        before, _, block = tail.partition(SQL_FENCE)
        sql, fence, after = block.partition("```")
        well_formed = alone and before.strip() == _OPERATION and block.count("```") == 1 and not after.strip()
        return ParsedReply(
            thought=without(THOUGHT, head),
            action=sql.strip() or None,
            well_formed=well_formed and bool(sql.strip()),
            complete=bool(fence and sql.strip()),
        )

    def render(self, thought: str, action: str) -> str:
        """Write an answer if the action is one, else an operation."""
        if action.startswith(_FINAL_ANSWER):
            return f"{thought}\n{ACTION} Answer\n{action}"
        return f"{thought}\n{ACTION} {_OPERATION}\n{SQL_FENCE}\n{action}\n```"


def _answer(thought: str, tail: str, alone: bool) -> ParsedReply:
    answer, ended = first_line(tail.partition(_FINAL_ANSWER)[2])
    well_formed = bool(answer) and tail.strip() == f"Answer\n{_FINAL_ANSWER} {answer}" and alone
    action = f"{_FINAL_ANSWER} {answer}" if answer else None
    return ParsedReply(thought=thought, action=action, well_formed=well_formed, complete=ended and bool(answer))
