"""`react`: `Thought: ...`, then `Action: ...` in one line (ReAct, arXiv:2210.03629)."""

from gymfleet_contracts.formats._markers import ACTION, THOUGHT, parse_marked
from gymfleet_contracts.reply_format import FormatOptions, ParsedReply, ReplyFormat


class React(ReplyFormat[FormatOptions]):
    """`Thought: ... Action: ...`; the first line after the last `Action:` counts."""

    instructions = 'Answer with "Thought: <your reasoning> Action: <your action>".'
    complaint = f"Invalid format. {instructions}"

    def parse(self, text: str) -> ParsedReply:
        """Read the last action."""
        return parse_marked(text, THOUGHT, ACTION)

    def render(self, thought: str, action: str) -> str:
        """Write both in one line."""
        return f"{THOUGHT} {thought} {ACTION} {action}"
