"""`agentbench_os`: AgentBench's OS interaction. Actions are `bash` with a block of code, `answer(...)` or `finish`."""

import re
from typing import Final

from gymfleet_contracts.formats._markers import without
from gymfleet_contracts.reply_format import FormatOptions, ParsedReply, ReplyFormat, no_action

_THINK: Final = "Think:"
_ACT: Final = "Act:"
_ACT_LINE: Final = re.compile(r"Act:[ \t]*(?P<action>[^\n]+)")
_ACTION: Final = re.compile(r"bash\s*\n```bash\n(?:(?!```).)*\n```|finish|answer\([^\n]*\)", re.DOTALL)
_BASH_FENCE: Final = "```bash\n"
_END_OF_BLOCK: Final = "\n```"


class AgentbenchOs(ReplyFormat[FormatOptions]):
    """`Think: ...`, then `Act:` with `bash` and a block, `answer(...)` or `finish` (AgentBench)."""

    instructions = (
        "First think what you should do, then take exactly one action. To run bash code:\n"
        "Think: put your thought here.\n\nAct: bash\n\n```bash\n# put your bash code here\n```\n"
        "When you have finished the task:\nThink: put your thought here.\n\nAct: finish\n"
        "When you have got the answer to the question:\nThink: put your thought here.\n\n"
        "Act: answer(Your answer to the question should be put in this pair of parentheses)"
    )
    complaint = (
        "Invalid format. Write Think: and your thought, then one of Act: bash with a ```bash block, Act: finish, "
        "Act: answer(your answer)"
    )
    examples = (
        "bash\n\n```bash\nls /tmp\n```",
        "bash\n\n```bash\nfor f in *; do\n  cat $f\ndone\n```",
        "answer(a (b))",
        "finish",
    )

    def parse(self, text: str) -> ParsedReply:
        """Read the last `Act:` that names an action, and all blocks of the reply, as AgentBench does."""
        head, marker, tail = text.rpartition(_ACT)
        action = tail.strip()
        if marker and _ACTION.fullmatch(action):
            well_formed = text.lstrip().startswith(_THINK) and text.count(_ACT) == 1 and text.count(_THINK) == 1
            ended = not action.startswith("answer") or tail.rstrip(" \t").endswith("\n")
            return ParsedReply(thought=without(_THINK, head), action=action, well_formed=well_formed, complete=ended)
        return _parse_sloppy(text)

    def render(self, thought: str, action: str) -> str:
        """Write the action as it is."""
        return f"{_THINK} {thought}\n\n{_ACT} {action}"


def _parse_sloppy(text: str) -> ParsedReply:
    blocks, end = _bash_blocks(text)
    for match in reversed(list(_ACT_LINE.finditer(text))):
        if (read := _action(match["action"].strip(), blocks)) is not None:
            # A fence after the last block may begin another block, which would belong to the action.
            ended = "`" not in text[end:] if read.startswith("bash") else match.end() < len(text)
            thought = without(_THINK, text[: match.start()])
            return ParsedReply(thought=thought, action=read, well_formed=False, complete=ended)
    return no_action(without(_THINK, text))


def _action(line: str, blocks: list[str]) -> str | None:
    lowered = line[:16].lower()
    if lowered.startswith("bash") and blocks:
        code = "\n\n".join(blocks)
        return f"bash\n\n```bash\n{code}\n```"
    if lowered.startswith("finish"):
        return "finish"
    left, right = line.find("("), line.rfind(")")
    return f"answer({line[left + 1 : right]})" if lowered.startswith("answer") and -1 < left < right else None


def _bash_blocks(text: str) -> tuple[list[str], int]:
    """Return the code of each closed block, and the position where the last block ends."""
    blocks = []
    place = 0
    while (fence := text.find(_BASH_FENCE, place)) >= 0:
        start = fence + len(_BASH_FENCE)
        end = text.find(_END_OF_BLOCK, start)
        if end < 0:
            break
        blocks.append(text[start:end])
        place = end + len(_END_OF_BLOCK)
    return blocks, place
