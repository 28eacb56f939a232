"""`plain`: the reply is the action."""

from gymfleet_contracts.reply_format import FormatOptions, ModelReply, ParsedReply, ReplyFormat


class Plain(ReplyFormat[FormatOptions]):
    """The whole reply is the action, in one line.

    A thought has no place in it: it is written where the model's chat template has a place for it, and otherwise left
    out.
    """

    instructions = "Answer with your action alone, in one line."
    complaint = f"Invalid format. {instructions}"

    def parse(self, text: str) -> ParsedReply:
        """Take the reply as it is, without blanks around it."""
        action = text.strip()
        well_formed = bool(action) and len(action.splitlines()) == 1
        return ParsedReply(thought="", action=action or None, well_formed=well_formed, complete=False)

    def render(self, thought: str, action: str) -> str:  # noqa: ARG002 - there is no place for it
        """Write the action."""
        return action

    def compose(self, thought: str, action: str, *, thinks: bool) -> ModelReply:
        """Write the action, and the thought if the model has a place for it before its reply."""
        return ModelReply(action, thought if thinks else "")
