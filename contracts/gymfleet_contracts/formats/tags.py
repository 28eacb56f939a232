"""`tags`: `<think>...</think><action>...</action>`, with tags of any names."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from gymfleet_contracts.reply_format import FormatOptions, ParsedReply, ReplyFormat

Tag = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}$")]


class TagsOptions(FormatOptions):
    """The names of the tags; OpenManus-RL, for example, uses `think` and `act`."""

    thought_tag: Tag = "think"
    """The tag around the reasoning."""
    action_tag: Tag = "action"
    """The tag around the action."""

    @model_validator(mode="after")
    def tags_differ(self) -> Self:
        """Require that the two tags have different names."""
        if self.thought_tag == self.action_tag:
            raise ValueError("thought_tag and action_tag must differ")
        return self


class Tags(ReplyFormat[TagsOptions]):
    """`<think>...</think><action>...</action>`; the last action counts. Nothing is escaped, in either direction."""

    Options = TagsOptions
    examples = (*ReplyFormat.examples, "a < b && c > d", "first line\n  second line")

    def __init__(self, options: TagsOptions) -> None:
        super().__init__(options)
        self._thought = f"<{options.thought_tag}>", f"</{options.thought_tag}>"
        self._action = f"<{options.action_tag}>", f"</{options.action_tag}>"

    @property
    def instructions(self) -> str:
        """Show both tags."""
        return f'Answer with "{self.render("your reasoning", "your action")}".'

    @property
    def complaint(self) -> str:
        """Repeat the instructions."""
        return f"Invalid format. {self.instructions}"

    def parse(self, text: str) -> ParsedReply:
        """Read the last action; it is complete if its tag is closed."""
        begin, end = self._action
        head, marker, tail = text.rpartition(begin)
        if not marker:
            head, tail = text, ""
        action, closed, _ = tail.partition(end)
        action = action.strip()
        return ParsedReply(
            thought=self._read_thought(head),
            action=action or None,
            well_formed=bool(action) and self._is_well_formed(text.strip()),
            complete=bool(closed and action),
        )

    def render(self, thought: str, action: str) -> str:
        """Write both, one directly after the other."""
        return thought.join(self._thought) + action.join(self._action)

    def _read_thought(self, head: str) -> str:
        begin, end = self._thought
        _, marker, inside = head.partition(begin)
        return (inside if marker else head).partition(end)[0].strip()

    def _is_well_formed(self, text: str) -> bool:
        """Return whether there is one of each tag, in order, and nothing but blanks outside of them."""
        rest = text
        outside = ""
        for begin, end in (self._thought, self._action):
            before, _, rest = rest.partition(begin)
            _, closed, rest = rest.partition(end)
            outside += before
            if not closed:
                return False
        once = all(text.count(tag) == 1 for tag in (*self._thought, *self._action))
        return once and not (outside + rest).strip()
