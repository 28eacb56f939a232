"""`agentgym`: `Thought:` and `Action:`, each on a line of its own above its text (AgentGym, arXiv:2406.04151)."""

from typing import Final

from gymfleet_contracts.formats._markers import ACTION, THOUGHT, without
from gymfleet_contracts.reply_format import FormatOptions, ParsedReply, ReplyFormat, no_action

_BEGIN: Final = f"{THOUGHT}\n"
_BETWEEN: Final = f"\n\n{ACTION}\n"


class Agentgym(ReplyFormat[FormatOptions]):
    """`Thought:` and `Action:` above their texts; all that follows the last `Action:` counts, as in AgentGym."""

    instructions = "Your response should use the following format:\nThought:\n<Your Thought>\n\nAction:\n<Your Action>"
    complaint = f"Invalid format. {instructions}"
    examples = (*ReplyFormat.examples, "first line\n  second line")

    def parse(self, text: str) -> ParsedReply:
        """Read the last action, which may have several lines. Nothing shows where it ends."""
        head, marker, tail = text.rpartition(ACTION)
        if not marker:
            return no_action(without(THOUGHT, text))
        action = tail.strip()
        well_formed = (
            bool(action)
            and text.startswith(_BEGIN)
            and text.count(_BETWEEN) == 1
            and text.count(ACTION) == 1
            and text.count(THOUGHT) == 1
        )
        return ParsedReply(without(THOUGHT, head), action or None, well_formed, complete=False)

    def render(self, thought: str, action: str) -> str:
        """Write both, each below its marker."""
        return f"{_BEGIN}{thought}{_BETWEEN}{action}"
