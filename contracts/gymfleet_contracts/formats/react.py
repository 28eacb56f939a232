"""`react`: `Thought: ...`, then `Action: ...` in one line (ReAct, arXiv:2210.03629)."""

from gymfleet_contracts.formats._markers import ACTION, THOUGHT, first_line, without
from gymfleet_contracts.reply_format import FormatOptions, ParsedReply, ReplyFormat, no_action


class React(ReplyFormat[FormatOptions]):
    """`Thought: ... Action: ...`; the last `Action:` counts, and of what follows it the first line."""

    instructions = 'Answer with "Thought: <your reasoning> Action: <your action>".'
    complaint = f"Invalid format. {instructions}"

    def parse(self, text: str) -> ParsedReply:
        """Read the last action."""
        return parse_react(text)

    def render(self, thought: str, action: str) -> str:
        """Write both in one line."""
        return f"{THOUGHT} {thought} {ACTION} {action}"


def parse_react(text: str) -> ParsedReply:
    """Read the last action."""
    head, marker, tail = text.rpartition(ACTION)
    if not marker:
        return no_action(without(THOUGHT, text))
    action, ended = first_line(tail)
    well_formed = (
        bool(action)
        and text.lstrip().startswith(THOUGHT)
        and text.count(ACTION) == 1
        and text.count(THOUGHT) == 1
        and _is_one_line(tail)
    )
    return ParsedReply(
        thought=without(THOUGHT, head),
        action=action or None,
        well_formed=well_formed,
        complete=ended and bool(action),
    )


def _is_one_line(tail: str) -> bool:
    """Return whether the text is a line, in the marker's own or the next, with nothing but blanks behind it."""
    line, _, rest = tail.partition("\n")
    if not line.strip(" \t") and rest:
        line, _, rest = rest.partition("\n")
    return bool(line) and not rest.strip()
