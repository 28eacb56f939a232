"""`searchqa`: AgentGym's SearchQA and Search-R1. Actions are a search or an answer, each between its tags."""

from dataclasses import dataclass
from typing import Final, Literal

from gymfleet_contracts.formats._tagged import first_in, tagged
from gymfleet_contracts.reply_format import FormatOptions, ParsedReply, ReplyFormat, no_action

Verb = Literal["search", "answer"]
_VERBS: Final[tuple[Verb, ...]] = ("search", "answer")
_THINK: Final = "think"


@dataclass(frozen=True, slots=True)
class Move:
    """A reply's search or answer."""

    verb: Verb
    content: str
    """The query or the answer, without blanks around it; it may be empty."""
    begin: int
    """Where its tag begins in the reply."""


def read_move(text: str) -> Move | None:
    """Return a reply's move, as AgentGym's server reads it; None if no tag is closed.

    The first pair of tags decides whether the reply searches or answers; the query of a search is the content of that
    pair. Of several answers, the last one counts.
    """
    begin, verb, content = min(
        (found for verb in _VERBS if (found := _first_pair(verb, text)) is not None), default=(-1, _VERBS[0], "")
    )
    if begin < 0:
        return None
    return Move(verb, (_last_answer(text) if verb == "answer" else content).strip(), begin)


class Searchqa(ReplyFormat[FormatOptions]):
    """`<think>...</think>`, then `<search>...</search>` or `<answer>...</answer>`, as in AgentGym's SearchQA."""

    instructions = (
        "Answer with\n<think>your reasoning</think>\nand then either\n<search>what to search for</search>\nor\n"
        "<answer>the answer alone</answer>"
    )
    complaint = (
        "Your previous action is invalid. If you want to search, you should put the query between <search> and "
        "</search>. If you want to give the final answer, you should put the answer between <answer> and </answer>. "
        "Please try again."
    )
    examples = ("<search>river Elbe</search>", "<answer>a < b && c > d</answer>", "<answer>two\nlines</answer>")

    def parse(self, text: str) -> ParsedReply:
        """Read what AgentGym's server would execute; it is complete, because its tag is closed."""
        move = read_move(text)
        if move is None:
            return no_action(_thought(text))
        return ParsedReply(
            thought=_thought(text[: move.begin]),
            action=tagged(move.verb, move.content),
            well_formed=bool(move.content) and _is_well_formed(text, move),
            complete=True,
        )

    def render(self, thought: str, action: str) -> str:
        """Write the action, which has its tags already, below the thought."""
        return f"{tagged(_THINK, thought)}\n{action}"


def _first_pair(verb: Verb, text: str) -> tuple[int, Verb, str] | None:
    begin = text.find(f"<{verb}>")
    inside = begin + len(verb) + 2
    end = text.find(f"</{verb}>", inside) if begin >= 0 else -1
    return (begin, verb, text[inside:end]) if end >= 0 else None


def _last_answer(text: str) -> str:
    """Return the content of the last pair of answer tags, counting pairs from the beginning."""
    last, place = "", 0
    while (begin := text.find("<answer>", place)) >= 0:
        end = text.find("</answer>", begin)
        if end < 0:
            break
        last, place = text[begin + len("<answer>") : end], end
    return last


def _thought(head: str) -> str:
    inside = first_in(_THINK, head)
    return head.strip() if inside is None else inside


def _is_well_formed(text: str, move: Move) -> bool:
    """Return whether a reply is one thought and one action, with nothing but blanks around them."""
    thought, closed, action = text.strip().partition(f"</{_THINK}>")
    head, opened, _ = thought.partition(f"<{_THINK}>")
    if not (opened and closed) or head.strip():
        return False
    tags = [text.count(f"<{verb}>") + text.count(f"</{verb}>") for verb in _VERBS]
    thinks = text.count(f"<{_THINK}>") + text.count(f"</{_THINK}>")
    action = action.strip()
    whole = action.startswith(f"<{move.verb}>") and action.endswith(f"</{move.verb}>")
    return whole and sorted(tags) == [0, 2] and thinks == 2
