"""`think_act`: `Think: ...`, then `Act: ...`, each on a line of its own, for every environment."""

from typing import Final

from gymfleet_contracts.formats._markers import parse_marked
from gymfleet_contracts.reply_format import FormatOptions, ParsedReply, ReplyFormat

_THINK: Final = "Think:"
_ACT: Final = "Act:"


class ThinkAct(ReplyFormat[FormatOptions]):
    """`Think: ...` and `Act: ...`, as AgentBench's agents write; the last `Act:` counts, with the rest of its line."""

    instructions = "Answer with two lines:\nThink: <your reasoning>\nAct: <your action>"
    complaint = f"Invalid format. {instructions}"

    def parse(self, text: str) -> ParsedReply:
        """Read the last action."""
        return parse_marked(text, _THINK, _ACT)

    def render(self, thought: str, action: str) -> str:
        """Write both, each on its own line."""
        return f"{_THINK} {thought}\n{_ACT} {action}"
