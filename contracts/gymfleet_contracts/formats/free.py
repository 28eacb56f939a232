"""`free`: the whole reply is the action; how to reply is said by the task itself."""

from gymfleet_contracts.reply_format import FormatOptions, ParsedReply, ReplyFormat


class Free(ReplyFormat[FormatOptions]):
    """The whole reply, of any number of lines, is the action; for tasks that say themselves how to reply.

    A thought has no place of its own, and is left out when writing.
    """

    instructions = "Reply as the task asks."
    complaint = "The reply was empty."
    examples = (*ReplyFormat.examples, "first line\n  second line")

    def parse(self, text: str) -> ParsedReply:
        """Take the reply as it is, but for blanks around it."""
        action = text.strip()
        return ParsedReply(thought="", action=action or None, well_formed=bool(action), complete=False)

    def render(self, thought: str, action: str) -> str:  # noqa: ARG002 - there is no place for it
        """Write the action."""
        return action
