"""`sqlgym`: AgentGym's sqlgym. Actions are an SQL statement."""

from dataclasses import replace

from gymfleet_contracts.formats._markers import ACTION, SQL_FENCE, THOUGHT, parse_marked, without
from gymfleet_contracts.reply_format import FormatOptions, ParsedReply, ReplyFormat


class Sqlgym(ReplyFormat[FormatOptions]):
    """`Thought: ...`, then `Action:` with an SQL block; the last block counts (AgentGym)."""

    instructions = (
        "Your response should be like this:\n"
        "Thought: <your reasoning>\n\nAction: ```sql\nSELECT * FROM table WHERE condition;\n```"
    )
    complaint = "Invalid format. Answer with Thought: <your reasoning> and then Action: with one ```sql block."
    examples = ("SELECT `a b` FROM t WHERE c = 'd'", "SELECT a\nFROM t;")

    def parse(self, text: str) -> ParsedReply:
        """Read the last block, as AgentGym's client does."""
        head, marker, block = text.rpartition(SQL_FENCE)
        if not marker:
            return replace(parse_marked(text, THOUGHT, ACTION), well_formed=False)
        sql, fence, after = block.partition("```")
        thought, action_marker, between = head.rpartition(ACTION)
        well_formed = (
            bool(fence and action_marker)
            and not (after.strip() or between.strip())
            and text.lstrip().startswith(THOUGHT)
            and text.count(ACTION) == 1
            and text.count("```") == 2
        )
        return ParsedReply(
            thought=without(THOUGHT, thought or between),
            action=sql.strip() or None,
            well_formed=well_formed and bool(sql.strip()),
            complete=bool(fence and sql.strip()),
        )

    def render(self, thought: str, action: str) -> str:
        """Write the statement as a block."""
        return f"{THOUGHT} {thought}\n\n{ACTION} {SQL_FENCE}\n{action}\n```"
