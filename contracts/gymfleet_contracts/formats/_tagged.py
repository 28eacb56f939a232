"""The base of formats with tags such as `<think>...</think>` whose replies have notes besides thought and action."""

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import ClassVar, Final

from gymfleet_contracts.reply_format import FormatOptions, ParsedReply, ReplyFormat

_THINK: Final = "think"


class TaggedOptions(FormatOptions):
    """Which parts a reply must have."""

    demands_notes: bool = False
    """Require all notes, the parts besides thought and action, in a well-formed reply; the expert writes them empty."""


class Tagged(ReplyFormat[TaggedOptions]):
    """Thought, notes and action, each between tags. Nothing is escaped, in either direction."""

    Options = TaggedOptions
    examples = (*ReplyFormat.examples, "a < b && c > d", "first line\n  second line")
    asks: ClassVar[Mapping[str, str]]
    """What the model is asked to write in each tag; the first is the thought's, the last the action's."""

    @property
    def instructions(self) -> str:
        """Show all tags."""
        return "Answer with\n" + "\n".join(tagged(tag, inside) for tag, inside in self.asks.items())

    @property
    def complaint(self) -> str:
        """Repeat the instructions."""
        return f"Invalid format. {self.instructions}"

    def parse(self, text: str) -> ParsedReply:
        """Read the last action, and the thought and notes before it; the action is complete if its tag is closed."""
        head, marker, tail = text.rpartition(f"<{self._action}>")
        if not marker:
            head, tail = text, ""
        inside, closed, _ = tail.partition(f"</{self._action}>")
        action = inside.strip()
        found = {tag: note for tag in self.notes if (note := first_in(tag, head)) is not None}
        thought = first_in(_THINK, head)
        return ParsedReply(
            thought=head.strip() if thought is None and not found else thought or "",
            action=action or None,
            well_formed=bool(action) and self._is_well_formed(text, tuple(found)),
            complete=bool(closed and action),
            notes={tag: note for tag, note in found.items() if note},
        )

    def render(self, thought: str, action: str) -> str:
        """Write a reply without notes."""
        return self.render_notes(thought, action, {})

    def render_notes(self, thought: str, action: str, notes: Mapping[str, str]) -> str:
        """Write the notes between thought and action."""
        wanted = [tag for tag in self.notes if tag in notes or self.options.demands_notes]
        between = [tagged(tag, notes.get(tag, "")) for tag in wanted]
        return "\n".join([tagged(_THINK, thought), *between, tagged(self._action, action)])

    @property
    def _action(self) -> str:
        return tuple(self.asks)[-1]

    def _is_well_formed(self, text: str, found: tuple[str, ...]) -> bool:
        if self.options.demands_notes and len(found) < len(self.notes):
            return False
        return any(_holds((_THINK, *order, self._action), text) for order in permutations(found))


def tagged(tag: str, content: str) -> str:
    """Return a content between its tags."""
    return f"<{tag}>{content}</{tag}>"


def first_in(tag: str, text: str) -> str | None:
    """Return the content of the first such tag, up to its end tag or else the end of the text; None without one."""
    _, marker, tail = text.partition(f"<{tag}>")
    return tail.partition(f"</{tag}>")[0].strip() if marker else None


def _holds(tags: Sequence[str], text: str) -> bool:
    """Return whether a text has each tag exactly once, in this order, with only blanks outside the tags."""
    rest, outside = text, ""
    for tag in tags:
        if text.count(f"<{tag}>") != 1 or text.count(f"</{tag}>") != 1:
            return False
        before, _, rest = rest.partition(f"<{tag}>")
        _, closed, rest = rest.partition(f"</{tag}>")
        outside += before
        if not closed:
            return False
    return not (outside + rest).strip()
