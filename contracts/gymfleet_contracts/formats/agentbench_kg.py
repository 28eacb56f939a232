"""`agentbench_kg`: AgentBench's knowledge graph. Actions are calls such as `count(#0)`, or `Final Answer: #0`."""

import re
from typing import Final

from gymfleet_contracts.formats._markers import ACTION, THOUGHT, first_line, without
from gymfleet_contracts.reply_format import FormatOptions, ParsedReply, ReplyFormat, no_action

_FINAL: Final = re.compile(r"(?:Find|Final) Answer: #(?P<variable>[0-9]+)")
_CALL: Final = re.compile(r"^Action[^:\n]*:", re.MULTILINE)
_INVENTED: Final = "Observation:"


class AgentbenchKg(ReplyFormat[FormatOptions]):
    """`Thought: ...`, then a line `Action: get_relations(...)` or a line `Final Answer: #id` (AgentBench)."""

    instructions = (
        "Write down your thought, then one call of a tool:\n"
        "Thought: <your reasoning>\nAction: get_relations(Barack Obama)\n"
        "Once you have found the answer, name the variable that holds it:\n"
        "Thought: <your reasoning>\nFinal Answer: #3"
    )
    complaint = "No valid function calls found! Need to recheck the function calls."
    examples = ("get_relations(#0)", "get_neighbors(A, b (c), people.person.profession)", "Final Answer: #2")

    def parse(self, text: str) -> ParsedReply:
        """Read a final answer wherever it is, or else the first line of an action; ignore all after `Observation:`."""
        said, invented, _ = text.partition(_INVENTED)
        said = said.replace("\\_", "_")  # as Markdown escapes it, and AgentBench reads it
        call = _CALL.search(said)
        if final := _FINAL.search(said):
            line = said[final.start() :]
            alone = not invented and call is None and line.strip() == f"Final Answer: #{final['variable']}"
            return ParsedReply(
                thought=without(THOUGHT, said[: final.start()]),
                action=f"Final Answer: #{final['variable']}",
                well_formed=alone and said.lstrip().startswith(THOUGHT),
                complete=final.end() < len(said) or bool(invented),
            )
        if call is None:
            return no_action(without(THOUGHT, said))
        line, _, rest = said[call.end() :].partition("\n")
        action, _ = first_line(line)
        begins = said.lstrip().startswith(THOUGHT) and call[0] == ACTION
        return ParsedReply(
            thought=without(THOUGHT, said[: call.start()]),
            action=action or None,
            well_formed=bool(action) and begins and not rest.strip() and not invented,
            complete=bool(action) and ("\n" in said[call.end() :] or bool(invented)),
        )

    def render(self, thought: str, action: str) -> str:
        """Write an answer as a line of its own, and any other action as a call."""
        return f"{THOUGHT} {thought}\n{action if _FINAL.fullmatch(action) else f'{ACTION} {action}'}"
