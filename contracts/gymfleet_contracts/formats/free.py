"""`free`: the whole reply is the action; the task itself says how to reply."""

from gymfleet_contracts.reply_format import FormatOptions, ParsedReply, ReplyFormat


class Free(ReplyFormat[FormatOptions]):
    """The whole reply, of any number of lines, is the action; for tasks that themselves say how to reply.

    A thought has no place in such a reply, and is left out in writing.
    """

    instructions = "Reply as the task asks."
    complaint = "The reply was empty."
    examples = (*ReplyFormat.examples, "first line\n  second line")

    def parse(self, text: str) -> ParsedReply:
        """Take the reply as it is, without blanks around it."""
        action = text.strip()
        return ParsedReply(thought="", action=action or None, well_formed=bool(action), complete=False)

    def render(self, thought: str, action: str) -> str:  # noqa: ARG002 - there is no place for it
        """Write the action."""
        return action
