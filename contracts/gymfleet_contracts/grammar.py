"""The one action grammar: what a reply must look like, and how it is read.

The prompt template, the environments' instructions, the format reward and the
dataset converters all use the parser that is registered here under its name.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A model's reply, taken apart.

    `action` is None when the reply holds none. `well_formed` says whether the
    reply follows the grammar to the letter; a sloppy reply can still carry an action.
    `complete` says whether the format itself shows where the action ends (a closing
    fence, the end of a line), so that it stands whole even if the reply was cut off.
    """

    thought: str
    action: str | None
    well_formed: bool
    complete: bool

    def if_cut(self) -> "ParsedReply":
        """Return what the reply is worth where it was cut off: nothing that may be half an action."""
        return self if self.complete else replace(self, action=None, well_formed=False)


def _no_action(thought: str) -> ParsedReply:
    return ParsedReply(thought=thought, action=None, well_formed=False, complete=False)


def _first_line(text: str) -> tuple[str, bool]:
    """Return the first line that is not blank, and whether a line break ends it."""
    lines = text.lstrip().splitlines(keepends=True)
    if not lines:
        return "", False
    return lines[0].strip(), lines[0] != lines[0].splitlines()[0]


@dataclass(frozen=True, slots=True)
class Grammar:
    """A named, versioned reply format."""

    name: str
    version: int
    instructions: str
    """Shown to the model once, at the end of the environment's instructions."""
    complaint: str
    """The observation that answers a reply without an action."""
    parse: Callable[[str], ParsedReply]
    render: Callable[[str, str], str]
    """`render(thought, action)` writes a well-formed reply."""


_REACT: Final = re.compile(r"\s*Thought:(?P<thought>.*?)\s*Action:[ \t]*\n?[ \t]*(?P<action>[^\n]+?)\s*\Z", re.DOTALL)


def _parse_react(text: str) -> ParsedReply:
    head, marker, tail = text.rpartition("Action:")
    if not marker:
        return _no_action(_strip_thought(text))
    action, ended = _first_line(tail)
    well_formed = _REACT.match(text) is not None and text.count("Action:") == 1 and text.count("Thought:") == 1
    return ParsedReply(
        thought=_strip_thought(head),
        action=action or None,
        well_formed=well_formed and bool(action),
        complete=ended and bool(action),
    )


def _strip_thought(text: str) -> str:
    return text.strip().removeprefix("Thought:").strip()


REACT: Final = Grammar(
    name="react",
    version=1,
    instructions='Answer with "Thought: <your reasoning> Action: <your action>".',
    complaint='Invalid format. Answer with "Thought: <your reasoning> Action: <your action>".',
    parse=_parse_react,
    render=lambda thought, action: f"Thought: {thought} Action: {action}",
)


_OPERATION: Final = "Operation"
_FINAL_ANSWER: Final = "Final Answer:"
_SQL_FENCE: Final = "```sql"


def _parse_dbbench(text: str) -> ParsedReply:
    """The first `Action:` counts, and of an operation the first block, as AgentBench reads them."""
    head, marker, tail = text.partition("Action:")
    if not marker:
        return _no_action(_strip_thought(text))
    kind, _, rest = tail.strip().partition("\n")
    alone = "Action:" not in rest
    if _FINAL_ANSWER in tail and kind.strip() != _OPERATION:
        answer, ended = _first_line(tail.partition(_FINAL_ANSWER)[2])
        well_formed = bool(answer) and tail.strip() == f"Answer\n{_FINAL_ANSWER} {answer}" and alone
        action = f"{_FINAL_ANSWER} {answer}" if answer else None
        return ParsedReply(
            thought=_strip_thought(head), action=action, well_formed=well_formed, complete=ended and bool(answer)
        )
    before, _, block = tail.partition(_SQL_FENCE)
    sql, fence, after = block.partition("```")
    well_formed = alone and before.strip() == _OPERATION and block.count("```") == 1 and not after.strip()
    return ParsedReply(
        thought=_strip_thought(head),
        action=sql.strip() or None,
        well_formed=well_formed and bool(sql.strip()),
        complete=bool(fence and sql.strip()),
    )


def _render_dbbench(thought: str, action: str) -> str:
    if action.startswith(_FINAL_ANSWER):
        return f"{thought}\nAction: Answer\n{action}"
    return f"{thought}\nAction: {_OPERATION}\n{_SQL_FENCE}\n{action}\n```"


def _parse_sqlgym(text: str) -> ParsedReply:
    """The last block counts, as AgentGym's client reads it."""
    head, marker, block = text.rpartition(_SQL_FENCE)
    if not marker:
        return replace(_parse_react(text), well_formed=False)
    sql, fence, after = block.partition("```")
    thought, action_marker, between = head.rpartition("Action:")
    well_formed = (
        bool(fence and action_marker)
        and not (after.strip() or between.strip())
        and text.lstrip().startswith("Thought:")
        and text.count("Action:") == 1
        and text.count("```") == 2
    )
    return ParsedReply(
        thought=_strip_thought(thought or between),
        action=sql.strip() or None,
        well_formed=well_formed and bool(sql.strip()),
        complete=bool(fence and sql.strip()),
    )


DBBENCH: Final = Grammar(
    name="dbbench",
    version=1,
    instructions=(
        "Write down your thoughts, then one of two things. To operate, one SQL statement in one line:\n"
        "Action: Operation\n```sql\nSELECT * FROM table WHERE condition;\n```\n"
        "To commit your final answer:\n"
        'Action: Answer\nFinal Answer: ["ANSWER1", "ANSWER2", ...]'
    ),
    complaint=(
        "Invalid format. Write Action: Operation and then a ```sql block, "
        'or Action: Answer and then Final Answer: ["ANSWER1", ...]'
    ),
    parse=_parse_dbbench,
    render=_render_dbbench,
)
"""AgentBench's DBBench. Actions are an SQL statement, or `Final Answer: [...]`."""

SQLGYM: Final = Grammar(
    name="sqlgym",
    version=1,
    instructions=(
        "Your response should be like this:\n"
        "Thought: <your reasoning>\n\nAction: ```sql\nSELECT * FROM table WHERE condition;\n```"
    ),
    complaint="Invalid format. Answer with Thought: <your reasoning> and then Action: with one ```sql block.",
    parse=_parse_sqlgym,
    render=lambda thought, action: f"Thought: {thought}\n\nAction: {_SQL_FENCE}\n{action}\n```",
)
"""AgentGym's sqlgym. Actions are an SQL statement."""

_ACT: Final = re.compile(r"Act:[ \t]*(?P<action>[^\n]+)")
_OS_ACTION: Final = re.compile(r"bash\s*\n```bash\n(?:(?!```).)*\n```|finish|answer\([^\n]*\)", re.DOTALL)
_BASH_FENCE: Final = "```bash\n"


def _parse_agentbench_os(text: str) -> ParsedReply:
    """The last `Act:` that names an action counts, and all blocks of the reply, as AgentBench reads them."""
    head, marker, tail = text.rpartition("Act:")
    action = tail.strip()
    if marker and _OS_ACTION.fullmatch(action):
        well_formed = text.lstrip().startswith("Think:") and text.count("Act:") == 1 and text.count("Think:") == 1
        ended = not action.startswith("answer") or tail.rstrip(" \t").endswith("\n")
        return ParsedReply(thought=_strip_think(head), action=action, well_formed=well_formed, complete=ended)
    blocks, rest = _bash_blocks(text)
    for match in reversed(list(_ACT.finditer(text))):
        if (read := _os_action(match["action"].strip(), blocks)) is not None:
            # A fence behind the last block may be the begin of another one, which would belong to the action.
            ended = "`" not in rest if read.startswith("bash") else match.end() < len(text)
            thought = _strip_think(text[: match.start()])
            return ParsedReply(thought=thought, action=read, well_formed=False, complete=ended)
    return _no_action(_strip_think(text))


def _os_action(line: str, blocks: list[str]) -> str | None:
    lowered = line[:16].lower()
    if lowered.startswith("bash") and blocks:
        code = "\n\n".join(blocks)
        return f"bash\n\n```bash\n{code}\n```"
    if lowered.startswith("finish"):
        return "finish"
    left, right = line.find("("), line.rfind(")")
    return f"answer({line[left + 1 : right]})" if lowered.startswith("answer") and -1 < left < right else None


def _bash_blocks(text: str) -> tuple[list[str], str]:
    """Return the code of each closed block, and the text behind the last of them."""
    blocks = []
    rest = text
    while (start := rest.find(_BASH_FENCE)) >= 0 and (end := rest.find("\n```", start + len(_BASH_FENCE))) >= 0:
        blocks.append(rest[start + len(_BASH_FENCE) : end])
        rest = rest[end + len("\n```") :]
    return blocks, rest


def _strip_think(text: str) -> str:
    return text.strip().removeprefix("Think:").strip()


AGENTBENCH_OS: Final = Grammar(
    name="agentbench-os",
    version=1,
    instructions=(
        "First think what you should do, then take exactly one action. To run bash code:\n"
        "Think: put your thought here.\n\nAct: bash\n\n```bash\n# put your bash code here\n```\n"
        "When you have finished the task:\nThink: put your thought here.\n\nAct: finish\n"
        "When you have got the answer to the question:\nThink: put your thought here.\n\n"
        "Act: answer(Your answer to the question should be put in this pair of parentheses)"
    ),
    complaint=(
        "Invalid format. Write Think: and your thought, then one of Act: bash with a ```bash block, Act: finish, "
        "Act: answer(your answer)"
    ),
    parse=_parse_agentbench_os,
    render=lambda thought, action: f"Think: {thought}\n\nAct: {action}",
)
"""AgentBench's OS interaction. Actions are `bash` with a block of code, `answer(...)` or `finish`."""

GRAMMARS: Final[dict[str, Grammar]] = {grammar.name: grammar for grammar in (REACT, DBBENCH, SQLGYM, AGENTBENCH_OS)}


def get_grammar(name: str) -> Grammar:
    """Look a grammar up by name; KeyError names the known ones."""
    try:
        return GRAMMARS[name]
    except KeyError:
        raise KeyError(f"unknown action grammar {name!r}; known: {sorted(GRAMMARS)}") from None
